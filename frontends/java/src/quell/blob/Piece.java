package quell.blob;

import java.nio.ByteBuffer;

/**
 * The remaining bytes of a buffer as the native functions get them: the array, or the direct buffer
 * if there is no array, and a range in it.
 */
record Piece(byte[] array, ByteBuffer direct, int start, int length) {
    static Piece of(byte[] data) {
        return new Piece(data, null, 0, data.length);
    }

    /** Returns the bytes of a buffer, in place if possible. */
    static Piece of(ByteBuffer data) {
        if (data.isDirect()) {
            return new Piece(null, data, data.position(), data.remaining());
        }
        if (data.hasArray()) {
            return new Piece(data.array(), null, data.arrayOffset() + data.position(), data.remaining());
        }
        byte[] copy = new byte[data.remaining()]; // read-only
        data.duplicate().get(copy);
        return of(copy);
    }

    static long checked(long number, String title) {
        if (number < 0) {
            throw new IllegalArgumentException("the " + title + " is negative: " + number);
        }
        return number;
    }
}
