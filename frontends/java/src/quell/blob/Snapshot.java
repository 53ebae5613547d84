package quell.blob;

import java.util.OptionalLong;

/**
 * One state of a store, which later commits do not change. All methods fail with {@link
 * SnapshotTooOldException} if later commits have changed so much that the store no longer keeps the
 * state, or if the server of the store was restarted.
 */
public final class Snapshot extends BlobReader {
    Snapshot(long pointer) {
        super(Native.SNAPSHOT, pointer, "snapshot", Native::closeSnapshot);
    }

    /**
     * Returns the version of the state.
     *
     * @return a number that is not negative, and larger for later states
     * @throws BlobException if the state is no longer kept
     */
    public long version() throws BlobException {
        return stateVersion();
    }

    /**
     * Returns the first position from an offset on at which a blob has data. The bytes before it
     * are zeros.
     *
     * @param name the name of the blob
     * @param offset the position from which to search
     * @return the position, or nothing if there is no data up to the end
     * @throws BlobException NOT_FOUND if there is no blob of this name
     */
    public OptionalLong nextData(String name, long offset) throws BlobException {
        byte[] encoded = Names.encode(name);
        Piece.checked(offset, "offset");
        long pointer = handle.acquire();
        try {
            long position = Native.nextData(pointer, encoded, offset);
            return position < 0 ? OptionalLong.empty() : OptionalLong.of(position);
        } finally {
            handle.release();
        }
    }

    /**
     * Ends the snapshot, after which the store can remove the state. Waits for calls in progress.
     */
    @Override
    public void close() {
        closeHandle();
    }
}
