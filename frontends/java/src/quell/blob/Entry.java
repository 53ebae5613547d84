package quell.blob;

/**
 * A blob in a list.
 *
 * @param name the name
 * @param attributes the attributes of the blob
 */
public record Entry(String name, Attributes attributes) {}
