package quell.blob;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Objects;

/** The numbers of a blob before a transform. */
public final class Numbers {
    private final NumberType type;
    private final ByteBuffer bytes;

    Numbers(NumberType type, byte[] bytes) {
        this.type = type;
        this.bytes = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }

    /**
     * Returns the type of the numbers.
     *
     * @return the type
     */
    public NumberType type() {
        return type;
    }

    /**
     * Returns the number of numbers.
     *
     * @return at least 1
     */
    public int count() {
        return bytes.capacity() / type.bytes();
    }

    /**
     * Returns an integer.
     *
     * @param index from 0
     * @return the integer; for {@link NumberType#U64}, its bits
     * @throws IllegalStateException if the type has fractions
     */
    public long getLong(int index) {
        return type.getLong(bytes, position(index));
    }

    /**
     * Returns a number with a fraction.
     *
     * @param index from 0
     * @return the number
     * @throws IllegalStateException if the type has integers
     */
    public double getDouble(int index) {
        return type.getDouble(bytes, position(index));
    }

    private int position(int index) {
        return Objects.checkIndex(index, count()) * type.bytes();
    }
}
