package quell.blob;

/**
 * The attributes of a blob.
 *
 * @param sizeBytes the size in bytes
 * @param modifiedNs the time of the last commit that changed the blob, in nanoseconds since 1970
 *     (UTC)
 */
public record Attributes(long sizeBytes, long modifiedNs) {}
