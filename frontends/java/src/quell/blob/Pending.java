package quell.blob;

import java.util.concurrent.CompletableFuture;

/** A submitted operation, whose result a thread of the library passes on. */
abstract class Pending<T> {
    final CompletableFuture<T> future = new CompletableFuture<>();
    /** The store cannot be collected, and hence not be closed, while the operation is in flight. */
    private final Store store;

    Pending(Store store) {
        this.store = store;
    }

    /**
     * Returns the result. {@code count} is the number of bytes read, or 0; {@code data} is the
     * result of a commit or the bytes read, or null if the bytes are in a buffer.
     */
    abstract T result(long count, byte[] data);

    /** Called by the native library, once, unless {@link #fail} is. */
    final void finish(long count, byte[] data) {
        T result;
        try {
            result = result(count, data);
        } catch (Throwable error) {
            fail(error);
            return;
        }
        future.complete(result);
    }

    /** Called by the native library. */
    final void fail(Throwable error) {
        future.completeExceptionally(error);
    }
}
