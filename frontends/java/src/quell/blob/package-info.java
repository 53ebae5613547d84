/**
 * Transactional blobs for programs that share state, in a directory or through a server.
 *
 * <pre>{@code
 * try (Store store = Store.open("dir:/scratch/results")) {
 *     long at = store.transact(t -> {
 *         t.create("sum", true);
 *         t.transform("sum", 0, Transform.add(NumberType.I64, 21));
 *         return t.version();
 *     });
 * }
 * }</pre>
 *
 * <p>{@code docs/semantics.md} of Quell states the guarantees, and {@code quell_blob.h} the limits:
 * a name has 1 to 1,024 bytes; a blob has at most 2<sup>63</sup> - 1 bytes; a transaction has at
 * most 16,384 operations and 16,384 reads, 64 MiB of data for one operation, and 1 MiB of numbers
 * for one transform. Through a server, a transaction has at most 257 MiB of data. Offsets, sizes
 * and lengths are in bytes.
 *
 * <p><b>Names</b> are bytes, and strings are encoded as UTF-8. In the name of a list or of a
 * conflict, each byte that is not part of valid UTF-8 is a character from U+DC80 to U+DCFF, as in
 * Python, and such a string names the same blob when it is passed back.
 *
 * <p><b>Errors</b> are {@link quell.blob.BlobException}, an {@link java.io.IOException} with the
 * kind of the error. A negative offset or length is an {@link java.lang.IllegalArgumentException},
 * and the use of a closed object an {@link java.lang.IllegalStateException}.
 *
 * <p><b>Threads.</b> Any number of threads may use the objects of this package at the same time.
 * One thread of each store completes its futures, one after another. It also runs the functions
 * that a program passes to {@link java.util.concurrent.CompletableFuture#thenApply} and similar
 * methods, which must therefore neither wait for other futures of the store nor close it.
 * Functions that wait belong to
 * {@link java.util.concurrent.CompletableFuture#thenApplyAsync}.
 *
 * <p><b>Closing.</b> Objects that a program forgets are closed after a garbage collection. That can
 * be late: close stores and snapshots. The virtual machine does not wait for submitted operations
 * when it exits; {@link quell.blob.Store#close} and {@link quell.blob.Store#drain} wait for them.
 */
package quell.blob;
