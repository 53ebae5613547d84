package quell.blob;

import java.io.InterruptedIOException;
import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;

/**
 * The attempts of a transaction that conflicts, and their delays.
 *
 * @param attemptsMax the largest number of attempts, at least 1
 * @param firstDelay the mean time before the second attempt; it doubles with each attempt
 * @param delayMax the largest mean time before an attempt
 */
public record Retries(int attemptsMax, Duration firstDelay, Duration delayMax) {
    /** 20 attempts, with delays from 100 microseconds to 1 second. */
    public static final Retries DEFAULT = new Retries(20, Duration.ofNanos(100_000), Duration.ofSeconds(1));

    /**
     * Checks the numbers.
     *
     * @param attemptsMax the largest number of attempts, at least 1
     * @param firstDelay the mean time before the second attempt
     * @param delayMax the largest mean time before an attempt
     * @throws IllegalArgumentException if there is no attempt or a delay is negative
     */
    public Retries {
        if (attemptsMax < 1 || firstDelay.isNegative() || delayMax.isNegative()) {
            throw new IllegalArgumentException("at least 1 attempt, and no negative delay: " + attemptsMax + ", " + firstDelay + ", " + delayMax);
        }
    }

    /** Waits after an attempt, of which the first has the number 1. */
    void pause(int attempt) throws InterruptedIOException {
        double mean = Math.min(delayMax.toNanos(), firstDelay.toNanos() * Math.pow(2, Math.min(attempt - 1, 60)));
        long nanos = (long) (mean * ThreadLocalRandom.current().nextDouble(0.5, 1.5));
        try {
            Thread.sleep(nanos / 1_000_000, (int) (nanos % 1_000_000));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            InterruptedIOException interrupted = new InterruptedIOException("interrupted between two attempts of a transaction");
            interrupted.initCause(error);
            throw interrupted;
        }
    }
}
