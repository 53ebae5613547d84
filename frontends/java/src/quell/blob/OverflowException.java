package quell.blob;

/**
 * The result of a checked transform is outside the range of its type (EINVAL). {@link #operation}
 * is the index of the transform.
 */
public final class OverflowException extends BlobException {
    private static final long serialVersionUID = 1;

    /** The index of the number. */
    private final int cell;

    OverflowException(Details details) {
        super(details);
        this.cell = details.cell();
    }

    /**
     * Returns the index of the number in the range of the transform.
     *
     * @return the index from 0
     */
    public int cell() {
        return cell;
    }
}
