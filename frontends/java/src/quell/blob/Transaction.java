package quell.blob;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * Operations and reads that are committed together, or not at all. Others see the changes after the
 * commit, all at once. The methods that add an operation return its index, and copy the data. A
 * transaction that is closed without a commit changes nothing.
 *
 * <p>A transaction reads the latest state at its beginning and its own changes. Its commit fails
 * with {@link ConflictException} if another transaction has changed a part that this one has read.
 * A transaction of {@link Store#batch} cannot read and never conflicts.
 */
public final class Transaction extends BlobReader {
    private final Store store;
    private final Object lock = new Object();
    /** For each operation the result that the commit returns: see {@link Native#commit}. */
    private final List<Integer> wanted = new ArrayList<>();
    /** For each operation the type of the numbers before a transform, or null. */
    private final List<NumberType> types = new ArrayList<>();
    private volatile Committed committed;

    Transaction(Store store, long pointer) {
        super(Native.TRANSACTION, pointer, "transaction", Native::closeTransaction);
        this.store = store;
    }

    /** An operation of the library on a transaction. */
    @FunctionalInterface
    private interface Addition {
        void to(long transaction) throws BlobException;
    }

    private int add(int result, NumberType type, Addition addition) throws BlobException {
        // The lock keeps the indexes in the order of the operations.
        synchronized (lock) {
            long pointer = handle.acquire();
            try {
                addition.to(pointer);
            } finally {
                handle.release();
            }
            wanted.add(result);
            types.add(type);
            return wanted.size() - 1;
        }
    }

    /**
     * Returns the version of the state that the transaction reads.
     *
     * @return a number that is not negative
     * @throws BlobException INVALID_INPUT for a batch
     */
    public long version() throws BlobException {
        return stateVersion();
    }

    /**
     * Adds the creation of an empty blob. If the blob exists, the commit fails with EXISTS.
     *
     * @param name the name of the blob
     * @return the index of the operation
     * @throws BlobException if the operation is not valid
     */
    public int create(String name) throws BlobException {
        return create(name, false);
    }

    /**
     * Adds the creation of an empty blob.
     *
     * @param name the name of the blob
     * @param mayExist whether an existing blob is left unchanged; otherwise the commit fails with
     *     EXISTS
     * @return the index of the operation
     * @throws BlobException if the operation is not valid
     */
    public int create(String name, boolean mayExist) throws BlobException {
        byte[] encoded = Names.encode(name);
        return add(0, null, t -> Native.addCreate(t, encoded, mayExist));
    }

    /**
     * Adds the deletion of a blob. The commit fails with NOT_FOUND if it does not exist.
     *
     * @param name the name of the blob
     * @return the index of the operation
     * @throws BlobException if the operation is not valid
     */
    public int delete(String name) throws BlobException {
        byte[] encoded = Names.encode(name);
        return add(0, null, t -> Native.addDelete(t, encoded));
    }

    /**
     * Adds a change of the name of a blob, whose content is not copied. The commit fails with
     * EXISTS if the other name is in use.
     *
     * @param name the name of the blob
     * @param to the other name
     * @return the index of the operation
     * @throws BlobException if the operation is not valid
     */
    public int rename(String name, String to) throws BlobException {
        byte[] encoded = Names.encode(name), target = Names.encode(to);
        return add(0, null, t -> Native.addRename(t, encoded, target));
    }

    /**
     * Adds a change of the attributes of a blob as a file of {@code quell mount --blob}.
     *
     * @param name the name of the blob
     * @param mode the type and the permissions, as {@code st_mode}
     * @param uid the owner
     * @param gid the group
     * @return the index of the operation
     * @throws BlobException if the operation is not valid
     */
    public int setAttributes(String name, int mode, int uid, int gid) throws BlobException {
        byte[] encoded = Names.encode(name);
        return add(0, null, t -> Native.addAttributes(t, encoded, mode, uid, gid));
    }

    /**
     * Adds a change of the time of the last change of a blob.
     *
     * @param name the name of the blob
     * @param modifiedNs the time, in nanoseconds since 1970 (UTC)
     * @return the index of the operation
     * @throws BlobException if the operation is not valid
     */
    public int setModified(String name, long modifiedNs) throws BlobException {
        byte[] encoded = Names.encode(name);
        return add(0, null, t -> Native.addModified(t, encoded, modifiedNs));
    }

    /**
     * Adds a write. The commit fails with NOT_FOUND if there is no blob of this name.
     *
     * @param name the name of the blob
     * @param offset the position of the first byte; a blob that ends before it is extended with
     *     zeros
     * @param data the bytes, at most 64 MiB
     * @return the index of the operation
     * @throws BlobException if the operation is not valid
     */
    public int write(String name, long offset, byte[] data) throws BlobException {
        return write(name, offset, Piece.of(data));
    }

    /**
     * Adds a write of the remaining bytes of a buffer, whose position is then its limit.
     *
     * @param name the name of the blob
     * @param offset the position of the first byte; a blob that ends before it is extended with
     *     zeros
     * @param data the bytes, at most 64 MiB; bytes of a direct buffer are used in place
     * @return the index of the operation
     * @throws BlobException if the operation is not valid
     */
    public int write(String name, long offset, ByteBuffer data) throws BlobException {
        int index = write(name, offset, Piece.of(data));
        data.position(data.limit());
        return index;
    }

    private int write(String name, long offset, Piece data) throws BlobException {
        byte[] encoded = Names.encode(name);
        Piece.checked(offset, "offset");
        return add(0, null, t ->
                Native.addWrite(t, encoded, offset, data.array(), data.direct(), data.start(), data.length()));
    }

    /**
     * Adds a write at the end of a blob. {@link Committed#appended} returns its offset. Appends of
     * several transactions do not conflict.
     *
     * @param name the name of the blob
     * @param data the bytes, at most 64 MiB
     * @return the index of the operation
     * @throws BlobException if the operation is not valid
     */
    public int append(String name, byte[] data) throws BlobException {
        return append(name, Piece.of(data));
    }

    /**
     * Adds a write of the remaining bytes of a buffer at the end of a blob, as {@link
     * #append(String, byte[])}. The position of the buffer is then its limit.
     *
     * @param name the name of the blob
     * @param data the bytes, at most 64 MiB; bytes of a direct buffer are used in place
     * @return the index of the operation
     * @throws BlobException if the operation is not valid
     */
    public int append(String name, ByteBuffer data) throws BlobException {
        int index = append(name, Piece.of(data));
        data.position(data.limit());
        return index;
    }

    private int append(String name, Piece data) throws BlobException {
        byte[] encoded = Names.encode(name);
        return add(Native.APPENDED, null, t ->
                Native.addAppend(t, encoded, data.array(), data.direct(), data.start(), data.length()));
    }

    /**
     * Adds a change of the size of a blob.
     *
     * @param name the name of the blob
     * @param sizeBytes the new size; a larger one extends the blob with zeros, which need no space
     * @return the index of the operation
     * @throws BlobException if the operation is not valid
     */
    public int resize(String name, long sizeBytes) throws BlobException {
        byte[] encoded = Names.encode(name);
        Piece.checked(sizeBytes, "size");
        return add(0, null, t -> Native.addResize(t, encoded, sizeBytes));
    }

    /**
     * Adds a transform, which is applied to the numbers at the commit, so that transforms of
     * several transactions do not conflict.
     *
     * @param name the name of the blob
     * @param offset the position of the first number
     * @param transform the operation on the numbers
     * @return the index of the operation
     * @throws BlobException if the operation is not valid
     */
    public int transform(String name, long offset, Transform transform) throws BlobException {
        return apply(name, offset, transform, false);
    }

    /**
     * Adds a transform as {@link #transform}. {@link Committed#before} returns the numbers before
     * it.
     *
     * @param name the name of the blob
     * @param offset the position of the first number
     * @param transform the operation on the numbers
     * @return the index of the operation
     * @throws BlobException if the operation is not valid
     */
    public int exchange(String name, long offset, Transform transform) throws BlobException {
        return apply(name, offset, transform, true);
    }

    private int apply(String name, long offset, Transform given, boolean returnsBefore) throws BlobException {
        byte[] encoded = Names.encode(name);
        Piece.checked(offset, "offset");
        return add(returnsBefore ? given.bytes() : 0, returnsBefore ? given.type : null, t ->
                Native.addApply(
                        t,
                        encoded,
                        offset,
                        given.kind.ordinal(),
                        given.type.ordinal(),
                        given.overflow.ordinal(),
                        given.count,
                        given.operands,
                        given.expected,
                        returnsBefore));
    }

    /**
     * Commits the transaction, and closes it, also after an error. When the call returns, all
     * readers see the changes, and they survive a power failure.
     *
     * @return the results of the operations
     * @throws ConflictException if others have changed data that this transaction has read
     * @throws BlobException the reason for which an operation could not be applied. Then nothing is
     *     changed, except after TIMED_OUT, UNAVAILABLE and DAMAGED, after which the commit may have
     *     taken effect
     */
    public Committed commit() throws BlobException {
        int[] results = results();
        long pointer = handle.acquire();
        try {
            committed = new Committed(results, types, Native.commit(pointer, results));
        } finally {
            handle.release();
            close();
        }
        return committed;
    }

    /**
     * Commits the transaction without waiting for the result, and closes it. The call waits while
     * the largest number of operations is in flight ({@link Options#inFlightMax}), unless a
     * function that a future of the store runs calls it. Without a server, data of 32 KiB and more
     * is written before the call returns.
     *
     * @return the results of the operations, or the exception that {@link #commit} would throw. To
     *     cancel the future does not end the commit
     */
    public CompletableFuture<Committed> commitAsync() {
        int[] results = results();
        Pending<Committed> pending = new Pending<>(store) {
            @Override
            Committed result(long count, byte[] packed) {
                return committed = new Committed(results, types, packed);
            }
        };
        long pointer = handle.acquire();
        try {
            Native.submit(pointer, results, pending);
        } catch (BlobException error) {
            pending.fail(error);
        } finally {
            handle.release();
            close();
        }
        return pending.future;
    }

    private int[] results() {
        synchronized (lock) {
            long bytes = Long.BYTES;
            for (int result : wanted) {
                bytes += result == Native.APPENDED ? Long.BYTES : result;
            }
            if (bytes > Integer.MAX_VALUE - 8) {
                throw new IllegalStateException("the transaction returns " + bytes + " bytes of numbers, more than an array has");
            }
            return wanted.stream().mapToInt(Integer::intValue).toArray();
        }
    }

    /**
     * Returns the result of a successful commit.
     *
     * @return the result that {@link #commit} has returned
     * @throws IllegalStateException if the transaction is not committed
     */
    public Committed committed() {
        Committed result = committed;
        if (result == null) {
            throw new IllegalStateException("the transaction is not committed");
        }
        return result;
    }

    /**
     * Ends the transaction. One that was not committed changes nothing. Waits for calls in
     * progress.
     */
    @Override
    public void close() {
        closeHandle();
    }
}
