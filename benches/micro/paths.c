/* Measures single path operations in a view, and the time at which a program starts to run.
 *
 *   paths now               print the monotonic clock in nanoseconds, as read at the start of main
 *   paths negative PATH     nanoseconds for one stat of a name that does not exist
 *   paths stat PATH         nanoseconds for one repeated stat
 *   paths open PATH         nanoseconds for one open for reading and close
 *
 * The last three print only the median of 9 rounds of 10,000 operations each.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 9, OPERATIONS = 10000 };

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Performs one operation. Returns 0 on success. */
static int operate(char kind, const char *path)
{
    struct stat st;
    int fd;
    switch (kind) {
    case 'n':
        return stat(path, &st) == -1 && errno == ENOENT ? 0 : -1;
    case 's':
        return stat(path, &st);
    default:
        fd = open(path, O_RDONLY | O_CLOEXEC);
        return fd < 0 ? -1 : close(fd);
    }
}

int main(int argc, char **argv)
{
    long long start = now_ns();
    double rounds[ROUNDS];
    if (argc == 2 && strcmp(argv[1], "now") == 0) {
        printf("%lld\n", start);
        return 0;
    }
    if (argc != 3 || !strchr("nso", argv[1][0])) {
        fprintf(stderr, "usage: paths now | paths negative|stat|open PATH\n");
        return 2;
    }
    for (int r = 0; r < ROUNDS; r++) {
        start = now_ns();
        for (int i = 0; i < OPERATIONS; i++) {
            if (operate(argv[1][0], argv[2]) != 0) {
                fprintf(stderr, "paths: %s %s: %s\n", argv[1], argv[2], strerror(errno));
                return 1;
            }
        }
        rounds[r] = (double)(now_ns() - start) / OPERATIONS;
    }
    qsort(rounds, ROUNDS, sizeof rounds[0], ascending);
    printf("%.1f\n", rounds[ROUNDS / 2]);
    return 0;
}
