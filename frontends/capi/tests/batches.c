/* Tests batches: batches STORE, where STORE is an empty store for batches. Prints a promise of the
 * header that does not hold. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "quell.h"

#define CHECK(what) check((what), #what, __LINE__)
#define REFUSED(number, what) check((what) == -(number) && quell_last_error()[0] != 0, #what, __LINE__)

static void check(int kept, const char *what, int line) {
    if (!kept) {
        fprintf(stderr, "batches.c:%d: not so: %s (last error: %s)\n", line, what, quell_last_error());
        exit(1);
    }
}

static quell_store *begin(const char *store, const char *directory, int is_atomic) {
    quell_batch_options options = {.directory = directory, .name = "a test", .is_atomic = is_atomic};
    quell_store *batch = NULL;
    CHECK(quell_batch_begin(store, &options, &batch) == 0 && batch);
    return batch;
}

static void write_file(quell_store *batch, const char *path, const char *text) {
    quell_file *file = NULL;
    CHECK(quell_open(batch, path, O_WRONLY | O_CREAT | O_TRUNC, 0644, &file) == 0);
    CHECK(quell_pwrite(file, text, strlen(text), 0) == (int64_t)strlen(text) && quell_close(file) == 0);
}

static uint64_t commit(quell_store *batch) {
    quell_batch_result result = {0, 0, 0};
    CHECK(quell_batch_commit(batch, &result) == 0);
    CHECK(result.number == (uint64_t)quell_batch_number(batch) && result.conflicts == 0);
    CHECK(quell_store_close(batch) == 0);
    return result.entries;
}

static void a_commit_publishes_many_files(const char *store) {
    enum { FILES = 1000 };
    quell_store *batch = NULL;
    char path[64], read[16];
    CHECK(quell_batch_begin(store, NULL, &batch) == 0);
    CHECK(quell_mkdir(batch, "many", 0755) == 0);
    for (int i = 0; i < FILES; i++) {
        snprintf(path, sizeof path, "many/%d", i);
        write_file(batch, path, path);
    }
    CHECK(commit(batch) == FILES + 1);
    batch = begin(store, "many", 0);
    quell_file *file = NULL;
    CHECK(quell_open(batch, "999", O_RDONLY, 0, &file) == 0);
    CHECK(quell_pread(file, read, sizeof read, 0) == 8 && memcmp(read, "many/999", 8) == 0);
    CHECK(quell_close(file) == 0 && commit(batch) == 0);
}

static void a_batch_that_is_not_committed_is_aborted(const char *store) {
    quell_store *batch = begin(store, NULL, 1);
    quell_file *file = NULL;
    quell_attributes attributes;
    CHECK(quell_open(batch, "open", O_WRONLY | O_CREAT, 0644, &file) == 0);
    REFUSED(EBUSY, quell_batch_commit(batch, NULL));
    CHECK(quell_pwrite(file, "x", 1, 0) == 1 && quell_batch_abort(batch) == 0);
    REFUSED(EBADF, quell_stat(batch, "open", &attributes));
    REFUSED(EBADF, quell_batch_commit(batch, NULL));
    CHECK(quell_close(file) == 0 && quell_store_close(batch) == 0);
    batch = begin(store, "/", 0);
    write_file(batch, "closed", "x");
    CHECK(quell_store_close(batch) == 0);
    batch = begin(store, "", 0);
    REFUSED(ENOENT, quell_stat(batch, "open", &attributes));
    REFUSED(ENOENT, quell_stat(batch, "closed", &attributes));
    CHECK(quell_batch_commit(batch, NULL) == 0 && quell_store_close(batch) == 0);
}

static void wrong_calls_are_refused(const char *store) {
    quell_store *batch = NULL, *second = (quell_store *)store;
    quell_batch_options missing = {.directory = "none"}, not_text = {.name = "\xff"};
    REFUSED(ENOENT, quell_batch_begin(store, &missing, &batch));
    REFUSED(EINVAL, quell_batch_begin(store, &not_text, &batch));
    REFUSED(EINVAL, quell_batch_begin(NULL, NULL, &batch));
    REFUSED(EINVAL, quell_batch_begin(store, NULL, NULL));
    REFUSED(EINVAL, quell_batch_commit(NULL, NULL));
    batch = begin(store, NULL, 0);
    REFUSED(EBUSY, quell_batch_begin(store, NULL, &second));
    CHECK(second == NULL);
    REFUSED(EOPNOTSUPP, quell_index_logs(batch, "many/0"));
    CHECK(commit(batch) == 0);
    const char *path = ".";
    CHECK(quell_store_open(&path, 1, NULL, &second) == 0);
    REFUSED(EOPNOTSUPP, quell_batch_commit(second, NULL));
    CHECK(quell_store_close(second) == 0);
}

static void changes_without_permission_are_refused(const char *store) {
    quell_store *batch = begin(store, NULL, 0);
    CHECK(quell_mkdir(batch, "read only", 0555) == 0);
    REFUSED(EACCES, quell_mkdir(batch, "read only/new", 0755));
    CHECK(commit(batch) == 1);
}

static void a_child_cannot_use_the_batch(const char *store) {
    quell_store *batch = begin(store, NULL, 0);
    write_file(batch, "of the parent", "x");
    pid_t child = fork();
    if (child == 0) {
        quell_attributes attributes;
        REFUSED(EBADF, quell_stat(batch, "of the parent", &attributes));
        REFUSED(EBADF, quell_batch_commit(batch, NULL));
        CHECK(quell_store_close(batch) == 0);
        _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(commit(batch) == 1);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    a_commit_publishes_many_files(argv[1]);
    a_batch_that_is_not_committed_is_aborted(argv[1]);
    wrong_calls_are_refused(argv[1]);
    if (geteuid() != 0)
        changes_without_permission_are_refused(argv[1]);
    a_child_cannot_use_the_batch(argv[1]);
    return 0;
}
