package quell.blob;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Objects;

/**
 * Arithmetic on consecutive numbers of a blob, which the store applies in one commit and without a
 * read by the program. Numbers after the end of the blob are zeros, and the blob is extended. A
 * transform has at least one number and at most 1 MiB of them. Instances do not change.
 */
public final class Transform {
    /** The operation on each number. */
    public enum Kind {
        /** Adds the operand. */
        ADD,
        /** Multiplies by the operand. */
        MULTIPLY,
        /** Replaces the number by the operand if the operand is less. A NaN is replaced. */
        MIN,
        /** Replaces the number by the operand if the operand is greater. A NaN is replaced. */
        MAX,
        /** Bitwise and; integers only. */
        AND,
        /** Bitwise or; integers only. */
        OR,
        /** Bitwise exclusive or; integers only. */
        XOR,
        /**
         * Replaces the number by the operand if it has the same bits as the expected number.
         * Otherwise the whole transaction fails with {@link DifferentException}.
         */
        COMPARE_AND_SET
    }

    /** The treatment of integer results of ADD and MULTIPLY outside the range of the type. */
    public enum Overflow {
        /** The lower bits are stored. */
        WRAP,
        /** The nearest number of the type is stored. */
        SATURATE,
        /** The transaction fails with {@link OverflowException}. */
        CHECK
    }

    final Kind kind;
    final NumberType type;
    final Overflow overflow;
    final int count;
    final byte[] operands, expected;

    private Transform(Kind kind, NumberType type, Overflow overflow, int count, byte[] operands, byte[] expected) {
        this.kind = Objects.requireNonNull(kind);
        this.type = Objects.requireNonNull(type);
        this.overflow = Objects.requireNonNull(overflow);
        this.count = count;
        this.operands = operands;
        this.expected = expected;
    }

    /**
     * Returns a transform of as many numbers as there are operands.
     *
     * @param kind the operation
     * @param type the type of the numbers
     * @param operands one for each number
     * @return the transform, which wraps on overflow
     * @throws IllegalArgumentException if an operand is not a number of the type
     */
    public static Transform of(Kind kind, NumberType type, long... operands) {
        return new Transform(kind, type, Overflow.WRAP, operands.length, packed(type, operands), new byte[0]);
    }

    /**
     * Returns a transform of as many numbers with fractions as there are operands.
     *
     * @param kind the operation
     * @param type {@link NumberType#F32} or {@link NumberType#F64}
     * @param operands one for each number
     * @return the transform
     * @throws IllegalArgumentException if the type has integers
     */
    public static Transform of(Kind kind, NumberType type, double... operands) {
        return new Transform(kind, type, Overflow.WRAP, operands.length, packed(type, operands), new byte[0]);
    }

    /**
     * Returns an addition to one number.
     *
     * @param type the type of the number
     * @param operand the number to add
     * @return the transform, which wraps on overflow
     */
    public static Transform add(NumberType type, long operand) {
        return of(Kind.ADD, type, operand);
    }

    /**
     * Returns an addition to one number with a fraction.
     *
     * @param type {@link NumberType#F32} or {@link NumberType#F64}
     * @param operand the number to add
     * @return the transform
     */
    public static Transform add(NumberType type, double operand) {
        return of(Kind.ADD, type, operand);
    }

    /**
     * Returns a replacement of one number if it has an expected value.
     *
     * @param type the type of the number
     * @param expected the expected number
     * @param number the new number
     * @return the transform
     */
    public static Transform compareAndSet(NumberType type, long expected, long number) {
        return of(Kind.COMPARE_AND_SET, type, number).expecting(expected);
    }

    /**
     * Returns this transform with other expected numbers.
     *
     * @param expected as many numbers as operands
     * @return a transform
     */
    public Transform expecting(long... expected) {
        return new Transform(kind, type, overflow, count, operands, packed(type, expected));
    }

    /**
     * Returns this transform with other expected numbers.
     *
     * @param expected as many numbers as operands
     * @return a transform
     */
    public Transform expecting(double... expected) {
        return new Transform(kind, type, overflow, count, operands, packed(type, expected));
    }

    /**
     * Returns this transform with another treatment of overflows.
     *
     * @param overflow the treatment
     * @return a transform
     */
    public Transform on(Overflow overflow) {
        return new Transform(kind, type, overflow, count, operands, expected);
    }

    /**
     * Returns a transform that uses the only operand of this one for several numbers.
     *
     * @param count the number of consecutive numbers
     * @return a transform
     */
    public Transform repeated(int count) {
        if (count < 1) {
            throw new IllegalArgumentException("a transform has at least 1 number, not " + count);
        }
        return new Transform(kind, type, overflow, count, operands, expected);
    }

    /** Returns the length of the numbers in bytes. */
    int bytes() {
        return Math.multiplyExact(count, type.bytes());
    }

    private static byte[] packed(NumberType type, long... numbers) {
        ByteBuffer bytes = space(type, numbers.length);
        for (long number : numbers) {
            type.put(bytes, number);
        }
        return bytes.array();
    }

    private static byte[] packed(NumberType type, double... numbers) {
        ByteBuffer bytes = space(type, numbers.length);
        for (double number : numbers) {
            type.put(bytes, number);
        }
        return bytes.array();
    }

    private static ByteBuffer space(NumberType type, int count) {
        int bytes = Math.multiplyExact(count, type.bytes());
        return ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }
}
