package quell.blob;

/**
 * A part of a blob that a transaction has read, and that another one has changed.
 *
 * @param name the name of the blob; for {@link Part#NAMES}, the beginning of the names
 * @param part the kind of the changed part
 * @param read the part as the transaction has read it
 * @param changed the part that was changed
 */
public record Change(String name, Part part, Range read, Range changed) {
    /** A part of a blob. */
    public enum Part {
        /** Whether the blob exists. */
        EXISTENCE,
        /** Its size. */
        SIZE,
        /** A range of its bytes. */
        RANGE,
        /** The names of blobs that begin with a text. */
        NAMES
    }

    /**
     * A range of bytes, or of no bytes if the part is not {@link Part#RANGE}.
     *
     * @param start the first byte
     * @param end the byte after the last one; 2<sup>63</sup> - 1 also stands for all larger numbers
     */
    public record Range(long start, long end) {}
}
