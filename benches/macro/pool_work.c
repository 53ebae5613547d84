/* The work of mdtest and of IOR that the rows of pools and of log mounts need, without MPI. pool.py
 * and one_writer.py run it.
 *
 *   pool_work names COUNT DIR...
 *       One process for each DIR. All DIRs lead to the same directory, for example on different
 *       nodes. Each process creates COUNT empty files, then all processes stat(2) the files of the
 *       next rank, then they remove their own. The result: files created, examined and removed per
 *       second.
 *   pool_work create COUNT DIR...
 *       The first step of `names` alone: the files remain.
 *   pool_work small COUNT BYTES DIR...
 *       As `names`, but with BYTES written to each new file, and each file of the next rank opened
 *       and read instead of examined.
 *   pool_work data BYTES MIB SHARED DIR...
 *       Each process writes MIB with pwrite(2) of BYTES each, then reads the data of the next rank,
 *       and compares the first and the last byte of each read. SHARED: 1 for one file in which the
 *       ranks' parts take turns, 0 for one file each. MiB/s of all processes.
 *   pool_work roundtrip
 *       The time of an exchange of 64 bytes through two pipes between two processes, in
 *       microseconds: on one processor, and on two.
 *
 * All processes wait for each other between the steps. The result is one JSON object, with the
 * processor time of the processes in seconds. Exit code 1: a call failed or bytes are wrong.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STEPS_MAX = 3, PATH_BYTES = 4096, EXCHANGES = 20000, MESSAGE_BYTES = 64 };

static struct {
    atomic_int arrived[STEPS_MAX + 1];
    double begun[STEPS_MAX], ended[STEPS_MAX];
} *shared;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void fail(const char *call, const char *path) {
    fprintf(stderr, "pool_work: %s %s: %s\n", call, path, strerror(errno));
    exit(1);
}

/* Waits until all processes have ended a step; the last one notes the time. */
static void meet(int step, int ranks) {
    if (atomic_fetch_add(&shared->arrived[step], 1) == ranks - 1) {
        if (step > 0)
            shared->ended[step - 1] = now();
        if (step < STEPS_MAX)
            shared->begun[step] = now();
        atomic_fetch_add(&shared->arrived[step], 1);
    }
    while (atomic_load(&shared->arrived[step]) <= ranks)
        usleep(100);
}

static void read_small(const char *path, char *buffer, long bytes) {
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        fail("open", path);
    buffer[0] = buffer[bytes - 1] = 0;
    if (pread(fd, buffer, bytes + 1, 0) != bytes || buffer[0] != 's' || buffer[bytes - 1] != 's')
        fail("read", path);
    if (close(fd))
        fail("close", path);
}

/* With `bytes` of 0, the files are empty, and stat(2) takes the place of the read. */
static void names(int rank, int ranks, int steps, long count, long bytes, const char *dir) {
    char path[PATH_BYTES], *buffer = malloc(bytes + 1);
    struct stat found;
    if (!buffer)
        fail("malloc", "");
    for (int step = 0; step < steps; step++) {
        meet(step, ranks);
        int owner = step == 1 ? (rank + 1) % ranks : rank;
        for (long i = 0; i < count; i++) {
            snprintf(path, sizeof path, "%s/file.%d.%ld", dir, owner, i);
            if (step == 0) {
                int fd = open(path, O_CREAT | O_EXCL | O_RDWR, 0644);
                memset(buffer, 's', bytes);
                if (fd < 0 || (bytes && pwrite(fd, buffer, bytes, 0) != bytes) || close(fd))
                    fail("create", path);
            } else if (step == 1 && bytes) {
                read_small(path, buffer, bytes);
            } else if (step == 1 ? stat(path, &found) : unlink(path)) {
                fail(step == 1 ? "stat" : "unlink", path);
            }
        }
    }
    meet(steps, ranks);
}

static void data(int rank, int ranks, long bytes, long mib, int is_shared, const char *dir) {
    char path[PATH_BYTES], *buffer = malloc(bytes);
    long count = (mib << 20) / bytes;
    for (int step = 0; step < 2; step++) {
        int owner = (rank + step) % ranks;
        snprintf(path, sizeof path, "%s/data.%d", dir, is_shared ? 0 : owner);
        int fd = step ? open(path, O_RDONLY) : open(path, O_CREAT | O_RDWR, 0644);
        if (fd < 0)
            fail("open", path);
        memset(buffer, 'a' + owner % 26, bytes);
        meet(step, ranks);
        for (long i = 0; i < count; i++) {
            off_t at = (is_shared ? i * ranks + owner : i) * bytes;
            ssize_t done = step ? pread(fd, buffer, bytes, at) : pwrite(fd, buffer, bytes, at);
            char byte = 'a' + owner % 26;
            if (done != bytes || buffer[0] != byte || buffer[bytes - 1] != byte)
                fail(step ? "read" : "write", path);
        }
        if (close(fd))
            fail("close", path);
    }
    meet(2, ranks);
    snprintf(path, sizeof path, "%s/data.%d", dir, is_shared ? 0 : rank);
    if ((!is_shared || rank == 0) && unlink(path))
        fail("unlink", path);
}

static void run_on(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        fail("sched_setaffinity", "");
}

static void exchange(int in, int out, int begins) {
    char message[MESSAGE_BYTES] = {0};
    for (int i = 0; i < EXCHANGES; i++)
        for (int half = 0; half < 2; half++) {
            ssize_t done = (half == 0) == begins ? write(out, message, sizeof message)
                                                 : read(in, message, sizeof message);
            if (done != sizeof message)
                fail("exchange", "");
        }
}

static double roundtrip(int first, int second) {
    int there[2], back[2];
    if (pipe(there) || pipe(back))
        fail("pipe", "");
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_on(second);
        exchange(there[0], back[1], 0);
        _exit(0);
    }
    run_on(first);
    double begin = now();
    exchange(back[0], there[1], 1);
    double end = now();
    if (child < 0 || waitpid(child, NULL, 0) != child)
        fail("fork", "");
    return (end - begin) / EXCHANGES * 1e6;
}

int main(int count, char **arguments) {
    if (count == 2 && !strcmp(arguments[1], "roundtrip")) {
        cpu_set_t set;
        int found[2], number = 0;
        if (sched_getaffinity(0, sizeof set, &set))
            fail("sched_getaffinity", "");
        for (int i = 0; i < CPU_SETSIZE && number < 2; i++)
            if (CPU_ISSET(i, &set))
                found[number++] = i;
        printf("{\"one_us\": %.2f", roundtrip(found[0], found[0]));
        if (number == 2)
            printf(", \"across_us\": %.2f", roundtrip(found[0], found[1]));
        puts("}");
        return 0;
    }
    int is_data = count > 5 && !strcmp(arguments[1], "data");
    int creates = count > 3 && !strcmp(arguments[1], "create");
    int is_small = count > 4 && !strcmp(arguments[1], "small");
    int steps = is_data ? 2 : creates ? 1 : 3;
    if (!is_data && !creates && !is_small && !(count > 3 && !strcmp(arguments[1], "names"))) {
        fputs("usage: pool_work names|create COUNT DIR... | small COUNT BYTES DIR... |\n"
              "       data BYTES MIB SHARED DIR... | roundtrip\n", stderr);
        return 2;
    }
    int first = is_data ? 5 : is_small ? 4 : 3;
    char **dirs = arguments + first;
    int ranks = count - first;
    long bytes = is_small ? atol(arguments[3]) : 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        fail("mmap", "");
    for (int rank = 0; rank < ranks; rank++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork", "");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (is_data)
                data(rank, ranks, atol(arguments[2]), atol(arguments[3]), atoi(arguments[4]), dirs[rank]);
            else
                names(rank, ranks, steps, atol(arguments[2]), bytes, dirs[rank]);
            exit(0);
        }
    }
    for (int rank = 0, status; rank < ranks; rank++)
        if (wait(&status) < 0 || status != 0)
            return 1; /* The others end with this process. */
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    double work = is_data ? (double)ranks * atol(arguments[3]) : (double)ranks * atol(arguments[2]);
    printf("{\"rates\": [");
    for (int step = 0; step < steps; step++)
        printf("%s%.1f", step ? ", " : "", work / (shared->ended[step] - shared->begun[step]));
    printf("], \"processor_s\": %.4f}\n", used.ru_utime.tv_sec + used.ru_stime.tv_sec +
                                              (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
    return 0;
}
