/* SPDX-License-Identifier: Apache-2.0
 *
 * Transactional blobs for C++17 programs, over quell_blob.h, whose limits and rules apply. Link with
 * -lquellblob.
 *
 * Errors are exceptions: `quell::blob::Error`, a std::system_error with the error number, and its
 * subclasses for transactions. Handles are closed by their destructors. A destructor does not report
 * errors; only an explicit `Transaction::commit` commits. Objects can be moved, not copied. Any
 * number of threads may use a store, snapshot or transaction at the same time.
 *
 * Offsets and sizes are in bytes. Names are any bytes. */
#ifndef QUELL_BLOB_HPP
#define QUELL_BLOB_HPP

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "quell_blob.h"

namespace quell {
namespace blob {

// A part that a transaction has read, and that another one has changed.
struct Change {
    // The name of the blob, or the beginning of names.
    std::string name;
    // The part as the transaction has read it, and the part that was changed.
    quell_blob_part read, changed;
};

// An operation failed. `code()` has the error number.
class Error : public std::system_error {
  public:
    Error(int number, const quell_blob_failure &failure, const char *message)
        : std::system_error(number, std::generic_category(), message), failure_(failure) {}
    // Whether the same transaction can succeed when it is repeated from the beginning.
    bool is_repeatable() const noexcept { return failure_.is_repeatable != 0; }
    // The reason, and the index of the operation in the transaction.
    const quell_blob_failure &failure() const noexcept { return failure_; }

  private:
    quell_blob_failure failure_;
};

// Other transactions have changed data that this one has read.
class Conflict : public Error {
  public:
    Conflict(int number, const quell_blob_failure &failure, const char *message, std::vector<Change> changes)
        : Error(number, failure, message),
          changes_(std::make_shared<const std::vector<Change>>(std::move(changes))) {}
    const std::vector<Change> &changes() const noexcept { return *changes_; }

  private:
    std::shared_ptr<const std::vector<Change>> changes_; // a copy of an exception must not throw
};

// The state that a snapshot or transaction reads is no longer kept.
class SnapshotTooOld : public Error {
    using Error::Error;
};

// A compare-and-set found another number than the expected one: `failure().found`.
class Different : public Error {
    using Error::Error;
};

// The result of a checked transform is outside the range of its type.
class Overflow : public Error {
    using Error::Error;
};

namespace detail {

// Returns the last error of this thread.
inline std::exception_ptr last_error(int number) {
    quell_blob_failure failure{};
    quell_blob_last_failure(&failure);
    const char *message = quell_blob_last_error();
    switch (failure.reason) {
    case QUELL_BLOB_CONFLICT: {
        const quell_blob_conflict *conflicts = nullptr;
        std::int64_t count = quell_blob_last_conflicts(&conflicts);
        std::vector<Change> changes;
        for (std::int64_t i = 0; i < count; i++) {
            const quell_blob_conflict &each = conflicts[i];
            changes.push_back(
                {std::string(static_cast<const char *>(each.name), each.name_bytes), each.read, each.changed});
        }
        return std::make_exception_ptr(Conflict(number, failure, message, std::move(changes)));
    }
    case QUELL_BLOB_SNAPSHOT_TOO_OLD:
        return std::make_exception_ptr(SnapshotTooOld(number, failure, message));
    case QUELL_BLOB_DIFFERENT:
        return std::make_exception_ptr(Different(number, failure, message));
    case QUELL_BLOB_OVERFLOW:
        return std::make_exception_ptr(Overflow(number, failure, message));
    default:
        return std::make_exception_ptr(Error(number, failure, message));
    }
}

// Returns the answer of a function, or throws its error.
template <typename Number> Number check(Number answer) {
    if (answer < 0)
        std::rethrow_exception(last_error(static_cast<int>(-answer)));
    return answer;
}

template <typename Handle, int (*close)(Handle *)> struct Closer {
    void operator()(Handle *handle) const noexcept { close(handle); }
};
template <typename Handle, int (*close)(Handle *)> using Owned = std::unique_ptr<Handle, Closer<Handle, close>>;

using StoreOwned = Owned<quell_blob_store, quell_blob_close>;
using SnapshotOwned = Owned<quell_blob_snapshot, quell_blob_snapshot_close>;
using TransactionOwned = Owned<quell_blob_transaction, quell_blob_transaction_close>;
using NamesOwned = Owned<quell_blob_names, quell_blob_names_close>;
using ResultOwned = Owned<quell_blob_result, quell_blob_result_close>;

// The number of a type in transforms.
template <typename T> constexpr std::uint32_t cell() {
    static_assert(std::is_arithmetic<T>::value && !std::is_same<T, bool>::value && sizeof(T) <= 8,
                  "numbers of blobs are integers of 1, 2, 4 or 8 bytes, float and double");
    if (std::is_floating_point<T>::value)
        return sizeof(T) == 4 ? QUELL_BLOB_F32 : QUELL_BLOB_F64;
    std::uint32_t size = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return (std::is_signed<T>::value ? QUELL_BLOB_I8 : QUELL_BLOB_U8) + size;
}

} // namespace detail

// The attributes of a blob in a list.
struct Entry {
    std::string name;
    quell_blob_attributes attributes;
};

enum class Kind : std::uint32_t {
    add = QUELL_BLOB_ADD,
    multiply = QUELL_BLOB_MULTIPLY,
    min = QUELL_BLOB_MIN,
    max = QUELL_BLOB_MAX,
    bit_and = QUELL_BLOB_AND,
    bit_or = QUELL_BLOB_OR,
    bit_xor = QUELL_BLOB_XOR,
    compare_and_set = QUELL_BLOB_COMPARE_AND_SET,
};

// The treatment of integer results outside the range of the type.
enum class Treatment : std::uint32_t {
    wrap = QUELL_BLOB_WRAP,
    saturate = QUELL_BLOB_SATURATE,
    check = QUELL_BLOB_CHECK,
};

// Arithmetic on consecutive numbers of type `T`, little endian: one operand for each number, or one
// for `count` of them.
template <typename T> struct Transform {
    Kind kind;
    std::vector<T> operands;
    Treatment overflow = Treatment::wrap;
    // 0 stands for the number of operands.
    std::uint32_t count = 0;
    // For `compare_and_set`, the expected numbers.
    std::vector<T> expected = {};

    quell_blob_transform given(bool returns_before) const {
        quell_blob_transform given{};
        given.kind = static_cast<std::uint32_t>(kind);
        given.cell = detail::cell<T>();
        given.overflow = static_cast<std::uint32_t>(overflow);
        given.count = numbers();
        given.operands = operands.data();
        given.operands_bytes = operands.size() * sizeof(T);
        given.expected = expected.data();
        given.expected_bytes = expected.size() * sizeof(T);
        given.returns_before = returns_before;
        return given;
    }

    std::uint32_t numbers() const {
        return count != 0 ? count : static_cast<std::uint32_t>(operands.size());
    }
};

template <typename T> Transform<T> add(T number) { return {Kind::add, {number}}; }

template <typename T> Transform<T> compare_and_set(T expected, T number) {
    return {Kind::compare_and_set, {number}, Treatment::wrap, 0, {expected}};
}

// The result of a transaction. The operations are counted from 0.
class Committed {
  public:
    // The version of the state after the transaction.
    std::int64_t version() const { return version_; }
    // The offset at which the data of an append begins.
    std::uint64_t appended(std::size_t operation) const {
        if (operation >= offsets_.size() || offsets_[operation] < 0)
            throw std::system_error(EINVAL, std::generic_category(), "the operation is no append");
        return static_cast<std::uint64_t>(offsets_[operation]);
    }

  private:
    friend class Transaction;
    friend class Store;
    // Copies a result, which a callback must not keep.
    Committed(const quell_blob_result *result, const std::vector<bool> &appends)
        : version_(detail::check(quell_blob_result_version(result))) {
        for (std::size_t i = 0; i < appends.size(); i++)
            offsets_.push_back(appends[i] ? detail::check(quell_blob_result_appended(result, i)) : -1);
    }
    std::int64_t version_;
    std::vector<std::int64_t> offsets_;
};

namespace detail {

inline std::vector<Entry> entries(quell_blob_names *names) {
    NamesOwned owned(names);
    std::vector<Entry> found;
    quell_blob_name name;
    while (check(quell_blob_names_next(names, &name)))
        found.push_back({std::string(static_cast<const char *>(name.name), name.name_bytes), name.attributes});
    return found;
}

} // namespace detail

// One state of a store, which later commits do not change.
class Snapshot {
  public:
    std::int64_t version() const { return detail::check(quell_blob_snapshot_version(handle_.get())); }

    // Reads bytes, and returns their number: less than `length` at the end of the blob only.
    std::size_t read(std::string_view name, std::uint64_t offset, void *into, std::size_t length) const {
        return static_cast<std::size_t>(detail::check(
            quell_blob_snapshot_read(handle_.get(), name.data(), name.size(), offset, into, length)));
    }

    quell_blob_attributes stat(std::string_view name) const {
        quell_blob_attributes found;
        detail::check(quell_blob_snapshot_stat(handle_.get(), name.data(), name.size(), &found));
        return found;
    }

    // Sets `position` to the first byte with data from `offset` on. Returns false if there is none.
    bool next_data(std::string_view name, std::uint64_t offset, std::uint64_t &position) const {
        return detail::check(quell_blob_snapshot_next_data(handle_.get(), name.data(), name.size(), offset,
                                                           &position)) != 0;
    }

    // Lists at most `count_max` blobs whose names begin with `prefix` and are after `after`.
    std::vector<Entry> list(std::string_view prefix, std::string_view after = {},
                            std::size_t count_max = SIZE_MAX / 2) const {
        quell_blob_names *names;
        detail::check(quell_blob_snapshot_list(handle_.get(), prefix.data(), prefix.size(), after.data(),
                                               after.size(), count_max, &names));
        return detail::entries(names);
    }

  private:
    friend class Store;
    explicit Snapshot(quell_blob_snapshot *handle) : handle_(handle) {}
    detail::SnapshotOwned handle_;
};

// A transaction. One that is destroyed without a commit changes nothing. The functions that add an
// operation return its index; data is copied.
class Transaction {
  public:
    std::size_t create(std::string_view name, bool may_exist = false) {
        return added(quell_blob_transaction_create(handle(), name.data(), name.size(), may_exist));
    }
    std::size_t remove(std::string_view name) {
        return added(quell_blob_transaction_delete(handle(), name.data(), name.size()));
    }
    std::size_t rename(std::string_view name, std::string_view to) {
        return added(
            quell_blob_transaction_rename(handle(), name.data(), name.size(), to.data(), to.size()));
    }
    std::size_t write(std::string_view name, std::uint64_t offset, const void *data, std::size_t length) {
        return added(
            quell_blob_transaction_write(handle(), name.data(), name.size(), offset, data, length));
    }
    std::size_t append(std::string_view name, const void *data, std::size_t length) {
        return added(quell_blob_transaction_append(handle(), name.data(), name.size(), data, length), true);
    }
    std::size_t append(std::string_view name, std::string_view data) {
        return append(name, data.data(), data.size());
    }
    std::size_t resize(std::string_view name, std::uint64_t size_bytes) {
        return added(quell_blob_transaction_resize(handle(), name.data(), name.size(), size_bytes));
    }
    // Sets the attributes of a blob as a file of `quell mount --blob`.
    std::size_t set_attributes(std::string_view name, const quell_blob_file_attributes &file) {
        return added(
            quell_blob_transaction_set_attributes(handle(), name.data(), name.size(), &file, nullptr));
    }
    // Sets the time of the last change, in nanoseconds since 1970 (UTC).
    std::size_t set_modified(std::string_view name, std::uint64_t modified_ns) {
        return added(
            quell_blob_transaction_set_attributes(handle(), name.data(), name.size(), nullptr, &modified_ns));
    }
    template <typename T>
    std::size_t transform(std::string_view name, std::uint64_t offset, const Transform<T> &transform) {
        quell_blob_transform given = transform.given(false);
        return added(quell_blob_transaction_apply(handle(), name.data(), name.size(), offset, &given));
    }

    // Reads bytes, including the changes of this transaction.
    std::size_t read(std::string_view name, std::uint64_t offset, void *into, std::size_t length) {
        return static_cast<std::size_t>(detail::check(
            quell_blob_transaction_read(handle(), name.data(), name.size(), offset, into, length)));
    }
    quell_blob_attributes stat(std::string_view name) {
        quell_blob_attributes found;
        detail::check(quell_blob_transaction_stat(handle(), name.data(), name.size(), &found));
        return found;
    }
    std::vector<Entry> list(std::string_view prefix, std::string_view after = {},
                            std::size_t count_max = SIZE_MAX / 2) {
        quell_blob_names *names;
        detail::check(quell_blob_transaction_list(handle(), prefix.data(), prefix.size(), after.data(),
                                                  after.size(), count_max, &names));
        return detail::entries(names);
    }

    // Commits the transaction, which has then ended, also if this throws.
    Committed commit() {
        quell_blob_result *result;
        detail::check(quell_blob_commit(handle(), &result));
        return Committed(detail::ResultOwned(result).get(), appends_);
    }

    // Commits the transaction without waiting for the result. Waits while the largest number of
    // operations is in flight.
    std::future<Committed> submit() {
        auto pending = std::make_unique<Pending>(Pending{appends_, {}});
        std::future<Committed> future = pending->promise.get_future();
        detail::check(quell_blob_submit(handle(), Pending::receive, pending.get()));
        pending.release(); // the callback deletes it
        return future;
    }

  private:
    friend class Store;
    explicit Transaction(quell_blob_transaction *handle) : handle_(handle) {}

    struct Pending {
        std::vector<bool> appends;
        std::promise<Committed> promise;

        static void receive(void *context, int status, const quell_blob_result *result) {
            std::unique_ptr<Pending> own(static_cast<Pending *>(context));
            try {
                if (status < 0)
                    own->promise.set_exception(detail::last_error(-status));
                else
                    own->promise.set_value(Committed(result, own->appends));
            } catch (...) {
                own->promise.set_exception(std::current_exception());
            }
        }
    };

    const quell_blob_transaction *handle() const { return handle_.get(); }

    std::size_t added(int status, bool is_append = false) {
        detail::check(status);
        appends_.push_back(is_append);
        return appends_.size() - 1;
    }

    detail::TransactionOwned handle_;
    std::vector<bool> appends_; // whether each operation is an append
};

// The attempts of a transaction that conflicts, and their delays. 0 selects the default of
// quell_blob.h.
using Retries = quell_blob_retries;
using Options = quell_blob_options;

// A store of blobs. A function that changes one blob is a transaction of its own, and never conflicts.
class Store {
  public:
    // Opens the store at a location: see quell_blob_open.
    explicit Store(const std::string &location, const Options &options = Options{}) {
        quell_blob_store *store;
        detail::check(quell_blob_open(location.c_str(), &options, &store));
        handle_.reset(store);
    }

    // Waits until all submitted operations have results.
    void drain() const { detail::check(quell_blob_drain(handle())); }

    void create(std::string_view name) const {
        detail::check(quell_blob_create(handle(), name.data(), name.size()));
    }
    void remove(std::string_view name) const {
        detail::check(quell_blob_delete(handle(), name.data(), name.size()));
    }
    void rename(std::string_view name, std::string_view to) const {
        detail::check(quell_blob_rename(handle(), name.data(), name.size(), to.data(), to.size()));
    }
    void write(std::string_view name, std::uint64_t offset, const void *data, std::size_t length) const {
        detail::check(quell_blob_write(handle(), name.data(), name.size(), offset, data, length));
    }
    // Returns the offset of the data.
    std::uint64_t append(std::string_view name, const void *data, std::size_t length) const {
        return static_cast<std::uint64_t>(
            detail::check(quell_blob_append(handle(), name.data(), name.size(), data, length)));
    }
    std::uint64_t append(std::string_view name, std::string_view data) const {
        return append(name, data.data(), data.size());
    }
    void resize(std::string_view name, std::uint64_t size_bytes) const {
        detail::check(quell_blob_resize(handle(), name.data(), name.size(), size_bytes));
    }

    // Replaces numbers of a blob without reading them.
    template <typename T>
    void transform(std::string_view name, std::uint64_t offset, const Transform<T> &transform) const {
        quell_blob_transform given = transform.given(false);
        detail::check(quell_blob_apply(handle(), name.data(), name.size(), offset, &given, nullptr, 0));
    }
    // Does the same, and returns the numbers before the transform.
    template <typename T>
    std::vector<T> exchange(std::string_view name, std::uint64_t offset, const Transform<T> &transform) const {
        quell_blob_transform given = transform.given(true);
        std::vector<T> before(transform.numbers());
        detail::check(quell_blob_apply(handle(), name.data(), name.size(), offset, &given, before.data(),
                                       before.size() * sizeof(T)));
        return before;
    }

    // Reads bytes of the latest state, and returns their number: less than `length` at the end of the
    // blob only.
    std::size_t read(std::string_view name, std::uint64_t offset, void *into, std::size_t length) const {
        return static_cast<std::size_t>(
            detail::check(quell_blob_read(handle(), name.data(), name.size(), offset, into, length)));
    }
    // Reads without waiting for the result, at most 64 MiB. `into` must exist until then.
    std::future<std::size_t> submit_read(std::string_view name, std::uint64_t offset, void *into,
                                         std::size_t length) const {
        auto promise = std::make_unique<std::promise<std::size_t>>();
        std::future<std::size_t> future = promise->get_future();
        detail::check(quell_blob_submit_read(handle(), name.data(), name.size(), offset, into, length,
                                             was_read, promise.get()));
        promise.release(); // the callback deletes it
        return future;
    }

    quell_blob_attributes stat(std::string_view name) const {
        quell_blob_attributes found;
        detail::check(quell_blob_stat(handle(), name.data(), name.size(), &found));
        return found;
    }

    void collect() const { detail::check(quell_blob_collect(handle())); }

    Snapshot snapshot() const {
        quell_blob_snapshot *snapshot;
        detail::check(quell_blob_snapshot_begin(handle(), &snapshot));
        return Snapshot(snapshot);
    }

    // Begins a transaction, which reads the latest state and its own changes.
    Transaction begin() const {
        quell_blob_transaction *transaction;
        detail::check(quell_blob_begin(handle(), &transaction));
        return Transaction(transaction);
    }

    // Begins a transaction that cannot read and never conflicts.
    Transaction batch() const {
        quell_blob_transaction *transaction;
        detail::check(quell_blob_batch(handle(), &transaction));
        return Transaction(transaction);
    }

    // Calls `body` with a transaction and commits it. After a conflict, both are repeated after a
    // delay. An exception of `body` that is no conflict ends the transaction without a commit.
    template <typename Body> Committed transact(Body body, const Retries &retries = Retries{}) const {
        Attempts<Body> attempts{body, nullptr, {}};
        quell_blob_result *result = nullptr;
        int status = quell_blob_transact(handle(), &retries, Attempts<Body>::attempt, &attempts, &result);
        detail::ResultOwned own(result);
        if (attempts.thrown)
            std::rethrow_exception(attempts.thrown);
        detail::check(status);
        return Committed(result, attempts.appends);
    }

  private:
    // A body, and the exception and the operations of its last call. No exception leaves `attempt`.
    template <typename Body> struct Attempts {
        Body &body;
        std::exception_ptr thrown;
        std::vector<bool> appends;

        static int attempt(const quell_blob_transaction *handle, void *context) noexcept {
            Attempts &own = *static_cast<Attempts *>(context);
            Transaction transaction(const_cast<quell_blob_transaction *>(handle));
            own.thrown = nullptr;
            int answer = 0;
            try {
                own.body(transaction);
                own.appends = transaction.appends_;
            } catch (const Error &error) {
                own.thrown = std::current_exception();
                answer = error.is_repeatable() ? -ECANCELED : 1;
            } catch (...) {
                own.thrown = std::current_exception();
                answer = 1;
            }
            transaction.handle_.release(); // the library closes it
            return answer;
        }
    };

    const quell_blob_store *handle() const { return handle_.get(); }

    static void was_read(void *context, std::int64_t count) {
        std::unique_ptr<std::promise<std::size_t>> own(static_cast<std::promise<std::size_t> *>(context));
        if (count < 0)
            own->set_exception(detail::last_error(static_cast<int>(-count)));
        else
            own->set_value(static_cast<std::size_t>(count));
    }

    detail::StoreOwned handle_;
};

} // namespace blob
} // namespace quell

#endif // QUELL_BLOB_HPP
