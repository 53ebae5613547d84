package quell.blob;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.ReadOnlyBufferException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Reads of blobs: of the latest state ({@link Store}), of one state ({@link Snapshot}), or of one
 * state with the changes of a transaction ({@link Transaction}).
 */
public abstract sealed class BlobReader implements AutoCloseable permits Store, Snapshot, Transaction {
    final Handle handle;
    private final int kind;

    BlobReader(int kind, long pointer, String title, Handle.Closer closer) {
        this.kind = kind;
        this.handle = Handle.of(this, pointer, title, closer);
    }

    /**
     * Returns bytes from an offset.
     *
     * @param name the name of the blob
     * @param offset the first byte
     * @param length the number of bytes; memory for all of them is allocated
     * @return the bytes; fewer only if the blob ends there
     * @throws BlobException NOT_FOUND if there is no blob of this name; DAMAGED if data does not
     *     have its checksum; STALE if the state is no longer kept
     */
    public final byte[] read(String name, long offset, int length) throws BlobException {
        byte[] into = new byte[(int) Piece.checked(length, "length")];
        int count = read(name, offset, Piece.of(into));
        return count == length ? into : Arrays.copyOf(into, count);
    }

    /**
     * Returns all bytes of a blob. For a store, the size is from an earlier state than the bytes if
     * the blob is changed meanwhile; use a snapshot or a transaction for one state.
     *
     * @param name the name of the blob
     * @return the bytes
     * @throws IllegalArgumentException if the blob is too large for an array
     * @throws BlobException as {@link #read(String, long, int)}
     */
    public final byte[] read(String name) throws BlobException {
        long size = stat(name).sizeBytes();
        if (size > Integer.MAX_VALUE - 8) {
            throw new IllegalArgumentException("the blob " + name + " has " + size + " bytes; read parts of it");
        }
        return read(name, 0, (int) size);
    }

    /**
     * Reads bytes to the remaining space of a buffer, and advances its position. A direct buffer is
     * filled in place.
     *
     * @param name the name of the blob
     * @param offset the first byte
     * @param into the buffer, which no other thread uses during the call
     * @return the number of bytes, which is less than the space only if the blob ends there
     * @throws ReadOnlyBufferException if the buffer is read-only
     * @throws BlobException as {@link #read(String, long, int)}
     */
    public final int read(String name, long offset, ByteBuffer into) throws BlobException {
        if (into.isReadOnly()) {
            throw new ReadOnlyBufferException();
        }
        int count = read(name, offset, Piece.of(into));
        into.position(into.position() + count);
        return count;
    }

    private int read(String name, long offset, Piece into) throws BlobException {
        byte[] encoded = Names.encode(name);
        Piece.checked(offset, "offset");
        long pointer = handle.acquire();
        try {
            return Native.read(kind, pointer, encoded, offset, into.array(), into.direct(), into.start(), into.length());
        } finally {
            handle.release();
        }
    }

    /**
     * Returns the attributes of a blob.
     *
     * @param name the name of the blob
     * @return its size and time
     * @throws BlobException NOT_FOUND if there is no blob of this name
     */
    public final Attributes stat(String name) throws BlobException {
        byte[] encoded = Names.encode(name);
        long pointer = handle.acquire();
        try {
            long[] found = Native.stat(kind, pointer, encoded);
            return new Attributes(found[0], found[1]);
        } finally {
            handle.release();
        }
    }

    /**
     * Returns whether there is a blob of a name.
     *
     * @param name the name of the blob
     * @return true if it exists
     * @throws BlobException other errors than NOT_FOUND
     */
    public final boolean exists(String name) throws BlobException {
        try {
            stat(name);
            return true;
        } catch (BlobException error) {
            if (error.kind() == BlobException.Kind.NOT_FOUND) {
                return false;
            }
            throw error;
        }
    }

    /**
     * Lists all blobs whose names begin with a text, in the order of the bytes of their names. The
     * list is in memory.
     *
     * @param prefix the beginning of the names
     * @return the names and attributes
     * @throws BlobException STALE if the state is no longer kept
     */
    public final List<Entry> list(String prefix) throws BlobException {
        return list(prefix, "", Long.MAX_VALUE);
    }

    /**
     * Lists blobs whose names begin with a text and are after another one, in the order of the
     * bytes of their names.
     *
     * @param prefix the beginning of the names
     * @param after the last name of the previous list, or an empty text
     * @param countMax the largest number of blobs
     * @return the names and attributes
     * @throws OutOfMemoryError if the list has more than 2 GiB; use a smaller {@code countMax}
     * @throws BlobException STALE if the state is no longer kept
     */
    public List<Entry> list(String prefix, String after, long countMax) throws BlobException {
        byte[] from = Names.encode(prefix), behind = Names.encode(after);
        Piece.checked(countMax, "number of blobs");
        byte[] packed;
        long pointer = handle.acquire();
        try {
            packed = Native.list(kind, pointer, from, behind, countMax);
        } finally {
            handle.release();
        }
        ByteBuffer entries = ByteBuffer.wrap(packed).order(ByteOrder.LITTLE_ENDIAN);
        List<Entry> found = new ArrayList<>();
        while (entries.hasRemaining()) {
            byte[] name = new byte[entries.getInt()];
            Attributes attributes = new Attributes(entries.getLong(), entries.getLong());
            entries.get(name);
            found.add(new Entry(Names.decode(name), attributes));
        }
        return found;
    }

    /** Returns the version of a snapshot or transaction. */
    final long stateVersion() throws BlobException {
        long pointer = handle.acquire();
        try {
            return Native.version(kind, pointer);
        } finally {
            handle.release();
        }
    }

    /** Closes a handle whose function has no errors. */
    final void closeHandle() {
        try {
            handle.close();
        } catch (BlobException error) {
            throw new AssertionError(error);
        }
    }

    /**
     * Closes the object. Further calls do nothing.
     *
     * @throws BlobException see {@link Store#close}
     */
    @Override
    public abstract void close() throws BlobException;
}
