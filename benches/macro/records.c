/* Many processes write or read records of one file, or of one file each, like a checkpoint. log.py
 * runs this program.
 *
 *   records WORK PATTERN RECORDS BYTES PATH...
 *
 * There is one process for each PATH, its rank is the index of the PATH. For strided, segmented and
 * random the paths lead to the same file on different nodes. Each process has RECORDS records of
 * BYTES bytes.
 *
 *   WORK      write       open, write the records, fsync, close
 *             write-only  the same without the fsync
 *             fill        one process writes all records in file order, and syncs: prepares a file to read
 *             read        open, read the records of the next rank, check one word of each page, close
 *             verify      the same, but check every byte: not for timing
 *             first       one process opens, reads one record, and closes: the time to the first record
 *   PATTERN   strided     the ranks' records take turns
 *             segmented   each rank has a part of the file
 *             private     each rank has a file, its PATH
 *             random      records are at random offsets without overlaps, with holes between some
 *
 * One process creates the files first, untimed, as parallel programs do. Then all processes wait
 * for each other. Times are from that moment to the last process's end of each step, in seconds,
 * printed as one JSON object. A record's bytes depend on its rank and number. Exit code 1: a call
 * failed or bytes are wrong; the first error is printed.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };
enum work { WRITE, WRITE_ONLY, FILL, READ, VERIFY, FIRST };
enum pattern { STRIDED, SEGMENTED, PRIVATE, RANDOM };
/* The times at which a process's steps ended, in nanoseconds of the monotonic clock. */
struct steps {
    long long opened, moved, synced, closed;
};
struct shared {
    atomic_int ready, failed;
    atomic_llong began; /* 0 until all processes are ready */
    struct steps steps[];
};

static const char *const works[] = {"write", "write-only", "fill", "read", "verify", "first", NULL};
static const char *const patterns[] = {"strided", "segmented", "private", "random", NULL};
static enum work work;
static enum pattern pattern;
static uint64_t ranks, records, bytes;
static struct shared *shared;

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static _Noreturn void fail(const char *what, const char *path)
{
    int error = errno;
    if (atomic_exchange(&shared->failed, 1) == 0)
        fprintf(stderr, "records: %s %s: %s\n", what, path, error ? strerror(error) : "wrong");
    _exit(1);
}

/* A bijection on 64 bits (splitmix64). Maps 0 to another value, so that a hole does not look
 * like a record. */
static uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

/* A bijection on the numbers below 2^bits: odd factors and right shifts are invertible. */
static uint64_t scattered(uint64_t x, int bits)
{
    uint64_t mask = ((uint64_t)1 << bits) - 1;
    for (int turn = 0; turn < 3; turn++) {
        x = (x * 0x9e3779b97f4a7c15) & mask;
        x ^= x >> (bits + 1) / 2;
    }
    return x;
}

static uint64_t offset_of(uint64_t rank, uint64_t record)
{
    int bits = 1;
    switch (pattern) {
    case STRIDED:
        return (record * ranks + rank) * bytes;
    case SEGMENTED:
        return (rank * records + record) * bytes;
    case PRIVATE:
        return record * bytes;
    case RANDOM:
        while ((uint64_t)1 << bits < ranks * records)
            bits++;
        return scattered(rank * records + record, bits) * bytes;
    }
    return 0;
}

/* Fills in the common content of a rank's records. `stamp` makes each page's first word unique. */
static void prepare(unsigned char *record, uint64_t rank)
{
    for (uint64_t i = 0; i < bytes; i++)
        record[i] = (unsigned char)(mixed((rank << 40) + i / 8) >> 8 * (i % 8));
}

static uint64_t word(uint64_t rank, uint64_t record, uint64_t place)
{
    return mixed((rank << 48) ^ (record << 20) ^ place / PAGE);
}

static size_t word_bytes(uint64_t place)
{
    return bytes - place < 8 ? bytes - place : 8;
}

static void stamp(unsigned char *buffer, uint64_t rank, uint64_t record)
{
    for (uint64_t place = 0; place < bytes; place += PAGE) {
        uint64_t value = word(rank, record, place);
        memcpy(buffer + place, &value, word_bytes(place));
    }
}

static int stamped(const unsigned char *buffer, uint64_t rank, uint64_t record)
{
    for (uint64_t place = 0; place < bytes; place += PAGE) {
        uint64_t value = word(rank, record, place);
        if (memcmp(buffer + place, &value, word_bytes(place)) != 0)
            return 0;
    }
    return 1;
}

static void put(int fd, const unsigned char *buffer, uint64_t offset, const char *path)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t got = pwrite(fd, buffer + done, bytes - done, (off_t)(offset + done));
        if (got <= 0)
            fail("write", path);
        done += (uint64_t)got;
    }
}

static void get(int fd, unsigned char *buffer, uint64_t offset, const char *path)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, buffer + done, bytes - done, (off_t)(offset + done));
        if (got < 0)
            fail("read", path);
        errno = 0;
        if (got == 0)
            fail("the end comes too early in", path);
        done += (uint64_t)got;
    }
}

static void look(int fd, unsigned char *buffer, unsigned char *expected, uint64_t rank, uint64_t record, const char *path)
{
    get(fd, buffer, offset_of(rank, record), path);
    errno = 0;
    if (!stamped(buffer, rank, record))
        fail("a record of", path);
    if (work == VERIFY) {
        stamp(expected, rank, record);
        if (memcmp(buffer, expected, bytes) != 0)
            fail("bytes of a record of", path);
    }
}

/* Writes the records of all ranks in file order. */
static void fill(int fd, unsigned char *buffer, const char *path)
{
    if (pattern == SEGMENTED) {
        for (uint64_t rank = 0; rank < ranks; rank++) {
            prepare(buffer, rank);
            for (uint64_t record = 0; record < records; record++) {
                stamp(buffer, rank, record);
                put(fd, buffer, offset_of(rank, record), path);
            }
        }
        return;
    }
    unsigned char *each = malloc(ranks * bytes);
    if (!each)
        fail("no memory for", path);
    for (uint64_t rank = 0; rank < ranks; rank++)
        prepare(each + rank * bytes, rank);
    for (uint64_t record = 0; record < records; record++)
        for (uint64_t rank = 0; rank < ranks; rank++) {
            stamp(each + rank * bytes, rank, record);
            put(fd, each + rank * bytes, offset_of(rank, record), path);
        }
    free(each);
}

static void one_rank(uint64_t rank, const char *path)
{
    struct steps *steps = &shared->steps[rank];
    int writes = work == WRITE || work == WRITE_ONLY || work == FILL;
    /* A rank writes its own records and reads the records of the next rank, which another node
     * wrote. For private files the PATH already selects the file. */
    uint64_t whose = writes || pattern == PRIVATE ? rank : (rank + 1) % ranks;
    unsigned char *buffer = malloc(bytes), *expected = malloc(bytes);
    if (!buffer || !expected)
        fail("no memory for", path);
    memset(buffer, 0, bytes);
    prepare(writes ? buffer : expected, whose);
    atomic_fetch_add(&shared->ready, 1);
    while (atomic_load(&shared->began) == 0) {
        if (atomic_load(&shared->failed))
            _exit(1);
        usleep(100);
    }

    int fd = open(path, (writes ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
    if (fd < 0)
        fail("open", path);
    steps->opened = now_ns();
    if (work == FILL)
        fill(fd, buffer, path);
    for (uint64_t record = 0; record < records && work != FILL; record++) {
        if (writes) {
            stamp(buffer, rank, record);
            put(fd, buffer, offset_of(rank, record), path);
        } else {
            look(fd, buffer, expected, whose, record, path);
            if (work == FIRST)
                break;
        }
    }
    steps->moved = now_ns();
    if ((work == WRITE || work == FILL) && fsync(fd) != 0)
        fail("fsync", path);
    steps->synced = now_ns();
    if (close(fd) != 0)
        fail("close", path);
    steps->closed = now_ns();
    _exit(0);
}

static int named(const char *name, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    fprintf(stderr, "records: unknown word '%s'\n", name);
    exit(2);
}

static void make(const char *path)
{
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0 || close(fd) != 0)
        fail("make", path);
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: records WORK PATTERN RECORDS BYTES PATH...\n");
        return 2;
    }
    work = (enum work)named(argv[1], works);
    pattern = (enum pattern)named(argv[2], patterns);
    records = strtoull(argv[3], NULL, 10);
    bytes = strtoull(argv[4], NULL, 10);
    char **paths = argv + 5;
    ranks = (uint64_t)argc - 5;
    if (records == 0 || bytes == 0 || (work == FILL && (pattern == PRIVATE || pattern == RANDOM))) {
        fprintf(stderr, "records: RECORDS and BYTES must not be 0, and 'fill' needs 'strided' or 'segmented'\n");
        return 2;
    }
    shared = mmap(NULL, sizeof *shared + ranks * sizeof *shared->steps, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("records: memory");
        return 1;
    }
    if (work == WRITE || work == WRITE_ONLY || work == FILL)
        for (uint64_t rank = 0; rank < (pattern == PRIVATE ? ranks : 1); rank++)
            make(paths[rank]);

    pid_t parent = getpid();
    uint64_t processes = work == FILL || work == FIRST ? 1 : ranks;
    for (uint64_t rank = 0; rank < processes; rank++) {
        pid_t child = fork();
        if (child == 0) {
            /* The ranks end with this process, also when it is killed. */
            if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
                _exit(1);
            one_rank(rank, paths[rank]);
        }
        if (child < 0) {
            perror("records: fork");
            atomic_store(&shared->failed, 1);
            return 1; /* waiting processes see it and end */
        }
    }
    while ((uint64_t)atomic_load(&shared->ready) < processes && !atomic_load(&shared->failed))
        usleep(1000);
    long long began = now_ns();
    atomic_store(&shared->began, began);
    int status, wrong = 0;
    while (wait(&status) > 0)
        wrong |= status;
    if (wrong)
        return 1;
    struct steps last = {0};
    for (uint64_t rank = 0; rank < processes; rank++) {
        const struct steps *one = &shared->steps[rank];
        if (one->opened > last.opened)
            last.opened = one->opened;
        if (one->moved > last.moved)
            last.moved = one->moved;
        if (one->synced > last.synced)
            last.synced = one->synced;
        if (one->closed > last.closed)
            last.closed = one->closed;
    }
    printf("{\"seconds\": %.6f, \"opened\": %.6f, \"moved\": %.6f, \"synced\": %.6f, \"bytes\": %llu}\n", (last.closed - began) / 1e9,
           (last.opened - began) / 1e9, (last.moved - began) / 1e9, (last.synced - began) / 1e9,
           (unsigned long long)(bytes * (work == FIRST ? 1 : records * ranks)));
    return 0;
}
