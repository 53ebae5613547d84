/* Measures how fast several processes write and read one file (the N-1 pattern of the PLFS paper),
 * with plain system calls or with libquell. Each process has its own records, which alternate with
 * the records of the others.
 *
 *   nto1 --posix DIRECTORY | --quell STORE[,STORE...]   [--processes N] [--record BYTES] [--mib TOTAL] [--name FILE]
 *        [--phase both|write|read] [--rounds N] [--sync] [--shift N] [--buffer BYTES] [--keep]
 *
 * Prints one line per round: NAME=VALUE, separated by spaces. A rate is the total number of bytes
 * divided by the time from the common start, before the open, until the last process has closed
 * the file (with --sync: synced and closed). *_open_ms is the time until the last process has
 * opened it. A process reads the records of the process whose number is --shift (1) higher. The
 * first and last eight bytes of every record read are checked. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "quell.h"

enum { PROCESSES_MAX = 4096, STORES_MAX = 16 };
enum step { WRITE_OPENED, WRITTEN, WRITE_CLOSED, READ_OPENED, READ_CLOSED, STEPS };

static struct {
    const char *directory;          /* --posix */
    const char *stores[STORES_MAX]; /* --quell */
    size_t store_count;
    const char *name;
    long processes, record_bytes, mib, rounds, shift, buffer_bytes;
    int writes, reads, sync, keep;
    long records_each;
} options = {.name = "nto1.data", .processes = 4, .record_bytes = 47008, .mib = 1024, .rounds = 1, .shift = 1, .writes = 1, .reads = 1};

/* Memory shared by all processes. */
static struct shared {
    pthread_barrier_t barrier;
    _Atomic int failed;
    double write_begin, read_begin, end[STEPS][PROCESSES_MAX];
} *shared;

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "nto1: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    if (shared)
        shared->failed = 1;
    /* The other processes wait at the barrier: end all of them. */
    kill(0, SIGTERM);
    _exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Waits for all processes; one of them reads the clock. */
static void begin_together(double *begin) {
    if (pthread_barrier_wait(&shared->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
        *begin = now_s();
    pthread_barrier_wait(&shared->barrier);
}

static void end(enum step step, long process) { shared->end[step][process] = now_s(); }

/* A file opened with open(2) or with libquell. */
struct file {
    int fd;
    quell_store *store;
    quell_file *quell;
};

static void open_it(struct file *file, int flags) {
    if (options.directory) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", options.directory, options.name);
        if ((file->fd = open(path, flags, 0644)) < 0)
            fail("%s: %s", path, strerror(errno));
    } else {
        quell_choices choices = {.buffer_bytes = (size_t)options.buffer_bytes};
        if (quell_store_open(options.stores, options.store_count, &choices, &file->store) ||
            quell_open(file->store, options.name, flags, 0644, &file->quell))
            fail("%s", quell_last_error());
    }
}

static void write_it(struct file *file, const char *from, uint64_t offset) {
    if (options.directory) {
        for (size_t done = 0; done < (size_t)options.record_bytes;) {
            ssize_t n = pwrite(file->fd, from + done, (size_t)options.record_bytes - done, (off_t)(offset + done));
            if (n <= 0)
                fail("writing: %s", strerror(errno));
            done += (size_t)n;
        }
    } else if (quell_pwrite(file->quell, from, (size_t)options.record_bytes, offset) < 0) {
        fail("%s", quell_last_error());
    }
}

static void read_it(struct file *file, char *into, uint64_t offset) {
    int64_t n = options.directory ? pread(file->fd, into, (size_t)options.record_bytes, (off_t)offset)
                                  : quell_pread(file->quell, into, (size_t)options.record_bytes, offset);
    if (n != options.record_bytes)
        fail("reading at %llu: %lld: %s", (unsigned long long)offset, (long long)n,
             options.directory ? strerror(errno) : quell_last_error());
}

static void close_it(struct file *file, int sync) {
    if (options.directory) {
        if ((sync && fsync(file->fd)) || close(file->fd))
            fail("closing: %s", strerror(errno));
    } else if ((sync && quell_sync(file->quell)) || quell_close(file->quell) || quell_store_close(file->store)) {
        fail("%s", quell_last_error());
    }
}

/* Writes the number of a record into its first and last bytes. */
static void stamp(char *record, uint64_t number) {
    memcpy(record, &number, sizeof number);
    memcpy(record + options.record_bytes - sizeof number, &number, sizeof number);
}

static int is_stamped(const char *record, uint64_t number) {
    return memcmp(record, &number, sizeof number) == 0 &&
           memcmp(record + options.record_bytes - sizeof number, &number, sizeof number) == 0;
}

static void work(long process) {
    char *record = malloc((size_t)options.record_bytes);
    struct file file = {.fd = -1};
    if (!record)
        fail("no memory");
    memset(record, 'a' + (int)(process % 26), (size_t)options.record_bytes);
    if (options.writes) {
        begin_together(&shared->write_begin);
        open_it(&file, O_WRONLY | O_CREAT);
        end(WRITE_OPENED, process);
        for (long i = 0; i < options.records_each; i++) {
            uint64_t number = (uint64_t)(i * options.processes + process);
            stamp(record, number);
            write_it(&file, record, number * (uint64_t)options.record_bytes);
        }
        end(WRITTEN, process);
        close_it(&file, options.sync);
        end(WRITE_CLOSED, process);
    }
    if (options.reads) {
        long of = (process + options.shift) % options.processes;
        begin_together(&shared->read_begin);
        open_it(&file, O_RDONLY);
        end(READ_OPENED, process);
        for (long i = 0; i < options.records_each; i++) {
            uint64_t number = (uint64_t)(i * options.processes + of);
            read_it(&file, record, number * (uint64_t)options.record_bytes);
            if (!is_stamped(record, number))
                fail("record %llu is not what was written", (unsigned long long)number);
        }
        close_it(&file, 0);
        end(READ_CLOSED, process);
    }
    free(record);
    _exit(0);
}

/* Returns the seconds from the common start until the last process completed the step. */
static double until_s(double begin, enum step step) {
    double last = begin;
    for (long process = 0; process < options.processes; process++)
        if (shared->end[step][process] > last)
            last = shared->end[step][process];
    return last - begin;
}

static void remove_it(void) {
    if (options.directory) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", options.directory, options.name);
        if (unlink(path) && errno != ENOENT)
            fail("%s: %s", path, strerror(errno));
        return;
    }
    quell_store *store;
    if (quell_store_open(options.stores, options.store_count, NULL, &store))
        fail("%s", quell_last_error());
    int removed = quell_remove(store, options.name);
    if (removed && removed != -ENOENT)
        fail("%s", quell_last_error());
    quell_store_close(store);
}

static void one_round(void) {
    memset(shared, 0, sizeof *shared);
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, (unsigned)options.processes);
    if (options.writes)
        remove_it();
    for (long process = 0; process < options.processes; process++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork: %s", strerror(errno));
        if (child == 0)
            work(process);
    }
    int status;
    while (wait(&status) > 0)
        if (status)
            fail("a process failed");
    double mib = (double)options.records_each * (double)options.processes * (double)options.record_bytes / 1048576;
    printf("way=%s processes=%ld record=%ld mib=%.0f", options.directory ? "posix" : "quell", options.processes,
           options.record_bytes, mib);
    if (options.writes) {
        double begin = shared->write_begin;
        printf(" write_open_ms=%.2f write_mib_s=%.0f close_ms=%.2f", until_s(begin, WRITE_OPENED) * 1e3,
               mib / until_s(begin, WRITE_CLOSED), (until_s(begin, WRITE_CLOSED) - until_s(begin, WRITTEN)) * 1e3);
    }
    if (options.reads)
        printf(" read_open_ms=%.2f read_mib_s=%.0f", until_s(shared->read_begin, READ_OPENED) * 1e3,
               mib / until_s(shared->read_begin, READ_CLOSED));
    printf("\n");
    fflush(stdout);
    if (options.reads && !options.keep)
        remove_it();
}

static void usage(void) {
    fprintf(stderr, "usage: nto1 --posix DIRECTORY | --quell STORE[,STORE...] [--processes N] [--record BYTES] [--mib TOTAL]\n"
                    "            [--name FILE] [--phase both|write|read] [--rounds N] [--sync] [--shift N] [--buffer BYTES] [--keep]\n");
    exit(2);
}

static void read_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (!strcmp(option, "--sync") || !strcmp(option, "--keep")) {
            *(!strcmp(option, "--sync") ? &options.sync : &options.keep) = 1;
            continue;
        }
        if (++i == argc)
            usage();
        char *value = argv[i];
        if (!strcmp(option, "--posix")) {
            options.directory = value;
        } else if (!strcmp(option, "--quell")) {
            for (char *store = strtok(value, ","); store && options.store_count < STORES_MAX; store = strtok(NULL, ","))
                options.stores[options.store_count++] = store;
        } else if (!strcmp(option, "--name")) {
            options.name = value;
        } else if (!strcmp(option, "--phase")) {
            options.writes = strcmp(value, "read") != 0;
            options.reads = strcmp(value, "write") != 0;
        } else if (!strcmp(option, "--processes")) {
            options.processes = atol(value);
        } else if (!strcmp(option, "--record")) {
            options.record_bytes = atol(value);
        } else if (!strcmp(option, "--mib")) {
            options.mib = atol(value);
        } else if (!strcmp(option, "--rounds")) {
            options.rounds = atol(value);
        } else if (!strcmp(option, "--shift")) {
            options.shift = atol(value);
        } else if (!strcmp(option, "--buffer")) {
            options.buffer_bytes = atol(value);
        } else {
            usage();
        }
    }
    if (!options.directory == !options.store_count || options.processes < 1 || options.processes > PROCESSES_MAX ||
        options.record_bytes < 16 || options.mib < 1 || options.shift < 0)
        usage();
    options.records_each = options.mib * 1048576 / options.record_bytes / options.processes;
    if (options.records_each < 1)
        options.records_each = 1;
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        fail("no memory");
    for (long round = 0; round < options.rounds; round++)
        one_round();
    return 0;
}
