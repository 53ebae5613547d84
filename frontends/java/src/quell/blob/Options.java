package quell.blob;

/**
 * Options for opening a store.
 *
 * @param inFlightMax the largest number of submitted operations in flight, at least 1
 * @param mustExist whether {@link Store#open} fails with NOT_FOUND if there is no store; otherwise
 *     it creates one
 */
public record Options(int inFlightMax, boolean mustExist) {
    /** 1,000 operations in flight; a store that does not exist is created. */
    public static final Options DEFAULT = new Options(1000, false);

    /**
     * Checks the options.
     *
     * @param inFlightMax the largest number of submitted operations in flight, at least 1
     * @param mustExist whether a store that does not exist is an error
     * @throws IllegalArgumentException if {@code inFlightMax} is less than 1
     */
    public Options {
        if (inFlightMax < 1) {
            throw new IllegalArgumentException("at least 1 operation is in flight, not " + inFlightMax);
        }
    }
}
