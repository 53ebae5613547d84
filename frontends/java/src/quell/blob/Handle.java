package quell.blob;

import java.lang.ref.Cleaner;

/**
 * A pointer of the library and the function that closes it, which is called once, and not while
 * another function uses the pointer.
 */
final class Handle {
    /** A function that closes a pointer. */
    @FunctionalInterface
    interface Closer {
        void close(long pointer) throws BlobException;
    }

    private static final Cleaner CLEANER = Cleaner.create();

    private final long pointer;
    private final String title;
    private final Closer closer;
    private int users;
    private boolean isClosed;

    /**
     * {@code title} is used in messages. When {@code owner} is collected, the pointer is closed.
     */
    static Handle of(Object owner, long pointer, String title, Closer closer) {
        Handle handle = new Handle(pointer, title, closer);
        CLEANER.register(owner, handle::forget);
        return handle;
    }

    private Handle(long pointer, String title, Closer closer) {
        this.pointer = pointer;
        this.title = title;
        this.closer = closer;
    }

    /** Returns the pointer, which remains valid until {@link #release}. */
    synchronized long acquire() {
        if (isClosed) {
            throw new IllegalStateException("the " + title + " is closed");
        }
        users++;
        return pointer;
    }

    synchronized void release() {
        users--;
        notifyAll();
    }

    /** Closes the pointer when no thread uses it. The second call does nothing. */
    void close() throws BlobException {
        if (end()) {
            closer.close(pointer);
        }
    }

    synchronized boolean isClosed() {
        return isClosed;
    }

    /**
     * Refuses further users and waits for the present ones. Returns false if it is closed already.
     */
    private synchronized boolean end() {
        if (isClosed) {
            return false;
        }
        isClosed = true;
        boolean isInterrupted = false;
        while (users > 0) {
            try {
                wait();
            } catch (InterruptedException error) {
                isInterrupted = true;
            }
        }
        if (isInterrupted) {
            Thread.currentThread().interrupt();
        }
        return true;
    }

    private void forget() {
        try {
            close();
        } catch (BlobException error) {
            // The program has forgotten the object, so that there is no caller to report it to.
            System.getLogger(Handle.class.getName()).log(System.Logger.Level.WARNING, "close a forgotten " + title, error);
        }
    }
}
