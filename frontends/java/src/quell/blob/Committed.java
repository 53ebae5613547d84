package quell.blob;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;

/** The result of a transaction. The operations are counted from 0. */
public final class Committed {
    private final long version;
    /** The result of each operation: a {@code Long} or {@link Numbers}, or null. */
    private final Object[] results;

    /** {@code types} has the type of each transform whose numbers {@code wanted} asks for. */
    Committed(int[] wanted, List<NumberType> types, byte[] packed) {
        ByteBuffer bytes = ByteBuffer.wrap(packed).order(ByteOrder.LITTLE_ENDIAN);
        version = bytes.getLong();
        results = new Object[wanted.length];
        for (int i = 0; i < wanted.length; i++) {
            if (wanted[i] == Native.APPENDED) {
                results[i] = bytes.getLong();
            } else if (wanted[i] > 0) {
                int start = bytes.position();
                results[i] = new Numbers(types.get(i), Arrays.copyOfRange(packed, start, start + wanted[i]));
                bytes.position(start + wanted[i]);
            }
        }
    }

    /**
     * Returns the version of the state after the transaction. Later transactions get the same or a
     * larger one.
     *
     * @return a number that is not negative
     */
    public long version() {
        return version;
    }

    /**
     * Returns the offset at which the data of an append begins.
     *
     * @param operation the index that {@link Transaction#append(String, byte[])} has returned
     * @return the offset
     * @throws IllegalArgumentException if the operation is no append
     */
    public long appended(int operation) {
        if (results[Objects.checkIndex(operation, results.length)] instanceof Long offset) {
            return offset;
        }
        throw new IllegalArgumentException("the operation " + operation + " is no append");
    }

    /**
     * Returns the numbers before a transform.
     *
     * @param operation the index that {@link Transaction#exchange} has returned
     * @return the numbers
     * @throws IllegalArgumentException if the operation is no such transform
     */
    public Numbers before(int operation) {
        if (results[Objects.checkIndex(operation, results.length)] instanceof Numbers numbers) {
            return numbers;
        }
        throw new IllegalArgumentException("the operation " + operation + " returns no numbers");
    }
}
