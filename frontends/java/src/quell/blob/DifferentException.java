package quell.blob;

/**
 * A compare-and-set found another number than the expected one (ECANCELED). {@link #operation} is
 * the index of the compare-and-set.
 */
public final class DifferentException extends BlobException {
    private static final long serialVersionUID = 1;

    /** The index of the number. */
    private final int cell;
    /** The bytes of the number. */
    private final byte[] found;

    DifferentException(Details details) {
        super(details);
        this.cell = details.cell();
        this.found = details.found();
    }

    /**
     * Returns the index of the number in the range of the transform.
     *
     * @return the index from 0
     */
    public int cell() {
        return cell;
    }

    /**
     * Returns the number that was found.
     *
     * @param type the type of the number in the transform
     * @return one number
     */
    public Numbers found(NumberType type) {
        if (type.bytes() != found.length) {
            throw new IllegalArgumentException("a number of " + found.length + " bytes was found, not " + type);
        }
        return new Numbers(type, found);
    }
}
