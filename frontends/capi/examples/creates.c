/* creates STORE FILES: creates empty files in a batch of a store for batches, and prints the rate,
 * including the commit. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <quell.h>

static int failed(const char *subject, quell_store *batch) {
    fprintf(stderr, "%s: %s\n", subject, quell_last_error());
    quell_store_close(batch); /* aborts the batch */
    return 1;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    long files = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
    if (files <= 0) {
        fprintf(stderr, "usage: %s STORE FILES\n", argv[0]);
        return 2;
    }
    quell_batch_options options = {.name = "creates"};
    quell_batch_result result;
    quell_store *batch = NULL;
    quell_file *file;
    char path[32];
    double begin = now();
    if (quell_batch_begin(argv[1], &options, &batch) < 0)
        return failed(argv[1], NULL);
    for (long i = 0; i < files; i++) {
        snprintf(path, sizeof path, "f%ld", i);
        if (quell_open(batch, path, O_WRONLY | O_CREAT | O_EXCL, 0644, &file) < 0 || quell_close(file) < 0)
            return failed(path, batch);
    }
    if (quell_batch_commit(batch, &result) < 0)
        return failed(argv[1], batch);
    if (quell_store_close(batch) < 0)
        return failed(argv[1], NULL);
    double seconds = now() - begin;
    printf("%ju entries published, %ju conflicts, %.2f s, %.0f creates/s\n", (uintmax_t)result.entries,
           (uintmax_t)result.conflicts, seconds, (double)files / seconds);
    return result.conflicts > 0;
}
