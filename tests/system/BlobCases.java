// Tests the promises of the Java package quell.blob:
//   BlobCases cases LOCATION    all promises, with the empty store at LOCATION
//   BlobCases forget DIRECTORY  that forgotten objects are closed, with a store in the directory
//   BlobCases exit LOCATION     ends with operations in flight, and prints nothing
// Prints a promise that does not hold, and exits with 1.
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.ReadOnlyBufferException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.LongStream;
import quell.blob.BlobException;
import quell.blob.BlobException.Kind;
import quell.blob.Change;
import quell.blob.Committed;
import quell.blob.ConflictException;
import quell.blob.DifferentException;
import quell.blob.Entry;
import quell.blob.NumberType;
import quell.blob.Numbers;
import quell.blob.Options;
import quell.blob.OverflowException;
import quell.blob.Retries;
import quell.blob.Snapshot;
import quell.blob.Store;
import quell.blob.Transaction;
import quell.blob.Transform;

public final class BlobCases {
    private static final Retries PATIENT = new Retries(10_000, Duration.ofNanos(100_000), Duration.ofMillis(20));

    public static void main(String[] arguments) throws Exception {
        String location = arguments[1];
        switch (arguments[0]) {
            case "forget" -> forgottenObjectsAreClosed(location);
            case "exit" -> exitWithOperationsInFlight(location);
            default -> cases(location);
        }
    }

    private static void cases(String location) throws Exception {
        check(thrown(BlobException.class, () -> Store.open("http://host")).kind() == Kind.INVALID_INPUT);
        thrown(IllegalArgumentException.class, () -> Store.open("dir:a\0b"));
        thrown(IllegalArgumentException.class, () -> new Options(0, true));
        try (Store store = Store.open(location)) {
            bytesComeBack(store);
            buffersAreUsedInPlace(store);
            namesAreBytes(store);
            argumentsAreChecked(store);
            transactionsTakeEffectTogether(store);
            conflictsHaveRanges(store);
            exceptionsEndTransactions(store);
            transformsAreApplied(store);
            everyTypeIsApplied(store);
            threadsLoseNoUpdate(store);
            futuresHaveResults(store);
            threadsSubmit(store);
            functionsOfFutures(store);
        }
        closedStores(location);
    }

    private static void check(boolean holds) {
        if (!holds) {
            StackTraceElement caller = new Throwable().getStackTrace()[1];
            throw new AssertionError("not so: " + caller);
        }
    }

    /** Returns the exception of a type that a function throws. */
    private static <E extends Throwable> E thrown(Class<E> type, Callable<?> function) {
        try {
            function.call();
        } catch (Throwable error) {
            Throwable cause = error instanceof CompletionException ? error.getCause() : error;
            if (type.isInstance(cause)) {
                return type.cast(cause);
            }
            throw new AssertionError("another exception than " + type, error);
        }
        throw new AssertionError("no exception, but " + type + " was expected");
    }

    private static Callable<?> failing(Store store, Step step) {
        return () -> {
            step.run(store);
            return null;
        };
    }

    private interface Step {
        void run(Store store) throws Exception;
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static void bytesComeBack(Store store) throws IOException {
        store.create("a");
        BlobException exists = thrown(BlobException.class, failing(store, s -> s.create("a")));
        check(exists.kind() == Kind.EXISTS && exists.errno() == 17 && exists.operation() <= 0);
        check(store.append("a", bytes("hello")) == 0 && store.append("a", bytes("world")) == 5);
        store.write("a", 0, bytes("J"));
        check(text(store.read("a")).equals("Jelloworld") && text(store.read("a", 3, 4)).equals("lowo"));
        check(store.read("a", 100, 5).length == 0 && store.read("a", 8, 5).length == 2);
        store.resize("a", 5);
        check(store.stat("a").sizeBytes() == 5 && store.stat("a").modifiedNs() > 0);
        try (Snapshot snapshot = store.snapshot()) {
            store.rename("a", "other");
            check(snapshot.version() > 0 && snapshot.stat("a").sizeBytes() == 5 && !snapshot.exists("other"));
            check(snapshot.nextData("a", 1).getAsLong() == 1 && snapshot.nextData("a", 5).isEmpty());
            List<Entry> found = snapshot.list("");
            check(found.size() == 1 && found.get(0).name().equals("a") && found.get(0).attributes().sizeBytes() == 5);
            check(snapshot.list("", "a", 10).isEmpty() && store.list("o").get(0).name().equals("other"));
        }
        store.resize("other", 1L << 40);
        thrown(IllegalArgumentException.class, () -> store.read("other"));
        check(store.exists("other") && !store.exists("a"));
        store.delete("other");
        BlobException none = thrown(BlobException.class, () -> store.read("other", 0, 1));
        check(none.kind() == Kind.NOT_FOUND && none.getMessage().contains("other") && !none.isRepeatable());
        store.collect();
    }

    private static void buffersAreUsedInPlace(Store store) throws IOException {
        store.create("a");
        for (ByteBuffer all : List.of(ByteBuffer.allocateDirect(20), ByteBuffer.allocate(20))) {
            store.resize("a", 0);
            ByteBuffer data = all.position(3).slice(); // its array begins before it
            data.put(2, bytes("hello")).position(2).limit(7);
            store.write("a", 0, data);
            check(data.position() == 7);
            data.position(2).limit(4);
            check(store.append("a", data) == 5 && data.remaining() == 0);
            check(text(store.read("a")).equals("hellohe"));
            data.clear().position(9).limit(17);
            check(store.read("a", 1, data) == 6 && data.position() == 15);
            byte[] read = new byte[6];
            data.get(9, read);
            check(text(read).equals("ellohe") && data.get(15) == 0 && data.get(8) == 0);
            check(store.read("a", 0, data) == 2 && store.read("a", 0, data) == 0);
            thrown(ReadOnlyBufferException.class, () -> store.read("a", 0, data.asReadOnlyBuffer()));
            store.write("a", 0, data.position(9).limit(10).asReadOnlyBuffer());
            check(text(store.read("a", 0, 2)).equals("ee"));
            check(store.read("a", 0, data) == 1);
        }
        store.delete("a");
    }

    private static void namesAreBytes(Store store) throws IOException {
        // A valid character of each length; bytes that are not UTF-8, also at the end and beside a
        // pair.
        List<String> names = List.of(
                "a", "\0", "\u00e9\u20ac\ud83d\ude00", "\udcff", "a\udcffb\udc80", "\ud83d\ude00\udcc3", "\udce2\udc82");
        for (String name : names) {
            store.create(name);
            store.append(name, bytes(name.replace('\udc80', '?')));
        }
        List<String> found = store.list("").stream().map(Entry::name).toList();
        check(found.size() == names.size() && found.containsAll(names));
        check(store.list("a\udcff").size() == 1 && store.list("", "a", 1).get(0).name().equals("a\udcffb\udc80"));
        for (String name : names) {
            store.delete(name);
        }
        thrown(IllegalArgumentException.class, () -> store.exists("\ud83d"));
        thrown(IllegalArgumentException.class, () -> store.exists("\udc00"));
        BlobException empty = thrown(BlobException.class, failing(store, s -> s.create("")));
        BlobException tooLong = thrown(BlobException.class, failing(store, s -> s.create("n".repeat(1025))));
        check(empty.kind() == Kind.INVALID_INPUT && tooLong.kind() == Kind.NAME_TOO_LONG);
    }

    private static void argumentsAreChecked(Store store) throws IOException {
        store.create("a");
        thrown(IllegalArgumentException.class, failing(store, s -> s.write("a", -1, bytes("x"))));
        thrown(IllegalArgumentException.class, failing(store, s -> s.resize("a", -1)));
        thrown(IllegalArgumentException.class, () -> store.read("a", 0, -1));
        thrown(IllegalArgumentException.class, () -> store.read("a", -1, 1));
        thrown(IllegalArgumentException.class, () -> store.readAsync("a", 0, ByteBuffer.allocate(1)));
        thrown(NullPointerException.class, () -> store.append("a", (byte[]) null));
        thrown(NullPointerException.class, () -> store.read(null));
        // Large offsets are not truncated.
        store.write("a", 1L << 40, bytes("x"));
        check(store.stat("a").sizeBytes() == (1L << 40) + 1 && text(store.read("a", 1L << 40, 9)).equals("x"));
        check(thrown(BlobException.class, () -> store.append("a", new byte[(64 << 20) + 1])).kind() == Kind.INVALID_INPUT);
        store.delete("a");
    }

    private static void transactionsTakeEffectTogether(Store store) throws IOException {
        Transaction t = store.begin();
        t.create("one");
        t.write("one", 0, bytes("abc"));
        int append = t.append("one", ByteBuffer.wrap(bytes("de")));
        int add = t.exchange("one", 0, Transform.add(NumberType.U8, 1).repeated(2));
        t.resize("one", 4);
        t.rename("one", "two");
        t.setAttributes("two", 0100640, 7, 8);
        t.setModified("two", 1_000_000_007L);
        t.create("gone", true);
        t.delete("gone");
        check(text(t.read("two")).equals("bccd") && t.stat("two").sizeBytes() == 4);
        check(t.stat("two").modifiedNs() == 1_000_000_007L);
        check(t.list("t").size() == 1 && t.version() >= 0 && !store.exists("two"));
        thrown(IllegalStateException.class, t::committed);
        Committed committed = t.commit();
        check(committed.appended(append) == 3 && committed.version() > 0 && committed == t.committed());
        Numbers before = committed.before(add);
        check(before.count() == 2 && before.getLong(0) == 'a' && before.getLong(1) == 'b');
        thrown(IllegalArgumentException.class, () -> committed.appended(0));
        thrown(IllegalArgumentException.class, () -> committed.before(0));
        thrown(IndexOutOfBoundsException.class, () -> committed.appended(10));
        thrown(IllegalStateException.class, t::commit);
        thrown(IllegalStateException.class, () -> t.delete("two"));
        try (Transaction unused = store.begin()) {
            unused.delete("two");
        }
        check(text(store.read("two")).equals("bccd"));
        try (Transaction batch = store.batch()) {
            thrown(BlobException.class, () -> batch.read("two", 0, 1));
            thrown(BlobException.class, batch::version);
            batch.delete("two");
            batch.delete("none");
            BlobException failed = thrown(BlobException.class, batch::commit);
            check(failed.kind() == Kind.NOT_FOUND && failed.operation() == 1);
        }
        store.delete("two");
    }

    private static void conflictsHaveRanges(Store store) throws IOException {
        store.create("c\udcff");
        store.write("c\udcff", 0, bytes("0123456789"));
        Transaction reader = store.begin();
        check(text(reader.read("c\udcff", 2, 4)).equals("2345") && reader.list("x/").isEmpty());
        reader.write("c\udcff", 9, bytes("x"));
        store.write("c\udcff", 3, bytes("y"));
        ConflictException conflict = thrown(ConflictException.class, reader::commit);
        check(conflict.isRepeatable() && conflict.kind() == Kind.CONFLICT && conflict.changes().size() == 1);
        Change change = conflict.changes().get(0);
        check(change.name().equals("c\udcff") && change.part() == Change.Part.RANGE);
        check(change.read().equals(new Change.Range(2, 6)));
        check(change.changed().start() <= 3 && change.changed().end() > 3);
        Transaction lister = store.begin();
        check(lister.list("x/").isEmpty());
        lister.create("x/lister");
        store.create("x/other");
        Change names = thrown(ConflictException.class, lister::commit).changes().get(0);
        check(names.name().equals("x/") && names.part() == Change.Part.NAMES);
        // The future of a commit has the same exception.
        Transaction late = store.begin();
        late.read("c\udcff", 3, 1);
        late.delete("x/other");
        store.write("c\udcff", 3, bytes("z"));
        CompletableFuture<Committed> future = late.commitAsync();
        check(thrown(ConflictException.class, future::join).changes().get(0).read().equals(new Change.Range(3, 4)));
        store.delete("c\udcff");
        store.delete("x/other");
    }

    private static void exceptionsEndTransactions(Store store) throws IOException {
        store.create("a");
        AtomicInteger attempts = new AtomicInteger();
        ArithmeticException error = thrown(ArithmeticException.class, () -> store.transact(t -> {
            attempts.incrementAndGet();
            t.delete("a");
            return 1 / (attempts.get() - 1);
        }));
        check(error != null && attempts.get() == 1 && store.exists("a"));
        // A checked exception of the program keeps its type.
        thrown(InterruptedException.class, () -> store.<Void, InterruptedException>transact(t -> {
            throw new InterruptedException();
        }));
        check(thrown(BlobException.class, () -> store.transact(t -> t.stat("none"))).kind() == Kind.NOT_FOUND);
        check(thrown(BlobException.class, () -> store.transact(t -> t.delete("none"))).kind() == Kind.NOT_FOUND);
        thrown(IllegalStateException.class, () -> store.transact(Transaction::commit));
        AtomicInteger conflicts = new AtomicInteger();
        thrown(ConflictException.class, () -> store.transact(new Retries(3, Duration.ZERO, Duration.ZERO), t -> {
            conflicts.incrementAndGet();
            t.read("a", 0, 1);
            store.write("a", 0, bytes("x"));
            return t.append("a", bytes("y"));
        }));
        check(conflicts.get() == 3 && store.stat("a").sizeBytes() == 1);
        Committed committed = store.transact(t -> {
            t.append("a", bytes("z"));
            return t;
        }).committed();
        check(committed.appended(0) == 1);
        // A thread that is interrupted between two attempts ends the loop.
        Thread.currentThread().interrupt();
        thrown(java.io.InterruptedIOException.class, () -> store.transact(t -> {
            t.read("a", 0, 1);
            store.write("a", 0, bytes("x"));
            return t.append("a", bytes("y"));
        }));
        check(Thread.interrupted());
        store.delete("a");
    }

    private static void transformsAreApplied(Store store) throws IOException {
        store.create("n");
        store.transform("n", 0, Transform.add(NumberType.I64, 5));
        check(store.exchange("n", 0, Transform.of(Transform.Kind.MULTIPLY, NumberType.I64, 3)).getLong(0) == 5);
        check(store.exchange("n", 0, Transform.compareAndSet(NumberType.I64, 15, 7)).getLong(0) == 15);
        DifferentException different = thrown(DifferentException.class, failing(store, s ->
                s.transform("n", 0, Transform.compareAndSet(NumberType.I64, 15, 7))));
        check(different.found(NumberType.I64).getLong(0) == 7 && different.cell() == 0 && !different.isRepeatable());
        check(different.kind() == Kind.CONFLICT && different.operation() == 0);
        store.write("n", 7, new byte[] {0, 1});
        Transform checked = Transform.of(Transform.Kind.ADD, NumberType.U8, 1, 255).on(Transform.Overflow.CHECK);
        OverflowException overflow = thrown(OverflowException.class, failing(store, s -> s.transform("n", 7, checked)));
        check(overflow.cell() == 1 && overflow.operation() == 0 && overflow.kind() == Kind.INVALID_INPUT);
        store.resize("n", 8);
        store.transform("n", 8, Transform.of(Transform.Kind.MAX, NumberType.F64, 0.5, 1.5));
        Numbers before = store.exchange("n", 8, Transform.add(NumberType.F64, 1.0).repeated(2));
        check(before.getDouble(0) == 0.5 && before.getDouble(1) == 1.5 && before.type() == NumberType.F64);
        thrown(IllegalStateException.class, () -> before.getLong(0));
        thrown(IndexOutOfBoundsException.class, () -> before.getDouble(2));
        thrown(IllegalArgumentException.class, () -> Transform.add(NumberType.U8, 256));
        thrown(IllegalArgumentException.class, () -> Transform.add(NumberType.I8, -129));
        thrown(IllegalArgumentException.class, () -> Transform.add(NumberType.I64, 0.5));
        check(thrown(BlobException.class, failing(store, s ->
                s.transform("n", 0, Transform.of(Transform.Kind.AND, NumberType.F32, 1)))).kind() == Kind.INVALID_INPUT);
        store.delete("n");
    }

    private static void everyTypeIsApplied(Store store) throws IOException {
        store.create("n");
        long[] results = {22, 120, 10, 12, 8, 14, 6};
        for (NumberType type : NumberType.values()) {
            for (Transform.Kind kind : Arrays.copyOf(Transform.Kind.values(), results.length)) {
                if (type.isFloat() && kind.ordinal() >= Transform.Kind.AND.ordinal()) {
                    continue;
                }
                store.transform("n", 0, Transform.of(Transform.Kind.MULTIPLY, type, 0));
                store.transform("n", 0, Transform.add(type, 12));
                Transform applied = Transform.of(kind, type, 10).on(Transform.Overflow.SATURATE);
                Numbers[] numbers = {
                    store.exchange("n", 0, applied), store.exchange("n", 0, Transform.add(type, 0))
                };
                long[] found = new long[2];
                for (int i = 0; i < 2; i++) {
                    found[i] = type.isFloat() ? (long) numbers[i].getDouble(0) : numbers[i].getLong(0);
                }
                check(found[0] == 12 && found[1] == results[kind.ordinal()]);
            }
        }
        store.write("n", 0, new byte[] {-1, -1, -1, -1, -1, -1, -1, -1});
        check(store.exchange("n", 0, Transform.add(NumberType.U32, 0)).getLong(0) == 0xffff_ffffL);
        check(store.exchange("n", 0, Transform.add(NumberType.I16, 0)).getLong(0) == -1);
        store.delete("n");
    }

    /** Runs a function on several threads. */
    private static void onThreads(int count, Callable<?> function) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(count);
        try {
            List<Future<?>> results = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                results.add(threads.submit(function));
            }
            for (Future<?> result : results) {
                result.get();
            }
        } finally {
            threads.shutdown();
        }
    }

    private static ByteBuffer number(byte[] bytes) {
        return ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }

    private static void threadsLoseNoUpdate(Store store) throws Exception {
        store.create("sum");
        store.resize("sum", 16);
        onThreads(8, () -> {
            for (int i = 0; i < 100; i++) {
                store.transform("sum", 0, Transform.add(NumberType.I64, 1));
            }
            for (int i = 0; i < 10; i++) {
                store.transact(PATIENT, t -> {
                    ByteBuffer number = number(t.read("sum", 8, 8));
                    return t.write("sum", 8, number.putLong(0, number.getLong(0) + 1).rewind());
                });
            }
            return null;
        });
        ByteBuffer numbers = number(store.read("sum"));
        check(numbers.getLong(0) == 800 && numbers.getLong(8) == 80);
        store.delete("sum");
    }

    private static void futuresHaveResults(Store store) throws IOException {
        store.create("log");
        List<CompletableFuture<Long>> appends = new ArrayList<>();
        for (int i = 0; i < 4000; i++) {
            appends.add(store.appendAsync("log", bytes("x")));
        }
        long[] offsets = appends.stream().mapToLong(CompletableFuture::join).sorted().toArray();
        check(Arrays.equals(offsets, LongStream.range(0, 4000).toArray()));
        ByteBuffer bytes = ByteBuffer.allocateDirect(4000);
        List<CompletableFuture<Integer>> reads = new ArrayList<>();
        for (int i = 0; i < 4000; i++) {
            reads.add(store.readAsync("log", i, bytes.slice(i, 1)));
        }
        check(reads.stream().mapToInt(CompletableFuture::join).sum() == 4000);
        byte[] read = new byte[4000];
        bytes.get(read);
        check(text(read).equals("x".repeat(4000)));
        ByteBuffer end = ByteBuffer.allocateDirect(10).position(3);
        check(store.readAsync("log", 3998, end).join() == 2 && end.position() == 5 && end.get(4) == 'x');
        check(store.readAsync("log", 3998, 10).join().length == 2);
        check(thrown(BlobException.class, () -> store.readAsync("none", 0, 1).join()).kind() == Kind.NOT_FOUND);
        check(thrown(BlobException.class, () -> store.readAsync("log", 0, (64 << 20) + 1).join()).kind() == Kind.INVALID_INPUT);
        check(thrown(BlobException.class, () -> store.appendAsync("none", bytes("x")).join()).operation() == 0);
        store.writeAsync("log", 0, new byte[100_000]).join();
        store.transformAsync("log", 0, Transform.add(NumberType.I64, 7)).join();
        Transaction exchange = store.batch();
        int index = exchange.exchange("log", 0, Transform.add(NumberType.I64, 1));
        CompletableFuture<Committed> future = exchange.commitAsync();
        thrown(IllegalStateException.class, exchange::commitAsync);
        check(future.join().before(index).getLong(0) == 7 && exchange.committed() == future.join());
        store.drain();
        store.delete("log");
    }

    private static void threadsSubmit(Store store) throws Exception {
        store.create("log");
        onThreads(8, () -> {
            List<CompletableFuture<?>> results = new ArrayList<>();
            for (int i = 0; i < 500; i++) {
                results.add(store.appendAsync("log", bytes("x")));
                results.add(store.readAsync("log", 0, 1));
                if (i % 100 == 0) {
                    System.gc(); // moves objects whose references the library has
                }
            }
            results.forEach(CompletableFuture::join);
            return null;
        });
        check(store.stat("log").sizeBytes() == 4000);
        store.delete("log");
    }

    private static void functionsOfFutures(Store store) throws IOException {
        store.create("a");
        // They may use the store, submit more, and throw; they may not wait for themselves.
        List<CompletableFuture<Object>> results = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            results.add(store.appendAsync("a", bytes("x")).thenCompose(offset -> {
                check(Thread.currentThread().isDaemon());
                BlobException drained = thrown(BlobException.class, failing(store, Store::drain));
                BlobException closed = thrown(BlobException.class, failing(store, Store::close));
                check(drained.errno() == 35 && closed.errno() == 35);
                return store.readAsync("a", offset, 1).thenApply(read -> {
                    throw new IllegalStateException(text(read));
                });
            }));
        }
        for (CompletableFuture<Object> result : results) {
            // A function that is added to a completed future runs on this thread, which may wait.
            if (!result.isCompletedExceptionally()) {
                IllegalStateException error = thrown(IllegalStateException.class, result::join);
                check(error.getMessage().equals("x"));
            }
        }
        store.drain();
        store.delete("a");
    }

    private static void closedStores(String location) throws IOException {
        Store store = Store.open(location, new Options(4, true));
        store.create("a");
        List<CompletableFuture<Long>> appends = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            appends.add(store.appendAsync("a", bytes("x")));
        }
        Transaction transaction = store.begin();
        Snapshot snapshot = store.snapshot();
        store.close();
        store.close();
        check(appends.stream().allMatch(CompletableFuture::isDone));
        thrown(IllegalStateException.class, () -> store.read("a"));
        thrown(IllegalStateException.class, store::begin);
        thrown(IllegalStateException.class, () -> store.appendAsync("a", bytes("x")));
        thrown(IllegalStateException.class, () -> store.readAsync("a", 0, 1));
        // They can be closed after their store.
        check(snapshot.exists("a"));
        snapshot.close();
        snapshot.close();
        thrown(IllegalStateException.class, () -> snapshot.read("a"));
        transaction.delete("a");
        transaction.commit();
        try (Transaction late = transaction) {
            thrown(IllegalStateException.class, late::commitAsync);
        }
    }

    private static void forgottenObjectsAreClosed(String directory) throws Exception {
        // The directory can be opened again when the store, and everything that it has begun, is
        // closed.
        forget(directory);
        for (int attempt = 1; ; attempt++) {
            System.gc();
            try (Store store = Store.open(directory)) {
                check(store.stat("a").sizeBytes() == 2);
                return;
            } catch (BlobException error) {
                if (error.kind() != Kind.BUSY || attempt > 10_000) {
                    throw error;
                }
                Thread.sleep(10);
            }
        }
    }

    private static void forget(String directory) throws IOException {
        Store store = Store.open(directory);
        store.create("a");
        store.appendAsync("a", bytes("x"));
        // A store that is forgotten is not closed before its operations have results.
        store.appendAsync("a", bytes("x")).thenAccept(offset -> System.gc());
        for (int i = 0; i < 100; i++) {
            store.begin().append("a", bytes("x"));
            store.snapshot().stat("a");
        }
    }

    private static void exitWithOperationsInFlight(String location) throws IOException {
        Store store = Store.open(location);
        try (Transaction batch = store.batch()) {
            batch.create("log", true);
            batch.commit();
        }
        for (int i = 0; i < 900; i++) {
            store.appendAsync("log", bytes("x")).thenAccept(offset -> bytes("more"));
        }
        if (store.stat("log").sizeBytes() % 2 == 0) {
            System.exit(0); // otherwise main returns
        }
    }
}
