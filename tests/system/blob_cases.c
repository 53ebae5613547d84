/* Tests the promises of quell_blob.h: blob_cases LOCATION. The store at LOCATION is empty. Prints a
 * promise that does not hold. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "quell_blob.h"

#define CHECK(what) check((what), #what, __LINE__)
#define REFUSED(number, what) refused((number), (what), #what, __LINE__)
#define NAME(text) (text), (sizeof(text) - 1)

static void check(int kept, const char *what, int line) {
    if (!kept) {
        fprintf(stderr, "blob_cases.c:%d: not so: %s (last error: %s)\n", line, what, quell_blob_last_error());
        exit(1);
    }
}

static void refused(int number, int64_t answer, const char *what, int line) {
    if (answer != -number || quell_blob_last_error()[0] == 0) {
        fprintf(stderr, "blob_cases.c:%d: %s: %lld instead of %d (last error: %s)\n", line, what, (long long)answer,
                -number, quell_blob_last_error());
        exit(1);
    }
}

static quell_blob_failure last_failure(void) {
    quell_blob_failure failure;
    CHECK(quell_blob_last_failure(&failure) == 0);
    return failure;
}

static quell_blob_transaction *begin(quell_blob_store *store) {
    quell_blob_transaction *transaction = NULL;
    CHECK(quell_blob_begin(store, &transaction) == 0 && transaction);
    return transaction;
}

static void commit(quell_blob_transaction *transaction) {
    CHECK(quell_blob_commit(transaction, NULL) == 0);
    CHECK(quell_blob_transaction_close(transaction) == 0);
}

static uint64_t size_of(quell_blob_store *store, const char *name, size_t name_bytes) {
    quell_blob_attributes attributes;
    CHECK(quell_blob_stat(store, name, name_bytes, &attributes) == 0 && attributes.modified_ns > 0);
    return attributes.size_bytes;
}

static void bytes_come_back(quell_blob_store *store) {
    char bytes[32];
    CHECK(quell_blob_create(store, NAME("a\0b")) == 0);
    REFUSED(EEXIST, quell_blob_create(store, NAME("a\0b")));
    CHECK(quell_blob_write(store, NAME("a\0b"), 6, "world", 5) == 0);
    CHECK(quell_blob_write(store, NAME("a\0b"), 0, "hello", 5) == 0);
    CHECK(quell_blob_read(store, NAME("a\0b"), 0, bytes, sizeof bytes) == 11);
    CHECK(memcmp(bytes, "hello\0world", 11) == 0);
    CHECK(quell_blob_read(store, NAME("a\0b"), 11, bytes, sizeof bytes) == 0);
    CHECK(quell_blob_read(store, NAME("a\0b"), 0, NULL, 0) == 0);
    CHECK(quell_blob_append(store, NAME("a\0b"), "!", 1) == 11);
    CHECK(quell_blob_resize(store, NAME("a\0b"), (uint64_t)1 << 40) == 0);
    CHECK(size_of(store, NAME("a\0b")) == (uint64_t)1 << 40);
    CHECK(quell_blob_resize(store, NAME("a\0b"), 4) == 0 && size_of(store, NAME("a\0b")) == 4);
    CHECK(quell_blob_delete(store, NAME("a\0b")) == 0);
    REFUSED(ENOENT, quell_blob_delete(store, NAME("a\0b")));
    REFUSED(ENOENT, quell_blob_read(store, NAME("a\0b"), 0, bytes, 1));
    REFUSED(ENOENT, quell_blob_write(store, NAME("a\0b"), 0, bytes, 1));
    REFUSED(ENOENT, quell_blob_append(store, NAME("a\0b"), bytes, 1));
    REFUSED(ENOENT, quell_blob_stat(store, NAME("a\0b"), &(quell_blob_attributes){0}));
    CHECK(quell_blob_collect(store) == 0);
}

static void large_data_comes_back(quell_blob_store *store) {
    size_t length = 3 << 20;
    char *data = malloc(length), *copy = calloc(1, length);
    CHECK(data && copy);
    for (size_t i = 0; i < length; i++)
        data[i] = (char)(i * 31 >> 7);
    CHECK(quell_blob_create(store, NAME("large")) == 0);
    CHECK(quell_blob_write(store, NAME("large"), 100, data, length) == 0);
    CHECK(quell_blob_read(store, NAME("large"), 100, copy, length) == (int64_t)length);
    CHECK(memcmp(data, copy, length) == 0);
    quell_blob_snapshot *snapshot;
    uint64_t position = 7;
    CHECK(quell_blob_resize(store, NAME("large"), (uint64_t)1 << 30) == 0);
    CHECK(quell_blob_snapshot_begin(store, &snapshot) == 0);
    CHECK(quell_blob_snapshot_next_data(snapshot, NAME("large"), 1000, &position) == 1 && position == 1000);
    CHECK(quell_blob_snapshot_next_data(snapshot, NAME("large"), 1 << 29, &position) == 0);
    CHECK(quell_blob_snapshot_close(snapshot) == 0);
    CHECK(quell_blob_delete(store, NAME("large")) == 0);
    free(data);
    free(copy);
}

static void snapshots_are_one_state(quell_blob_store *store) {
    quell_blob_snapshot *snapshot;
    quell_blob_names *names;
    quell_blob_name name;
    quell_blob_attributes attributes;
    char byte;
    CHECK(quell_blob_create(store, NAME("list/1")) == 0 && quell_blob_create(store, NAME("list/2")) == 0);
    CHECK(quell_blob_append(store, NAME("list/2"), "x", 1) == 0);
    CHECK(quell_blob_snapshot_begin(store, &snapshot) == 0 && quell_blob_snapshot_version(snapshot) > 0);
    CHECK(quell_blob_delete(store, NAME("list/1")) == 0 && quell_blob_write(store, NAME("list/2"), 0, "y", 1) == 0);
    CHECK(quell_blob_snapshot_list(snapshot, NAME("list/"), NULL, 0, 10, &names) == 0);
    CHECK(quell_blob_names_next(names, &name) == 1 && name.name_bytes == 6 && memcmp(name.name, "list/1", 6) == 0);
    CHECK(quell_blob_names_next(names, &name) == 1 && name.attributes.size_bytes == 1);
    CHECK(quell_blob_names_next(names, &name) == 0 && quell_blob_names_close(names) == 0);
    CHECK(quell_blob_snapshot_list(snapshot, NAME("list/"), NAME("list/1"), 1, &names) == 0);
    CHECK(quell_blob_names_next(names, &name) == 1 && memcmp(name.name, "list/2", 6) == 0);
    CHECK(quell_blob_names_close(names) == 0);
    CHECK(quell_blob_snapshot_read(snapshot, NAME("list/2"), 0, &byte, 1) == 1 && byte == 'x');
    CHECK(quell_blob_snapshot_stat(snapshot, NAME("list/1"), &attributes) == 0 && attributes.size_bytes == 0);
    REFUSED(ENOENT, quell_blob_snapshot_stat(snapshot, NAME("list/3"), &attributes));
    CHECK(quell_blob_snapshot_close(snapshot) == 0 && quell_blob_delete(store, NAME("list/2")) == 0);
}

static void transactions_take_effect_together(quell_blob_store *store) {
    char bytes[8];
    quell_blob_result *result;
    quell_blob_attributes attributes;
    quell_blob_names *names;
    quell_blob_name name;
    quell_blob_transaction *transaction = begin(store);
    CHECK(quell_blob_transaction_create(transaction, NAME("one"), 0) == 0);
    CHECK(quell_blob_transaction_create(transaction, NAME("two"), 1) == 0);
    CHECK(quell_blob_transaction_write(transaction, NAME("one"), 0, "abcd", 4) == 0);
    CHECK(quell_blob_transaction_append(transaction, NAME("one"), "ef", 2) == 0);
    CHECK(quell_blob_transaction_read(transaction, NAME("one"), 0, bytes, 8) == 6 && memcmp(bytes, "abcdef", 6) == 0);
    CHECK(quell_blob_transaction_resize(transaction, NAME("one"), 5) == 0);
    CHECK(quell_blob_transaction_stat(transaction, NAME("one"), &attributes) == 0 && attributes.size_bytes == 5);
    CHECK(quell_blob_transaction_list(transaction, NAME("o"), NULL, 0, 9, &names) == 0);
    CHECK(quell_blob_names_next(names, &name) == 1 && name.name_bytes == 3 && quell_blob_names_close(names) == 0);
    CHECK(quell_blob_transaction_version(transaction) >= 0);
    REFUSED(ENOENT, quell_blob_read(store, NAME("one"), 0, bytes, 1));
    CHECK(quell_blob_commit(transaction, &result) == 0 && quell_blob_result_version(result) > 0);
    CHECK(quell_blob_result_appended(result, 3) == 4);
    REFUSED(EINVAL, quell_blob_result_appended(result, 0));
    REFUSED(EINVAL, quell_blob_result_appended(result, 5));
    CHECK(quell_blob_result_close(result) == 0);
    REFUSED(EINVAL, quell_blob_commit(transaction, NULL));
    REFUSED(EINVAL, quell_blob_transaction_read(transaction, NAME("one"), 0, bytes, 1));
    CHECK(quell_blob_transaction_close(transaction) == 0);
    CHECK(quell_blob_read(store, NAME("one"), 0, bytes, 8) == 5);

    transaction = begin(store);
    CHECK(quell_blob_transaction_write(transaction, NAME("one"), 0, "z", 1) == 0);
    CHECK(quell_blob_transaction_close(transaction) == 0);
    CHECK(quell_blob_read(store, NAME("one"), 0, bytes, 1) == 1 && bytes[0] == 'a');

    transaction = begin(store);
    CHECK(quell_blob_transaction_delete(transaction, NAME("two")) == 0);
    CHECK(quell_blob_transaction_delete(transaction, NAME("none")) == 0);
    REFUSED(ENOENT, quell_blob_commit(transaction, NULL));
    CHECK(last_failure().operation == 1 && last_failure().reason == QUELL_BLOB_FAILED);
    CHECK(quell_blob_transaction_close(transaction) == 0 && size_of(store, NAME("two")) == 0);
    REFUSED(EEXIST, quell_blob_rename(store, NAME("one"), NAME("two")));
    transaction = begin(store);
    CHECK(quell_blob_transaction_rename(transaction, NAME("one"), NAME("three")) == 0);
    CHECK(quell_blob_transaction_read(transaction, NAME("three"), 0, bytes, 8) == 5);
    commit(transaction);
    const quell_blob_file_attributes file = {.mode = 0100640, .uid = 7, .gid = 8};
    const uint64_t time = 1000000007;
    quell_blob_attributes found;
    transaction = begin(store);
    CHECK(quell_blob_transaction_set_attributes(transaction, NAME("three"), &file, NULL) == 0);
    CHECK(quell_blob_transaction_set_attributes(transaction, NAME("three"), NULL, &time) == 0);
    commit(transaction);
    CHECK(quell_blob_stat(store, NAME("three"), &found) == 0 && found.modified_ns == time);
    CHECK(quell_blob_rename(store, NAME("three"), NAME("four")) == 0 && size_of(store, NAME("four")) == 5);
    CHECK(quell_blob_delete(store, NAME("four")) == 0 && quell_blob_delete(store, NAME("two")) == 0);
}

static void conflicts_name_blobs_and_ranges(quell_blob_store *store) {
    char bytes[8];
    const quell_blob_conflict *conflicts;
    CHECK(quell_blob_create(store, NAME("shared")) == 0);
    CHECK(quell_blob_write(store, NAME("shared"), 0, "0123456789", 10) == 0);
    quell_blob_transaction *transaction = begin(store);
    CHECK(quell_blob_transaction_read(transaction, NAME("shared"), 2, bytes, 4) == 4);
    CHECK(quell_blob_transaction_write(transaction, NAME("shared"), 8, "x", 1) == 0);
    CHECK(quell_blob_write(store, NAME("shared"), 3, "y", 1) == 0);
    REFUSED(ECANCELED, quell_blob_commit(transaction, NULL));
    quell_blob_failure failure = last_failure();
    CHECK(failure.reason == QUELL_BLOB_CONFLICT && failure.is_repeatable == 1 && failure.operation == -1);
    CHECK(strstr(quell_blob_last_error(), "shared") != NULL);
    CHECK(quell_blob_last_conflicts(&conflicts) == 1);
    CHECK(conflicts[0].name_bytes == 6 && memcmp(conflicts[0].name, "shared", 6) == 0);
    CHECK(conflicts[0].read.kind == QUELL_BLOB_RANGE && conflicts[0].read.start == 2 && conflicts[0].read.end == 6);
    CHECK(conflicts[0].changed.kind == QUELL_BLOB_RANGE && conflicts[0].changed.start <= 3);
    CHECK(conflicts[0].changed.end >= 4);
    CHECK(quell_blob_transaction_close(transaction) == 0);
    /* A range that was not read does not conflict. */
    transaction = begin(store);
    CHECK(quell_blob_transaction_read(transaction, NAME("shared"), 0, bytes, 1) == 1);
    CHECK(quell_blob_transaction_write(transaction, NAME("shared"), 9, "x", 1) == 0);
    CHECK(quell_blob_write(store, NAME("shared"), 5, "y", 1) == 0);
    commit(transaction);
    REFUSED(ENOENT, quell_blob_delete(store, NAME("none")));
    CHECK(quell_blob_last_conflicts(&conflicts) == 0 && last_failure().reason == QUELL_BLOB_FAILED);
    CHECK(quell_blob_delete(store, NAME("shared")) == 0);
}

static quell_blob_transform transform(uint32_t kind, uint32_t cell, const void *operand, size_t operand_bytes) {
    quell_blob_transform transform = {.kind = kind, .cell = cell, .count = 1};
    transform.operands = operand;
    transform.operands_bytes = operand_bytes;
    return transform;
}

/* Applies a transform to a number, and returns whether the number is the expected one. */
static int gives(quell_blob_store *store, uint32_t kind, uint32_t cell, const void *first, const void *operand,
                 const void *expected, size_t length) {
    char found[8], before[8];
    quell_blob_transform applied = transform(kind, cell, operand, length);
    applied.overflow = QUELL_BLOB_SATURATE;
    applied.returns_before = 1;
    if (kind == QUELL_BLOB_COMPARE_AND_SET) {
        applied.expected = first;
        applied.expected_bytes = length;
    }
    CHECK(quell_blob_write(store, NAME("number"), 3, first, length) == 0);
    REFUSED(ERANGE, quell_blob_apply(store, NAME("number"), 3, &applied, before, length - 1));
    CHECK(quell_blob_apply(store, NAME("number"), 3, &applied, before, sizeof before) == (int64_t)length);
    CHECK(memcmp(before, first, length) == 0);
    CHECK(quell_blob_read(store, NAME("number"), 3, found, length) == (int64_t)length);
    return memcmp(found, expected, length) == 0;
}

#define GIVES(type, cell, kind, first, operand, expected)                                                              \
    CHECK(gives(store, kind, cell, &(type){first}, &(type){operand}, &(type){expected}, sizeof(type)))
/* The kinds that all types have. */
#define COMMON(type, cell)                                                                                             \
    GIVES(type, cell, QUELL_BLOB_ADD, 5, 7, 12);                                                                       \
    GIVES(type, cell, QUELL_BLOB_MULTIPLY, 5, 7, 35);                                                                  \
    GIVES(type, cell, QUELL_BLOB_MIN, 5, 7, 5);                                                                        \
    GIVES(type, cell, QUELL_BLOB_MAX, 5, 7, 7);                                                                        \
    GIVES(type, cell, QUELL_BLOB_COMPARE_AND_SET, 5, 7, 7)
#define INTEGERS(type, cell)                                                                                           \
    COMMON(type, cell);                                                                                                \
    GIVES(type, cell, QUELL_BLOB_AND, 12, 10, 8);                                                                      \
    GIVES(type, cell, QUELL_BLOB_OR, 12, 10, 14);                                                                      \
    GIVES(type, cell, QUELL_BLOB_XOR, 12, 10, 6)

static void transforms_are_applied(quell_blob_store *store) {
    CHECK(quell_blob_create(store, NAME("number")) == 0);
    INTEGERS(uint8_t, QUELL_BLOB_U8);
    INTEGERS(uint16_t, QUELL_BLOB_U16);
    INTEGERS(uint32_t, QUELL_BLOB_U32);
    INTEGERS(uint64_t, QUELL_BLOB_U64);
    INTEGERS(int8_t, QUELL_BLOB_I8);
    INTEGERS(int16_t, QUELL_BLOB_I16);
    INTEGERS(int32_t, QUELL_BLOB_I32);
    INTEGERS(int64_t, QUELL_BLOB_I64);
    COMMON(float, QUELL_BLOB_F32);
    COMMON(double, QUELL_BLOB_F64);
    GIVES(uint8_t, QUELL_BLOB_U8, QUELL_BLOB_ADD, 250, 10, 255);
    GIVES(int8_t, QUELL_BLOB_I8, QUELL_BLOB_ADD, -100, -100, -128);

    uint8_t bytes[4] = {250, 1, 2, 3}, ten = 10;
    quell_blob_transform add = transform(QUELL_BLOB_ADD, QUELL_BLOB_U8, &ten, 1);
    CHECK(quell_blob_write(store, NAME("number"), 0, bytes, 4) == 0);
    add.count = 4;
    add.overflow = QUELL_BLOB_CHECK;
    REFUSED(EINVAL, quell_blob_apply(store, NAME("number"), 0, &add, NULL, 0));
    CHECK(last_failure().reason == QUELL_BLOB_OVERFLOW && last_failure().cell == 0);
    add.overflow = QUELL_BLOB_WRAP;
    CHECK(quell_blob_apply(store, NAME("number"), 0, &add, NULL, 0) == 0);
    CHECK(quell_blob_read(store, NAME("number"), 0, bytes, 4) == 4);
    CHECK(bytes[0] == 4 && bytes[1] == 11 && bytes[2] == 12 && bytes[3] == 13);
    uint8_t several[4] = {1, 2, 3, 4};
    quell_blob_transform vector = transform(QUELL_BLOB_MULTIPLY, QUELL_BLOB_U8, several, 4);
    vector.count = 4;
    CHECK(quell_blob_apply(store, NAME("number"), 0, &vector, NULL, 0) == 0);
    CHECK(quell_blob_read(store, NAME("number"), 0, bytes, 4) == 4 && bytes[1] == 22 && bytes[3] == 52);

    quell_blob_transform set = transform(QUELL_BLOB_COMPARE_AND_SET, QUELL_BLOB_U8, &ten, 1);
    set.expected = &ten;
    set.expected_bytes = 1;
    REFUSED(ECANCELED, quell_blob_apply(store, NAME("number"), 1, &set, NULL, 0));
    quell_blob_failure failure = last_failure();
    CHECK(failure.reason == QUELL_BLOB_DIFFERENT && failure.is_repeatable == 0);
    CHECK(failure.operation == 0 && failure.found_bytes == 1 && failure.found[0] == 22);

    add.kind = 99;
    REFUSED(EINVAL, quell_blob_apply(store, NAME("number"), 0, &add, NULL, 0));
    add.kind = QUELL_BLOB_AND;
    add.cell = QUELL_BLOB_F64;
    REFUSED(EINVAL, quell_blob_apply(store, NAME("number"), 0, &add, NULL, 0));
    quell_blob_transaction *transaction = begin(store);
    quell_blob_result *result;
    vector.returns_before = 1;
    CHECK(quell_blob_transaction_apply(transaction, NAME("number"), 0, &vector) == 0);
    CHECK(quell_blob_commit(transaction, &result) == 0);
    CHECK(quell_blob_result_before(result, 0, bytes, 4) == 4 && bytes[3] == 52);
    REFUSED(ERANGE, quell_blob_result_before(result, 0, bytes, 3));
    CHECK(quell_blob_result_close(result) == 0 && quell_blob_transaction_close(transaction) == 0);
    CHECK(quell_blob_delete(store, NAME("number")) == 0);
}

enum { THREADS = 8, ADDITIONS = 200, INCREMENTS = 25 };

static void *add_and_increment(void *context) {
    quell_blob_store *store = context;
    int64_t one = 1;
    quell_blob_transform add = transform(QUELL_BLOB_ADD, QUELL_BLOB_I64, &one, sizeof one);
    for (int i = 0; i < ADDITIONS; i++)
        CHECK(quell_blob_apply(store, NAME("sum"), 0, &add, NULL, 0) == 0);
    return NULL;
}

static int increment(const quell_blob_transaction *transaction, void *context) {
    int64_t number;
    int64_t count = quell_blob_transaction_read(transaction, NAME("sum"), 8, &number, sizeof number);
    (void)context;
    if (count < 0)
        return (int)count;
    number += 1;
    return quell_blob_transaction_write(transaction, NAME("sum"), 8, &number, sizeof number);
}

static void *increment_often(void *context) {
    quell_blob_retries retries = {.attempts_max = 10000, .delay_max_us = 20000};
    for (int i = 0; i < INCREMENTS; i++)
        CHECK(quell_blob_transact(context, &retries, increment, NULL, NULL) == 0);
    return NULL;
}

static void in_threads(void *(*work)(void *), quell_blob_store *store) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, store) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static int ends(const quell_blob_transaction *transaction, void *context) {
    CHECK(quell_blob_transaction_delete(transaction, NAME("sum")) == 0);
    return *(int *)context;
}

static void threads_lose_no_update(quell_blob_store *store) {
    int64_t numbers[2];
    CHECK(quell_blob_create(store, NAME("sum")) == 0 && quell_blob_resize(store, NAME("sum"), 16) == 0);
    in_threads(add_and_increment, store);
    in_threads(increment_often, store);
    CHECK(quell_blob_read(store, NAME("sum"), 0, numbers, 16) == 16);
    CHECK(numbers[0] == THREADS * ADDITIONS && numbers[1] == THREADS * INCREMENTS);
    CHECK(quell_blob_transact(store, NULL, ends, &(int){7}, NULL) == 7);
    REFUSED(EPIPE, quell_blob_transact(store, NULL, ends, &(int){-EPIPE}, NULL));
    quell_blob_retries twice = {.attempts_max = 2, .first_delay_us = 1};
    REFUSED(ECANCELED, quell_blob_transact(store, &twice, ends, &(int){-ECANCELED}, NULL));
    quell_blob_result *result;
    CHECK(quell_blob_transact(store, NULL, increment, NULL, &result) == 0 && quell_blob_result_version(result) > 0);
    CHECK(quell_blob_result_close(result) == 0);
    CHECK(quell_blob_delete(store, NAME("sum")) == 0);
}

enum { SUBMITTED = 4000 };

struct submitted {
    quell_blob_store *store;
    pthread_t thread;
    int is_called, committed, failed, read, again;
    char bytes[SUBMITTED];
};

static void note_thread(struct submitted *all) {
    /* One thread calls all callbacks, so that no lock is needed. */
    if (!all->is_called)
        all->thread = pthread_self();
    all->is_called = 1;
    CHECK(pthread_equal(all->thread, pthread_self()));
}

static void was_committed(void *context, int status, const quell_blob_result *result) {
    struct submitted *all = context;
    note_thread(all);
    CHECK(status == 0 && quell_blob_result_appended(result, 0) >= 0);
    all->committed++;
}

static void has_failed(void *context, int status, const quell_blob_result *result) {
    struct submitted *all = context;
    note_thread(all);
    CHECK(status == -ENOENT && result == NULL && last_failure().operation == 0);
    CHECK(strlen(quell_blob_last_error()) > 0);
    REFUSED(EDEADLK, quell_blob_drain(all->store));
    REFUSED(EDEADLK, quell_blob_close(all->store));
    all->failed++;
}

static void was_read(void *context, int64_t count) {
    struct submitted *all = context;
    note_thread(all);
    CHECK(count == 1);
    /* A callback submits without waiting. */
    if (all->read++ % 4 == 0) {
        static char byte;
        CHECK(quell_blob_submit_read(all->store, NAME("log"), 0, &byte, 1, was_read, context) == 0);
        all->again++;
    }
}

static void read_has_failed(void *context, int64_t count) {
    struct submitted *all = context;
    CHECK(count == -ENOENT);
    all->failed++;
}

static void submit_appends(quell_blob_store *store, struct submitted *all) {
    for (int i = 0; i < SUBMITTED; i++) {
        quell_blob_transaction *batch;
        CHECK(quell_blob_batch(store, &batch) == 0);
        CHECK(quell_blob_transaction_append(batch, NAME("log"), "x", 1) == 0);
        CHECK(quell_blob_submit(batch, was_committed, all) == 0);
        REFUSED(EINVAL, quell_blob_submit(batch, was_committed, all));
        CHECK(quell_blob_transaction_close(batch) == 0);
    }
}

static void callbacks_get_all_results(quell_blob_store *store) {
    struct submitted *all = calloc(1, sizeof *all);
    CHECK(all != NULL);
    all->store = store;
    CHECK(quell_blob_create(store, NAME("log")) == 0);
    submit_appends(store, all);
    CHECK(quell_blob_drain(store) == 0 && all->committed == SUBMITTED);
    CHECK(size_of(store, NAME("log")) == SUBMITTED);
    for (int i = 0; i < SUBMITTED; i++)
        CHECK(quell_blob_submit_read(store, NAME("log"), (uint64_t)i, &all->bytes[i], 1, was_read, all) == 0);
    CHECK(quell_blob_drain(store) == 0 && all->read == SUBMITTED + all->again && all->again > SUBMITTED / 4);
    for (int i = 0; i < SUBMITTED; i++)
        CHECK(all->bytes[i] == 'x');
    quell_blob_transaction *batch;
    CHECK(quell_blob_batch(store, &batch) == 0);
    CHECK(quell_blob_transaction_delete(batch, NAME("none")) == 0);
    REFUSED(EINVAL, quell_blob_transaction_read(batch, NAME("log"), 0, all->bytes, 1));
    REFUSED(EINVAL, quell_blob_submit(batch, NULL, all));
    CHECK(quell_blob_submit(batch, has_failed, all) == 0 && quell_blob_transaction_close(batch) == 0);
    CHECK(quell_blob_submit_read(store, NAME("none"), 0, all->bytes, 1, read_has_failed, all) == 0);
    REFUSED(EINVAL, quell_blob_submit_read(store, NAME("log"), 0, all->bytes, (size_t)65 << 20, was_read, all));
    CHECK(quell_blob_drain(store) == 0 && all->failed == 2);
    /* A transaction that has read is submitted as well. */
    quell_blob_transaction *transaction = begin(store);
    CHECK(quell_blob_transaction_read(transaction, NAME("log"), 0, all->bytes, 1) == 1);
    CHECK(quell_blob_transaction_append(transaction, NAME("log"), "y", 1) == 0);
    CHECK(quell_blob_submit(transaction, was_committed, all) == 0 && quell_blob_transaction_close(transaction) == 0);
    CHECK(quell_blob_drain(store) == 0 && all->committed == SUBMITTED + 1);
    CHECK(quell_blob_delete(store, NAME("log")) == 0);
    free(all);
}

static void bad_arguments_are_refused(quell_blob_store *store, const char *location) {
    static char name[1025];
    memset(name, 'n', sizeof name);
    quell_blob_store *none = (quell_blob_store *)&name;
    REFUSED(EINVAL, quell_blob_open(NULL, NULL, &none));
    CHECK(none == NULL);
    REFUSED(EINVAL, quell_blob_open(location, NULL, NULL));
    REFUSED(EINVAL, quell_blob_open("http://host", NULL, &none));
    REFUSED(ENOENT, quell_blob_open("dir:/none/store", NULL, &none));
    quell_blob_options must_exist = {.must_exist = 1};
    REFUSED(ENOENT, quell_blob_open("no-store", &must_exist, &none));
    REFUSED(EINVAL, quell_blob_create(NULL, NAME("a")));
    REFUSED(EINVAL, quell_blob_create(store, NULL, 1));
    REFUSED(EINVAL, quell_blob_create(store, NULL, 0));
    REFUSED(ENAMETOOLONG, quell_blob_create(store, name, sizeof name));
    CHECK(quell_blob_create(store, name, sizeof name - 1) == 0);
    CHECK(quell_blob_delete(store, name, sizeof name - 1) == 0);
    REFUSED(EINVAL, quell_blob_read(store, NAME("a"), 0, NULL, 1));
    REFUSED(EINVAL, quell_blob_read(store, NAME("a"), 0, name, SIZE_MAX));
    REFUSED(EINVAL, quell_blob_write(store, NAME("a"), 0, NULL, 1));
    REFUSED(EINVAL, quell_blob_apply(store, NAME("a"), 0, NULL, NULL, 0));
    REFUSED(EINVAL, quell_blob_begin(store, NULL));
    REFUSED(EINVAL, quell_blob_transact(store, NULL, NULL, NULL, NULL));
    REFUSED(EINVAL, quell_blob_result_version(NULL));
    CHECK(quell_blob_close(NULL) == 0 && quell_blob_transaction_close(NULL) == 0);
    CHECK(quell_blob_snapshot_close(NULL) == 0 && quell_blob_result_close(NULL) == 0);
    CHECK(quell_blob_names_close(NULL) == 0);
    CHECK(quell_blob_last_failure(NULL) == -EINVAL && quell_blob_last_conflicts(NULL) == -EINVAL);
}

static void a_child_cannot_use_the_handles(quell_blob_store *store) {
    quell_blob_transaction *transaction = begin(store);
    quell_blob_snapshot *snapshot;
    CHECK(quell_blob_snapshot_begin(store, &snapshot) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        REFUSED(EBADF, quell_blob_create(store, NAME("child")));
        REFUSED(EBADF, quell_blob_commit(transaction, NULL));
        REFUSED(EBADF, quell_blob_snapshot_read(snapshot, NAME("child"), 0, &byte, 1));
        CHECK(quell_blob_transaction_close(transaction) == 0 && quell_blob_snapshot_close(snapshot) == 0);
        CHECK(quell_blob_close(store) == 0);
        /* valgrind would report memory that only other threads of the parent have pointers to. */
        execlp("true", "true", (char *)NULL);
        _exit(1);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(quell_blob_create(store, NAME("parent")) == 0 && quell_blob_delete(store, NAME("parent")) == 0);
    CHECK(quell_blob_snapshot_close(snapshot) == 0);
    commit(transaction);
}

static void a_store_outlives_its_transactions(const char *location) {
    quell_blob_store *store;
    quell_blob_options options = {.in_flight_max = 7};
    CHECK(quell_blob_open(location, &options, &store) == 0);
    quell_blob_transaction *transaction = begin(store), *batch;
    struct submitted *all = calloc(1, sizeof *all);
    CHECK(all != NULL && quell_blob_create(store, NAME("log")) == 0);
    submit_appends(store, all);
    CHECK(quell_blob_batch(store, &batch) == 0 && quell_blob_close(store) == 0 && all->committed == SUBMITTED);
    REFUSED(EBADF, quell_blob_submit(batch, was_committed, all));
    CHECK(quell_blob_transaction_delete(transaction, NAME("log")) == 0);
    commit(transaction);
    CHECK(quell_blob_transaction_close(batch) == 0);
    free(all);
    /* Nothing keeps the store open. */
    CHECK(quell_blob_open(location, NULL, &store) == 0 && quell_blob_close(store) == 0);
}

int main(int argc, char **argv) {
    quell_blob_store *store;
    CHECK(argc == 2);
    CHECK(quell_blob_open(argv[1], NULL, &store) == 0);
    bytes_come_back(store);
    large_data_comes_back(store);
    snapshots_are_one_state(store);
    transactions_take_effect_together(store);
    conflicts_name_blobs_and_ranges(store);
    transforms_are_applied(store);
    threads_lose_no_update(store);
    callbacks_get_all_results(store);
    bad_arguments_are_refused(store, argv[1]);
    a_child_cannot_use_the_handles(store);
    CHECK(quell_blob_close(store) == 0);
    a_store_outlives_its_transactions(argv[1]);
    return 0;
}
