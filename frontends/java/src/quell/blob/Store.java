package quell.blob;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ReadOnlyBufferException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * A store of blobs. A method that changes one blob is a transaction of its own, and never
 * conflicts. A method that ends with Async returns before it has a result: see {@link
 * Transaction#commitAsync}.
 */
public final class Store extends BlobReader {
    private Store(long pointer) {
        super(Native.STORE, pointer, "store", Native::close);
    }

    /**
     * Opens a store with {@link Options#DEFAULT}.
     *
     * @param location see {@link #open(String, Options)}
     * @return the store
     * @throws BlobException see {@link #open(String, Options)}
     */
    public static Store open(String location) throws BlobException {
        return open(location, Options.DEFAULT);
    }

    /**
     * Opens a store.
     *
     * @param location {@code dir:PATH}, the path of a directory, {@code unix:PATH}, {@code
     *     quell://HOST:PORT?key=FILE}, or {@code rados://POOL/NAMESPACE?key=FILE} for the present
     *     server of a store in RADOS; the last two with {@code &encrypt} for an encrypted
     *     connection
     * @param options the number of operations in flight, and whether the store must exist
     * @return the store
     * @throws BlobException BUSY if another process has the store open and is no server;
     *     UNAVAILABLE if no server answers; NOT_FOUND if the store must exist and does not;
     *     PERMISSION_DENIED if others have access to the directory; EXISTS if it has other files;
     *     DAMAGED if the store does not have its format
     */
    public static Store open(String location, Options options) throws BlobException {
        if (location.indexOf('\0') >= 0) {
            throw new IllegalArgumentException("the location contains a NUL");
        }
        return new Store(Native.open(Names.encode(location), options.inFlightMax(), options.mustExist()));
    }

    /** A call of the library. */
    @FunctionalInterface
    private interface Call<T> {
        T with(long store) throws BlobException;
    }

    private <T> T call(Call<T> call) throws BlobException {
        long pointer = handle.acquire();
        try {
            return call.with(pointer);
        } finally {
            handle.release();
        }
    }

    /** A call without a result. */
    @FunctionalInterface
    private interface VoidCall {
        void with(long store) throws BlobException;
    }

    private void change(VoidCall change) throws BlobException {
        call(store -> {
            change.with(store);
            return null;
        });
    }

    /**
     * Creates an empty blob.
     *
     * @param name the name of the blob
     * @throws BlobException EXISTS if there is a blob of this name
     */
    public void create(String name) throws BlobException {
        byte[] encoded = Names.encode(name);
        change(store -> Native.create(store, encoded));
    }

    /**
     * Deletes a blob.
     *
     * @param name the name of the blob
     * @throws BlobException NOT_FOUND if there is no blob of this name
     */
    public void delete(String name) throws BlobException {
        byte[] encoded = Names.encode(name);
        change(store -> Native.delete(store, encoded));
    }

    /**
     * Gives a blob another name, without a copy of its content.
     *
     * @param name the name of the blob
     * @param to the other name
     * @throws BlobException NOT_FOUND if there is no blob of this name; EXISTS if there is a
     *     blob of the other name
     */
    public void rename(String name, String to) throws BlobException {
        byte[] encoded = Names.encode(name), target = Names.encode(to);
        change(store -> Native.rename(store, encoded, target));
    }

    /**
     * Writes bytes of a blob.
     *
     * @param name the name of the blob
     * @param offset the position of the first byte; a blob that ends before it is extended with
     *     zeros
     * @param data the bytes, at most 64 MiB
     * @throws BlobException NOT_FOUND if there is no blob of this name
     */
    public void write(String name, long offset, byte[] data) throws BlobException {
        write(name, offset, Piece.of(data));
    }

    /**
     * Writes the remaining bytes of a buffer, whose position is then its limit.
     *
     * @param name the name of the blob
     * @param offset the position of the first byte; a blob that ends before it is extended with
     *     zeros
     * @param data the bytes, at most 64 MiB; bytes of a direct buffer are used in place
     * @throws BlobException NOT_FOUND if there is no blob of this name
     */
    public void write(String name, long offset, ByteBuffer data) throws BlobException {
        write(name, offset, Piece.of(data));
        data.position(data.limit());
    }

    private void write(String name, long offset, Piece data) throws BlobException {
        byte[] encoded = Names.encode(name);
        Piece.checked(offset, "offset");
        change(store ->
                Native.write(store, encoded, offset, data.array(), data.direct(), data.start(), data.length()));
    }

    /**
     * Writes bytes at the end of a blob.
     *
     * @param name the name of the blob
     * @param data the bytes, at most 64 MiB
     * @return the offset of the bytes
     * @throws BlobException NOT_FOUND if there is no blob of this name
     */
    public long append(String name, byte[] data) throws BlobException {
        return append(name, Piece.of(data));
    }

    /**
     * Writes the remaining bytes of a buffer at the end of a blob. The position of the buffer is
     * then its limit.
     *
     * @param name the name of the blob
     * @param data the bytes, at most 64 MiB; bytes of a direct buffer are used in place
     * @return the offset of the bytes
     * @throws BlobException NOT_FOUND if there is no blob of this name
     */
    public long append(String name, ByteBuffer data) throws BlobException {
        long offset = append(name, Piece.of(data));
        data.position(data.limit());
        return offset;
    }

    private long append(String name, Piece data) throws BlobException {
        byte[] encoded = Names.encode(name);
        return call(store ->
                Native.append(store, encoded, data.array(), data.direct(), data.start(), data.length()));
    }

    /**
     * Sets the size of a blob.
     *
     * @param name the name of the blob
     * @param sizeBytes the new size; a larger one extends the blob with zeros, which need no space
     * @throws BlobException NOT_FOUND if there is no blob of this name
     */
    public void resize(String name, long sizeBytes) throws BlobException {
        byte[] encoded = Names.encode(name);
        Piece.checked(sizeBytes, "size");
        change(store -> Native.resize(store, encoded, sizeBytes));
    }

    /**
     * Replaces numbers in a blob, in one commit and without reading them.
     *
     * @param name the name of the blob
     * @param offset the position of the first number
     * @param transform the operation on the numbers
     * @throws DifferentException if a compare-and-set found another number
     * @throws OverflowException if a checked result is outside the range of the type
     * @throws BlobException NOT_FOUND if there is no blob of this name; INVALID_INPUT if the
     *     transform is not defined
     */
    public void transform(String name, long offset, Transform transform) throws BlobException {
        apply(name, offset, transform, false);
    }

    /**
     * Replaces numbers as {@link #transform}, and returns the numbers before it.
     *
     * @param name the name of the blob
     * @param offset the position of the first number
     * @param transform the operation on the numbers
     * @return the numbers before the transform
     * @throws BlobException as {@link #transform}
     */
    public Numbers exchange(String name, long offset, Transform transform) throws BlobException {
        return new Numbers(transform.type, apply(name, offset, transform, true));
    }

    private byte[] apply(String name, long offset, Transform given, boolean returnsBefore) throws BlobException {
        byte[] encoded = Names.encode(name);
        Piece.checked(offset, "offset");
        return call(store -> Native.apply(
                store,
                encoded,
                offset,
                given.kind.ordinal(),
                given.type.ordinal(),
                given.overflow.ordinal(),
                given.count,
                given.operands,
                given.expected,
                returnsBefore,
                returnsBefore ? given.bytes() : 0));
    }

    /** {@inheritDoc} It is the list of one state. */
    @Override
    public List<Entry> list(String prefix, String after, long countMax) throws BlobException {
        try (Snapshot snapshot = snapshot()) {
            return snapshot.list(prefix, after, countMax);
        }
    }

    /**
     * Removes all data that neither the latest state nor a snapshot needs. Commits also remove such
     * data, after some of it has accumulated.
     *
     * @throws BlobException if the removal fails
     */
    public void collect() throws BlobException {
        change(Native::collect);
    }

    /**
     * Begins a snapshot of the latest state.
     *
     * @return the snapshot
     * @throws BlobException if the server does not answer
     */
    public Snapshot snapshot() throws BlobException {
        return new Snapshot(call(Native::beginSnapshot));
    }

    /**
     * Begins a transaction, which reads the latest state and its own changes.
     *
     * @return the transaction
     * @throws BlobException if the server does not answer
     */
    public Transaction begin() throws BlobException {
        return new Transaction(this, call(store -> Native.begin(store, false)));
    }

    /**
     * Begins a transaction that cannot read, and never conflicts. It sends no request to a server
     * before its commit.
     *
     * @return the transaction
     * @throws BlobException if the transaction cannot begin
     */
    public Transaction batch() throws BlobException {
        return new Transaction(this, call(store -> Native.begin(store, true)));
    }

    /**
     * Runs a transaction with {@link Retries#DEFAULT}.
     *
     * @param body the reads and operations
     * @param <T> the type of the result
     * @param <E> the type of other exceptions of {@code body}
     * @return the result of {@code body}
     * @throws IOException see {@link #transact(Retries, TransactionBody)}
     * @throws E the exception of {@code body}
     */
    public <T, E extends Exception> T transact(TransactionBody<T, E> body) throws IOException, E {
        return transact(Retries.DEFAULT, body);
    }

    /**
     * Begins a transaction, runs a body with it, and commits it. After a conflict, and if the state
     * is no longer kept, all of this is repeated after a delay. After another exception of the
     * body, the transaction is not committed. A body that returns the transaction gives the caller
     * its {@link Transaction#committed}.
     *
     * @param retries the number of attempts and their delays
     * @param body the reads and operations, which may run several times
     * @param <T> the type of the result
     * @param <E> the type of other exceptions of {@code body}
     * @return the result of the last run of {@code body}
     * @throws IOException the error of the last attempt, or {@link java.io.InterruptedIOException}
     *     if the thread is interrupted between two attempts
     * @throws E the exception of {@code body}
     */
    public <T, E extends Exception> T transact(Retries retries, TransactionBody<T, E> body) throws IOException, E {
        for (int attempt = 1; ; attempt++) {
            try (Transaction transaction = begin()) {
                T result = body.run(transaction);
                transaction.commit();
                return result;
            } catch (BlobException error) {
                if (!error.isRepeatable() || attempt >= retries.attemptsMax()) {
                    throw error;
                }
            }
            retries.pause(attempt);
        }
    }

    /**
     * Reads bytes of the latest state as {@link #read(String, long, int)}, without waiting.
     *
     * @param name the name of the blob
     * @param offset the first byte
     * @param length the number of bytes, at most 64 MiB
     * @return the bytes, or the exception
     */
    public CompletableFuture<byte[]> readAsync(String name, long offset, int length) {
        Piece.checked(length, "length");
        return submit(name, offset, null, 0, length, new Pending<>(this) {
            @Override
            byte[] result(long count, byte[] data) {
                return data;
            }
        });
    }

    /**
     * Reads bytes of the latest state to the remaining space of a direct buffer, without waiting.
     * Then the position of the buffer is advanced.
     *
     * @param name the name of the blob
     * @param offset the first byte
     * @param into a direct buffer with at most 64 MiB of space, which must not be used until then
     * @return the number of bytes, or the exception
     * @throws IllegalArgumentException if the buffer is not direct
     */
    public CompletableFuture<Integer> readAsync(String name, long offset, ByteBuffer into) {
        if (!into.isDirect()) {
            throw new IllegalArgumentException("the buffer is not direct; use readAsync(name, offset, length)");
        }
        if (into.isReadOnly()) {
            throw new ReadOnlyBufferException();
        }
        int start = into.position();
        return submit(name, offset, into, start, into.remaining(), new Pending<>(this) {
            @Override
            Integer result(long count, byte[] data) {
                into.position(start + (int) count);
                return (int) count;
            }
        });
    }

    private <T> CompletableFuture<T> submit(
            String name, long offset, ByteBuffer direct, int start, int length, Pending<T> pending) {
        byte[] encoded = Names.encode(name);
        Piece.checked(offset, "offset");
        try {
            change(store -> Native.submitRead(store, encoded, offset, direct, start, length, pending));
        } catch (BlobException error) {
            pending.fail(error);
        }
        return pending.future;
    }

    /** Adds one operation to a batch. */
    @FunctionalInterface
    private interface Addition {
        void to(Transaction batch) throws BlobException;
    }

    private CompletableFuture<Committed> commitAsync(Addition addition) {
        try (Transaction batch = batch()) {
            addition.to(batch);
            return batch.commitAsync();
        } catch (BlobException error) {
            return CompletableFuture.failedFuture(error);
        }
    }

    /**
     * Writes as {@link #write(String, long, byte[])}, without waiting.
     *
     * @param name the name of the blob
     * @param offset the position of the first byte
     * @param data the bytes, which are copied
     * @return the result, or the exception
     */
    public CompletableFuture<Committed> writeAsync(String name, long offset, byte[] data) {
        return commitAsync(batch -> batch.write(name, offset, data));
    }

    /**
     * Appends as {@link #append(String, byte[])}, without waiting.
     *
     * @param name the name of the blob
     * @param data the bytes, which are copied
     * @return the offset of the bytes, or the exception
     */
    public CompletableFuture<Long> appendAsync(String name, byte[] data) {
        return commitAsync(batch -> batch.append(name, data)).thenApply(committed -> committed.appended(0));
    }

    /**
     * Replaces numbers as {@link #transform}, without waiting.
     *
     * @param name the name of the blob
     * @param offset the position of the first number
     * @param transform the operation on the numbers
     * @return the result, or the exception
     */
    public CompletableFuture<Committed> transformAsync(String name, long offset, Transform transform) {
        return commitAsync(batch -> batch.transform(name, offset, transform));
    }

    /**
     * Waits until all submitted operations have results, and the functions that their futures run
     * have returned.
     *
     * @throws BlobException OTHER (EDEADLK) in such a function
     */
    public void drain() throws BlobException {
        change(Native::drain);
    }

    /**
     * Waits as {@link #drain}, and for calls in progress, and closes the store. Its directory or
     * connection stays open until its transactions and snapshots are closed as well. Further calls
     * do nothing.
     *
     * @throws BlobException OTHER (EDEADLK) in a function that a future of the store runs; then the
     *     store stays open
     */
    @Override
    public void close() throws BlobException {
        if (handle.isClosed()) {
            return;
        }
        drain();
        handle.close();
    }
}
