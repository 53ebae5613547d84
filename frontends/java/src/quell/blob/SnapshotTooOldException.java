package quell.blob;

/** The state that a snapshot or transaction reads is no longer kept (ESTALE). Begin another one. */
public final class SnapshotTooOldException extends BlobException {
    private static final long serialVersionUID = 1;

    SnapshotTooOldException(Details details) {
        super(details);
    }
}
