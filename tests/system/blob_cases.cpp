// Tests the promises of quell_blob.hpp: blob_cases LOCATION. The store at LOCATION is empty. Prints
// a promise that does not hold.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "quell_blob.hpp"

using namespace quell::blob;

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            std::fprintf(stderr, "blob_cases.cpp:%d: not so: %s\n", __LINE__, #what);                                  \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

// Returns the exception of a type that a function throws.
template <typename Expected, typename Function> Expected thrown(Function function) {
    try {
        function();
    } catch (const Expected &error) {
        return error;
    }
    CHECK(!"an exception is thrown");
    std::abort();
}

static void bytes_come_back(const Store &store) {
    const std::string name("a\0b", 3);
    char bytes[16];
    store.create(name);
    CHECK(thrown<Error>([&] { store.create(name); }).code() == std::errc::file_exists);
    CHECK(store.append(name, "hello") == 0 && store.append(name, "world") == 5);
    store.write(name, 0, "J", 1);
    CHECK(store.read(name, 0, bytes, sizeof bytes) == 10 && std::string(bytes, 10) == "Jelloworld");
    store.resize(name, 5);
    CHECK(store.stat(name).size_bytes == 5 && store.stat(name).modified_ns > 0);
    Snapshot snapshot = store.snapshot();
    store.rename(name, "other");
    std::uint64_t position = 9;
    CHECK(snapshot.read(name, 0, bytes, 1) == 1 && snapshot.stat(name).size_bytes == 5 && snapshot.version() > 0);
    CHECK(snapshot.next_data(name, 1, position) && position == 1 && !snapshot.next_data(name, 5, position));
    std::vector<Entry> found = snapshot.list("a");
    CHECK(found.size() == 1 && found[0].name == name && found[0].attributes.size_bytes == 5);
    CHECK(snapshot.list("a", name).empty());
    store.remove("other");
    CHECK(thrown<Error>([&] { store.read("other", 0, bytes, 1); }).code().value() == ENOENT);
    CHECK(std::string(thrown<Error>([&] { store.stat("other"); }).what()).find("other") != std::string::npos);
    store.collect();
}

static void transactions_take_effect_together(const Store &store) {
    char byte;
    Transaction t = store.begin();
    t.create("one");
    t.write("one", 0, "abc", 3);
    std::size_t append = t.append("one", "de");
    t.resize("one", 4);
    t.rename("one", "two");
    t.set_attributes("two", {0100640, 7, 8});
    t.set_modified("two", 1000000007);
    t.create("gone", true);
    t.remove("gone");
    CHECK(t.read("two", 3, &byte, 1) == 1 && byte == 'd' && t.stat("two").size_bytes == 4);
    CHECK(t.list("t").size() == 1);
    CHECK(t.stat("two").modified_ns == 1000000007);
    Committed committed = t.commit();
    CHECK(committed.appended(append) == 3 && committed.version() > 0);
    thrown<std::system_error>([&] { committed.appended(0); });
    CHECK(thrown<Error>([&] { t.commit(); }).code().value() == EINVAL);
    {
        Transaction unused = store.begin();
        unused.remove("two");
    }
    Transaction reader = store.begin();
    CHECK(reader.read("two", 1, &byte, 1) == 1);
    reader.write("two", 0, "x", 1);
    store.write("two", 1, "y", 1);
    Conflict conflict = thrown<Conflict>([&] { reader.commit(); });
    CHECK(conflict.is_repeatable() && conflict.code().value() == ECANCELED && conflict.changes().size() == 1);
    CHECK(conflict.changes()[0].name == "two" && conflict.changes()[0].read.start == 1);
    store.remove("two");
}

static void transforms_are_applied(const Store &store) {
    store.create("n");
    store.transform("n", 0, add<std::int64_t>(5));
    CHECK(store.exchange("n", 0, Transform<std::int64_t>{Kind::multiply, {3}}).at(0) == 5);
    CHECK(store.exchange("n", 0, compare_and_set<std::int64_t>(15, 7)).at(0) == 15);
    Different different = thrown<Different>([&] { store.transform("n", 0, compare_and_set<std::int64_t>(15, 7)); });
    CHECK(different.failure().found[0] == 7 && !different.is_repeatable());
    Transform<std::uint8_t> checked{Kind::add, {1, 255}, Treatment::check};
    store.write("n", 7, "\0\1", 2);
    CHECK(thrown<Overflow>([&] { store.transform("n", 7, checked); }).failure().cell == 1);
    store.resize("n", 8);
    store.transform("n", 8, Transform<double>{Kind::max, {0.5, 1.5}});
    CHECK((store.exchange("n", 8, Transform<double>{Kind::add, {1}, Treatment::wrap, 2})
           == std::vector<double>{0.5, 1.5}));
    store.transform("n", 0, Transform<float>{Kind::min, {-1}});
    store.transform("n", 0, Transform<std::uint16_t>{Kind::bit_xor, {1}});
    CHECK((thrown<Error>([&] { store.transform("n", 0, Transform<float>{Kind::bit_and, {1}}); }).code().value()
           == EINVAL));
    store.remove("n");
}

static void threads_lose_no_update(const Store &store) {
    store.create("sum");
    store.resize("sum", 16);
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++)
        threads.emplace_back([&] {
            for (int k = 0; k < 100; k++)
                store.transform("sum", 0, add<std::int64_t>(1));
            for (int k = 0; k < 10; k++)
                store.transact(
                    [](Transaction &t) {
                        std::int64_t number;
                        CHECK(t.read("sum", 8, &number, sizeof number) == sizeof number);
                        number++;
                        t.write("sum", 8, &number, sizeof number);
                    },
                    Retries{10000, 0, 20000});
        });
    for (std::thread &thread : threads)
        thread.join();
    std::int64_t numbers[2];
    CHECK(store.read("sum", 0, numbers, sizeof numbers) == sizeof numbers && numbers[0] == 800 && numbers[1] == 80);
    thrown<std::runtime_error>([&] {
        store.transact([](Transaction &t) {
            t.remove("sum");
            throw std::runtime_error("ends the transaction");
        });
    });
    CHECK(thrown<Error>([&] { store.transact([](Transaction &t) { t.stat("none"); }); }).code().value() == ENOENT);
    CHECK(thrown<Error>([&] { store.transact([](Transaction &t) { t.remove("none"); }); }).code().value() == ENOENT);
    int attempts = 0;
    thrown<Conflict>([&] {
        store.transact(
            [&](Transaction &t) {
                char byte;
                t.read("sum", 0, &byte, 1);
                store.write("sum", 0, "x", 1);
                t.write("sum", 0, "y", 1);
                attempts++;
            },
            Retries{3, 1, 1});
    });
    CHECK(attempts == 3);
    CHECK(store.transact([](Transaction &t) { t.append("sum", "z"); }).appended(0) == 16);
    store.remove("sum");
}

static void futures_have_results(const Store &store) {
    store.create("log");
    std::vector<std::future<Committed>> commits;
    for (int i = 0; i < 4000; i++) {
        Transaction batch = store.batch();
        batch.append("log", "x");
        commits.push_back(batch.submit());
    }
    std::vector<bool> seen(4000);
    for (std::future<Committed> &commit : commits)
        seen.at(commit.get().appended(0)) = true;
    for (bool each : seen)
        CHECK(each);
    std::vector<char> bytes(4000);
    std::vector<std::future<std::size_t>> reads;
    for (std::size_t i = 0; i < bytes.size(); i++)
        reads.push_back(store.submit_read("log", i, &bytes[i], 1));
    for (std::future<std::size_t> &read : reads)
        CHECK(read.get() == 1);
    CHECK(bytes == std::vector<char>(4000, 'x'));
    Transaction batch = store.batch();
    batch.remove("none");
    std::future<Committed> failed = batch.submit();
    CHECK(thrown<Error>([&] { failed.get(); }).failure().operation == 0);
    std::future<std::size_t> none = store.submit_read("none", 0, bytes.data(), 1);
    thrown<Error>([&] { none.get(); });
    store.drain();
    store.remove("log");
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(thrown<Error>([] { Store("http://host"); }).code().value() == EINVAL);
    Store store(argv[1]);
    bytes_come_back(store);
    transactions_take_effect_together(store);
    transforms_are_applied(store);
    threads_lose_no_update(store);
    futures_have_results(store);
    Store moved = std::move(store);
    moved.create("a");
    moved.remove("a");
    return 0;
}
