/* Tests the promises of the header: promises STORE, where STORE is an empty directory. Prints a
 * promise that does not hold. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "quell.h"

#define CHECK(what) check((what), #what, __LINE__)
#define REFUSED(number, what) refused((number), (what), #what, __LINE__)

static void check(int kept, const char *what, int line) {
    if (!kept) {
        fprintf(stderr, "promises.c:%d: not so: %s (last error: %s)\n", line, what, quell_last_error());
        exit(1);
    }
}

static void refused(int number, int64_t answer, const char *what, int line) {
    if (answer != -number || quell_last_error()[0] == 0) {
        fprintf(stderr, "promises.c:%d: %s: %lld instead of %d (last error: %s)\n", line, what, (long long)answer,
                -number, quell_last_error());
        exit(1);
    }
}

static quell_store *open_store(const char *path) {
    quell_choices choices = {.buffer_bytes = 1 << 16};
    quell_store *store = NULL;
    CHECK(quell_store_open(&path, 1, &choices, &store) == 0 && store);
    return store;
}

static quell_file *open_file(quell_store *store, const char *path, int flags) {
    quell_file *file = NULL;
    CHECK(quell_open(store, path, flags, 0640, &file) == 0 && file);
    return file;
}

static uint64_t size_of(quell_store *store, const char *path) {
    quell_attributes attributes;
    CHECK(quell_stat(store, path, &attributes) == 0);
    return attributes.size_bytes;
}

static void bytes_come_back(quell_store *store) {
    char bytes[16];
    quell_file *file = open_file(store, "bytes", O_RDWR | O_CREAT | O_EXCL);
    CHECK(quell_pwrite(file, "world", 5, 6) == 5);
    CHECK(quell_pwrite(file, "hello", 5, 0) == 5);
    CHECK(quell_pread(file, bytes, sizeof bytes, 0) == 11);
    CHECK(memcmp(bytes, "hello\0world", 11) == 0);
    CHECK(quell_pread(file, bytes, sizeof bytes, 11) == 0);
    CHECK(quell_append(file, "!", 1) == 11);
    CHECK(quell_pwrite(file, NULL, 0, 3) == 0);
    CHECK(quell_pread(file, NULL, 0, 3) == 0);

    quell_attributes attributes;
    CHECK(quell_file_stat(file, &attributes) == 0);
    CHECK(attributes.size_bytes == 12 && S_ISREG(attributes.mode) && (attributes.mode & 0777) == 0640);
    CHECK(attributes.uid == geteuid() && attributes.links == 1 && attributes.modified_s > 0);
    CHECK(quell_file_truncate(file, 4) == 0);
    CHECK(quell_pread(file, bytes, sizeof bytes, 0) == 4 && memcmp(bytes, "hell", 4) == 0);
    CHECK(quell_publish(file) == 0 && quell_sync(file) == 0 && quell_close(file) == 0);
    CHECK(size_of(store, "bytes") == 4);
    CHECK(quell_truncate(store, "/bytes", 6) == 0 && size_of(store, "bytes") == 6);
    CHECK(quell_close(open_file(store, "bytes", O_WRONLY | O_TRUNC)) == 0 && size_of(store, "bytes") == 0);
}

static void pieces_go_in_one_call(quell_store *store) {
    char a[3], b[4], c[5];
    quell_file *file = open_file(store, "pieces", O_RDWR | O_CREAT);
    quell_write_piece out[] = {{0, "aaaa", 4}, {10, "bbbb", 4}, {2, "cccc", 4}, {7, NULL, 0}};
    CHECK(quell_write_pieces(file, out, 4) == 12);
    CHECK(quell_write_pieces(file, NULL, 0) == 0);
    quell_read_piece in[] = {{1, a, 3, 99}, {12, b, 4, 99}, {4, c, 5, 99}, {100, c, 0, 99}};
    CHECK(quell_read_pieces(file, in, 4) == 3 + 2 + 5);
    CHECK(in[0].received == 3 && memcmp(a, "acc", 3) == 0);
    CHECK(in[1].received == 2 && memcmp(b, "bb", 2) == 0);
    CHECK(in[2].received == 5 && memcmp(c, "cc\0\0\0", 5) == 0 && in[3].received == 0);
    CHECK(quell_close(file) == 0);
}

static void names_are_a_tree(quell_store *store) {
    CHECK(quell_mkdir(store, "dir", 0755) == 0 && quell_mkdir(store, "dir/below", 0755) == 0);
    CHECK(quell_close(open_file(store, "dir/one", O_WRONLY | O_CREAT)) == 0);
    CHECK(quell_rename(store, "dir/one", "dir/below/../two") == 0);
    quell_dir *dir;
    quell_entry entry;
    int files = 0, dirs = 0;
    CHECK(quell_dir_open(store, "dir", &dir) == 0);
    while (quell_dir_next(dir, &entry) == 1) {
        if (S_ISDIR(entry.mode))
            dirs += strcmp(entry.name, "below") == 0;
        else
            files += strcmp(entry.name, "two") == 0;
    }
    CHECK(files == 1 && dirs == 1 && quell_dir_next(dir, &entry) == 0 && quell_dir_close(dir) == 0);
    REFUSED(ENOTEMPTY, quell_rmdir(store, "dir"));
    REFUSED(EISDIR, quell_remove(store, "dir"));
    REFUSED(ENOTDIR, quell_rmdir(store, "dir/two"));
    CHECK(quell_remove(store, "dir/two") == 0 && quell_rmdir(store, "dir/below") == 0 && quell_rmdir(store, "dir") == 0);
    REFUSED(ENOENT, quell_stat(store, "dir", &(quell_attributes){0}));
}

static void a_removed_file_stays_until_it_is_closed(quell_store *store) {
    char bytes[4];
    quell_file *file = open_file(store, "removed", O_RDWR | O_CREAT);
    CHECK(quell_pwrite(file, "kept", 4, 0) == 4 && quell_remove(store, "removed") == 0);
    CHECK(quell_pread(file, bytes, 4, 0) == 4 && memcmp(bytes, "kept", 4) == 0);
    quell_attributes attributes;
    CHECK(quell_file_stat(file, &attributes) == 0 && attributes.links == 0);
    CHECK(quell_close(file) == 0);
}

static void what_is_wrong_is_refused(quell_store *store, const char *path) {
    char byte;
    quell_file *file = (quell_file *)&byte;
    quell_store *none = (quell_store *)&byte;
    const char *nowhere = "/nowhere/at/all";
    REFUSED(ENOENT, quell_store_open(&nowhere, 1, NULL, &none));
    CHECK(none == NULL);
    REFUSED(EINVAL, quell_store_open(NULL, 1, NULL, &none));
    REFUSED(EINVAL, quell_store_open(&path, 0, NULL, &none));
    REFUSED(EINVAL, quell_store_open(&path, 1, NULL, NULL));
    REFUSED(ENOENT, quell_open(store, "no such file", O_RDWR, 0, &file));
    CHECK(file == NULL && strstr(quell_last_error(), "no such"));
    REFUSED(EINVAL, quell_open(store, "file", O_RDWR | O_CREAT | O_APPEND, 0644, &file));
    REFUSED(EINVAL, quell_open(store, NULL, O_RDWR, 0, &file));
    REFUSED(EINVAL, quell_open(NULL, "file", O_RDWR, 0, &file));
    REFUSED(EINVAL, quell_open(store, "file", O_RDWR | O_CREAT, 0644, NULL));
    REFUSED(EISDIR, quell_open(store, "", O_RDONLY, 0, &file));
    REFUSED(EEXIST, quell_open(store, "bytes", O_RDWR | O_CREAT | O_EXCL, 0644, &file));
    REFUSED(ENOTDIR, quell_open(store, "bytes/below", O_RDWR | O_CREAT, 0644, &file));
    REFUSED(EEXIST, quell_mkdir(store, "bytes", 0755));
    REFUSED(EINVAL, quell_pread(NULL, &byte, 1, 0));
    REFUSED(EINVAL, quell_stat(store, "bytes", NULL));
    REFUSED(EINVAL, quell_dir_next(NULL, NULL));
    CHECK(quell_close(NULL) == 0 && quell_store_close(NULL) == 0 && quell_dir_close(NULL) == 0);

    file = open_file(store, "bytes", O_RDONLY);
    REFUSED(EBADF, quell_pwrite(file, &byte, 1, 0));
    REFUSED(EBADF, quell_append(file, &byte, 1));
    REFUSED(EBADF, quell_file_truncate(file, 0));
    REFUSED(EINVAL, quell_pread(file, NULL, 1, 0));
    REFUSED(EINVAL, quell_pread(file, &byte, (size_t)-1, 0));
    REFUSED(EINVAL, quell_read_pieces(file, NULL, 1));
    /* No object is this long, so the library accesses none of the bytes. */
    REFUSED(EINVAL, quell_pread(file, &byte, (size_t)PTRDIFF_MAX + 1, 0));
    REFUSED(EINVAL, quell_pwrite(file, &byte, SIZE_MAX, 0));
    REFUSED(EINVAL, quell_read_pieces(file, (quell_read_piece *)sizeof(void *), SIZE_MAX));
    quell_write_piece long_together[] = {{0, &byte, PTRDIFF_MAX}, {0, &byte, PTRDIFF_MAX}};
    REFUSED(EINVAL, quell_write_pieces(file, long_together, 2));
    CHECK(quell_close(file) == 0);
    file = open_file(store, "bytes", O_WRONLY);
    REFUSED(EBADF, quell_pread(file, &byte, 1, 0));
    REFUSED(EINVAL, quell_pwrite(file, &byte, 1, UINT64_MAX));
    CHECK(quell_close(file) == 0);
}

enum { THREADS = 4, ROUNDS = 50, STEP = 1000 };

struct share {
    quell_file *file;
    int number;
};

static void *write_share(void *given) {
    struct share *share = given;
    char bytes[STEP], back[STEP];
    memset(bytes, 'A' + share->number, sizeof bytes);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t offset = (uint64_t)(round * THREADS + share->number) * STEP;
        CHECK(quell_pwrite(share->file, bytes, sizeof bytes, offset) == STEP);
        CHECK(quell_pread(share->file, back, sizeof back, offset) == STEP && memcmp(bytes, back, STEP) == 0);
        REFUSED(EINVAL, quell_pread(share->file, NULL, 1, 0));
    }
    return NULL;
}

static void threads_share_a_handle(quell_store *store) {
    pthread_t threads[THREADS];
    struct share shares[THREADS];
    quell_file *file = open_file(store, "threads", O_RDWR | O_CREAT);
    for (int i = 0; i < THREADS; i++) {
        shares[i] = (struct share){file, i};
        CHECK(pthread_create(&threads[i], NULL, write_share, &shares[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int step = 0; step < THREADS * ROUNDS; step++) {
        char byte;
        CHECK(quell_pread(file, &byte, 1, (uint64_t)step * STEP) == 1 && byte == 'A' + step % THREADS);
    }
    CHECK(quell_close(file) == 0 && size_of(store, "threads") == (uint64_t)THREADS * ROUNDS * STEP);
}

static void wait_for(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void a_child_opens_its_own(quell_store *store, const char *path) {
    char bytes[8];
    quell_file *file = open_file(store, "forked", O_RDWR | O_CREAT);
    quell_file *removed = open_file(store, "forked away", O_RDWR | O_CREAT);
    CHECK(quell_pwrite(file, "parent", 6, 0) == 6 && quell_pwrite(removed, "parent", 6, 0) == 6);
    CHECK(quell_remove(store, "forked away") == 0);
    pid_t child = fork();
    if (child == 0) {
        REFUSED(EBADF, quell_pwrite(file, "child", 5, 0));
        REFUSED(EBADF, quell_pread(file, bytes, 1, 0));
        REFUSED(EBADF, quell_sync(file));
        REFUSED(EBADF, quell_file_truncate(file, 0));
        REFUSED(EBADF, quell_stat(store, "forked", &(quell_attributes){0}));
        CHECK(quell_close(file) == 0 && quell_close(removed) == 0 && quell_store_close(store) == 0);
        store = open_store(path);
        CHECK(size_of(store, "forked") == 0); /* the parent has not published its data */
        file = open_file(store, "forked", O_WRONLY);
        CHECK(quell_pwrite(file, "child", 5, 10) == 5 && quell_close(file) == 0 && quell_store_close(store) == 0);
        /* Success. The child does not exit, because valgrind would report its copies of the
         * parent's handles, which are never freed. */
        raise(SIGKILL);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK(quell_pread(file, bytes, 6, 0) == 6 && memcmp(bytes, "parent", 6) == 0);
    CHECK(quell_sync(file) == 0); /* the child's data becomes visible */
    CHECK(quell_pread(file, bytes, 8, 10) == 5 && memcmp(bytes, "child", 5) == 0);
    CHECK(quell_pread(removed, bytes, 8, 0) == 6 && memcmp(bytes, "parent", 6) == 0);
    CHECK(quell_close(file) == 0 && quell_close(removed) == 0 && size_of(store, "forked") == 15);
}

static void one_of_many_makes_a_file(const char *path) {
    enum { CHILDREN = 6 };
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        if ((children[i] = fork()) == 0) {
            quell_store *store = open_store(path);
            for (int round = 0; round < 10; round++) {
                char name[16], mine = (char)('0' + i);
                snprintf(name, sizeof name, "made %d", round);
                quell_file *file = open_file(store, name, O_RDWR | O_CREAT);
                CHECK(quell_pwrite(file, &mine, 1, i) == 1 && quell_close(file) == 0);
            }
            CHECK(quell_store_close(store) == 0);
            _exit(0);
        }
    }
    for (int i = 0; i < CHILDREN; i++)
        wait_for(children[i]);
    quell_store *store = open_store(path);
    for (int round = 0; round < 10; round++) {
        char name[16], bytes[CHILDREN + 1];
        snprintf(name, sizeof name, "made %d", round);
        quell_file *file = open_file(store, name, O_RDONLY);
        CHECK(quell_pread(file, bytes, sizeof bytes, 0) == CHILDREN && memcmp(bytes, "012345", CHILDREN) == 0);
        CHECK(quell_close(file) == 0);
    }
    CHECK(quell_store_close(store) == 0);
}

static void locks_hold_between_handles_and_processes(const char *path) {
    /* Static, so that valgrind finds no leak in the child, which does not use them. */
    static quell_store *store;
    static quell_file *file, *other, *reader;
    char byte = 0;
    store = open_store(path);
    file = open_file(store, "locked", O_RDWR | O_CREAT);
    other = open_file(store, "locked", O_RDWR);
    reader = open_file(store, "locked", O_RDONLY);
    CHECK(quell_lock(file, 10, 10, 1) == 0 && quell_try_lock(other, 19, 1, 0) == 0);
    CHECK(quell_try_lock(other, 20, 0, 1) == 1 && quell_try_lock(reader, 0, 10, 0) == 1);
    REFUSED(EINVAL, quell_try_lock(file, UINT64_MAX, 2, 1));
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        quell_store *own = open_store(path);
        quell_file *again = open_file(own, "locked", O_RDWR);
        CHECK(quell_try_lock(again, 10, 1, 0) == 0 && write(ends[1], "t", 1) == 1);
        CHECK(quell_lock(again, 10, 1, 1) == 0);
        CHECK(quell_pread(again, &byte, 1, 10) == 1 && byte == 'x');
        CHECK(quell_close(again) == 0 && quell_store_close(own) == 0);
        _exit(0);
    }
    CHECK(read(ends[0], &byte, 1) == 1 && close(ends[0]) == 0 && close(ends[1]) == 0);
    CHECK(quell_pwrite(file, "x", 1, 10) == 1 && quell_unlock(file, 10, 10) == 0);
    wait_for(child);
    CHECK(quell_try_lock(other, 19, 1, 0) == 1);
    CHECK(quell_close(reader) == 0 && quell_close(other) == 0 && quell_close(file) == 0);
    CHECK(quell_store_close(store) == 0);
}

static void a_file_is_opened_with_shares_of_its_index(quell_store *store) {
    enum { SHARES = 3, CHILDREN = 6 };
    quell_share *shares[SHARES];
    quell_bytes bytes[SHARES];
    quell_file *file = NULL;
    char read[16];
    CHECK(quell_index_logs(store, "made 0") == CHILDREN);
    for (int i = 0; i < SHARES; i++)
        CHECK(quell_read_share(store, "made 0", i, SHARES, &shares[i]) == 0 &&
              quell_share_bytes(shares[i], &bytes[i]) == 0 && bytes[i].length > 0);
    CHECK(quell_open_with_shares(store, "made 0", O_RDONLY, bytes, SHARES, &file) == 0);
    CHECK(quell_pread(file, read, sizeof read, 0) == CHILDREN && memcmp(read, "012345", CHILDREN) == 0);
    CHECK(quell_close(file) == 0);
    REFUSED(EINVAL, quell_open_with_shares(store, "made 0", O_WRONLY, bytes, SHARES, &file));
    REFUSED(EINVAL, quell_open_with_shares(store, "made 0", O_RDWR | O_CREAT, bytes, SHARES, &file));
    REFUSED(ENOENT, quell_open_with_shares(store, "nothing", O_RDONLY, bytes, SHARES, &file));
    REFUSED(EIO, quell_open_with_shares(store, "made 1", O_RDONLY, bytes, SHARES, &file));
    quell_share *none = (quell_share *)store;
    REFUSED(EINVAL, quell_read_share(store, "made 0", SHARES, SHARES, &none));
    CHECK(none == NULL);
    CHECK(quell_flatten_shares(store, "made 0", bytes, SHARES - 1) > 0 && quell_index_logs(store, "made 0") == 1);
    for (int i = 0; i < SHARES; i++)
        CHECK(quell_share_free(shares[i]) == 0);
    file = open_file(store, "made 0", O_RDONLY);
    CHECK(quell_pread(file, read, sizeof read, 0) == CHILDREN && memcmp(read, "012345", CHILDREN) == 0);
    CHECK(quell_close(file) == 0);
}

static void paths_below_virtual_directories_have_a_store(const char *path) {
    char view[8192], in_store[16];
    quell_store *store = NULL, *again = NULL;
    quell_choices choices = {.buffer_bytes = 8192};
    snprintf(view, sizeof view,
             "{\"log\":[{\"path\":\"/virtual\",\"stores\":[\"%s\"],\"index\":\"flatten\"},"
             "{\"path\":\"/virtual/inner\",\"stores\":[\"/nowhere\"]}]}",
             path);
    setenv("QUELL_VIEW", view, 1);
    CHECK(quell_virtual_path("/virtual/./a//b/../c", in_store, sizeof in_store) == 1 && !strcmp(in_store, "a/c"));
    CHECK(quell_virtual_path("/virtual", in_store, sizeof in_store) == 1 && !strcmp(in_store, ""));
    CHECK(quell_virtual_path("/virtually", NULL, 0) == 0 && quell_virtual_path("/virtual/../a", NULL, 0) == 0);
    CHECK(chdir("/") == 0 && quell_virtual_path("virtual/a", NULL, 0) == 1);
    REFUSED(ERANGE, quell_virtual_path("/virtual/0123456789abcdef", in_store, sizeof in_store));
    CHECK(quell_virtual_flatten_bytes("/virtual/a") == 64 << 20 && quell_virtual_flatten_bytes("/virtual/inner/a") == 0);
    CHECK(quell_virtual_store("/virtual/a", NULL, &store) == 0 && size_of(store, "made 0") > 0);
    CHECK(quell_virtual_store("/virtual/b", &choices, &again) == 0 && size_of(again, "made 0") > 0);
    CHECK(quell_store_close(again) == 0 && quell_store_close(store) == 0);
    REFUSED(ENOENT, quell_virtual_store("/virtual/inner/a", NULL, &store));
    REFUSED(ENOENT, quell_virtual_store("/elsewhere", NULL, &store));
    REFUSED(ENOENT, quell_virtual_flatten_bytes("/elsewhere"));
}

static void a_flat_index_says_the_same(quell_store *store) {
    char bytes[16];
    CHECK(quell_flatten(store, "made 0") > 0 && quell_flatten(store, "made 0") > 0);
    quell_file *file = open_file(store, "made 0", O_RDWR);
    CHECK(quell_pread(file, bytes, sizeof bytes, 0) == 6 && memcmp(bytes, "012345", 6) == 0);
    CHECK(quell_pwrite(file, "later", 5, 3) == 5 && quell_close(file) == 0);
    file = open_file(store, "made 0", O_RDONLY);
    CHECK(quell_pread(file, bytes, sizeof bytes, 0) == 8 && memcmp(bytes, "012later", 8) == 0);
    CHECK(quell_close(file) == 0 && quell_mkdir(store, "no file", 0755) == 0);
    REFUSED(EISDIR, quell_flatten(store, "no file"));
    REFUSED(ENOENT, quell_flatten(store, "nothing"));
    REFUSED(EINVAL, quell_flatten(NULL, "made 0"));
}

static void a_file_outlives_the_handle_of_its_store(const char *path) {
    quell_store *store = open_store(path);
    quell_file *file = open_file(store, "outlives", O_RDWR | O_CREAT);
    CHECK(quell_store_close(store) == 0);
    CHECK(quell_pwrite(file, "x", 1, 0) == 1 && quell_close(file) == 0);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    umask(0022);
    quell_store *store = open_store(argv[1]);
    bytes_come_back(store);
    pieces_go_in_one_call(store);
    names_are_a_tree(store);
    a_removed_file_stays_until_it_is_closed(store);
    what_is_wrong_is_refused(store, argv[1]);
    threads_share_a_handle(store);
    a_child_opens_its_own(store, argv[1]);
    CHECK(quell_store_close(store) == 0);
    one_of_many_makes_a_file(argv[1]);
    locks_hold_between_handles_and_processes(argv[1]);
    store = open_store(argv[1]);
    a_file_is_opened_with_shares_of_its_index(store);
    a_flat_index_says_the_same(store);
    CHECK(quell_store_close(store) == 0);
    a_file_outlives_the_handle_of_its_store(argv[1]);
    paths_below_virtual_directories_have_a_store(argv[1]);
    return 0;
}
