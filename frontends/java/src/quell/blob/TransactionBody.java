package quell.blob;

import java.io.IOException;

/**
 * The reads and operations of a transaction: see {@link Store#transact(TransactionBody)}.
 *
 * @param <T> the type of the result
 * @param <E> the type of other exceptions
 */
@FunctionalInterface
public interface TransactionBody<T, E extends Exception> {
    /**
     * Adds operations to a transaction. Neither commits nor closes it.
     *
     * @param transaction the transaction
     * @return a result, or null
     * @throws IOException an error, after which the transaction is not committed
     * @throws E an exception, after which the transaction is not committed
     */
    T run(Transaction transaction) throws IOException, E;
}
