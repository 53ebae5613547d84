package quell.blob;

import java.nio.ByteBuffer;

/** The type of a number in a blob. All are little endian. */
public enum NumberType {
    /** Unsigned integer of 1 byte. */
    U8(1),
    /** Unsigned integer of 2 bytes. */
    U16(2),
    /** Unsigned integer of 4 bytes. */
    U32(4),
    /** Unsigned integer of 8 bytes: a {@code long} has its bits. */
    U64(8),
    /** Integer of 1 byte. */
    I8(1),
    /** Integer of 2 bytes. */
    I16(2),
    /** Integer of 4 bytes. */
    I32(4),
    /** Integer of 8 bytes. */
    I64(8),
    /** IEEE 754 number of 4 bytes. */
    F32(4),
    /** IEEE 754 number of 8 bytes. */
    F64(8);

    private final int bytes;

    NumberType(int bytes) {
        this.bytes = bytes;
    }

    /**
     * Returns the length of a number.
     *
     * @return the length in bytes
     */
    public int bytes() {
        return bytes;
    }

    /**
     * Returns whether the numbers have fractions.
     *
     * @return true for {@link #F32} and {@link #F64}
     */
    public boolean isFloat() {
        return this == F32 || this == F64;
    }

    void put(ByteBuffer into, long number) {
        if (isFloat()) {
            put(into, (double) number);
            return;
        }
        boolean isUnsigned = ordinal() <= U64.ordinal();
        int bits = 8 * bytes;
        if (bits < 64) {
            long min = isUnsigned ? 0 : -1L << (bits - 1);
            long max = isUnsigned ? (1L << bits) - 1 : (1L << (bits - 1)) - 1;
            if (number < min || number > max) {
                throw new IllegalArgumentException(number + " is not a number of the type " + this);
            }
        }
        switch (bytes) {
            case 1 -> into.put((byte) number);
            case 2 -> into.putShort((short) number);
            case 4 -> into.putInt((int) number);
            default -> into.putLong(number);
        }
    }

    void put(ByteBuffer into, double number) {
        switch (this) {
            case F32 -> into.putFloat((float) number);
            case F64 -> into.putDouble(number);
            default -> throw new IllegalArgumentException("the type " + this + " has integers, not " + number);
        }
    }

    long getLong(ByteBuffer from, int at) {
        return switch (this) {
            case U8 -> Byte.toUnsignedLong(from.get(at));
            case U16 -> Short.toUnsignedLong(from.getShort(at));
            case U32 -> Integer.toUnsignedLong(from.getInt(at));
            case I8 -> from.get(at);
            case I16 -> from.getShort(at);
            case I32 -> from.getInt(at);
            case U64, I64 -> from.getLong(at);
            case F32, F64 -> throw new IllegalStateException("the numbers have the type " + this + ": use getDouble");
        };
    }

    double getDouble(ByteBuffer from, int at) {
        return switch (this) {
            case F32 -> from.getFloat(at);
            case F64 -> from.getDouble(at);
            default -> throw new IllegalStateException("the numbers have the type " + this + ": use getLong");
        };
    }
}
