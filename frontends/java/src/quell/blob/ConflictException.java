package quell.blob;

import java.util.List;

/** Other transactions have changed data that this one has read (ECANCELED). Repeat it. */
public final class ConflictException extends BlobException {
    private static final long serialVersionUID = 1;

    /** The changed parts. */
    private final transient List<Change> changes;

    ConflictException(Details details, List<Change> changes) {
        super(details);
        this.changes = changes;
    }

    /**
     * Returns the parts of blobs that others have changed.
     *
     * @return at least one part; an empty list after serialization
     */
    public List<Change> changes() {
        return changes == null ? List.of() : changes;
    }
}
