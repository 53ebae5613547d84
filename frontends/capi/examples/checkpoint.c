/* Several processes write to one file at the same time, each its own records, and one process reads
 * all of it.
 *
 *   checkpoint STORE [PROCESSES]
 *
 *   cc -o checkpoint checkpoint.c -I../include -lquell */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "quell.h"

enum { RECORD_BYTES = 47008, RECORDS_EACH = 16 };

static void check(int64_t answer, const char *what) {
    if (answer < 0) {
        fprintf(stderr, "%s: %s\n", what, quell_last_error());
        exit(1);
    }
}

static quell_store *open_store(const char *path) {
    quell_store *store;
    check(quell_store_open(&path, 1, NULL, &store), "opening the store");
    return store;
}

/* One process: opens its own store and handle, and writes records that alternate with the records
 * of the others. */
static void write_records(const char *path, int process, int processes) {
    static char record[RECORD_BYTES];
    quell_store *store = open_store(path);
    quell_file *file;
    check(quell_open(store, "checkpoint", O_WRONLY | O_CREAT, 0644, &file), "opening the file");
    memset(record, 'a' + process, sizeof record);
    for (int i = 0; i < RECORDS_EACH; i++) {
        uint64_t offset = (uint64_t)(i * processes + process) * RECORD_BYTES;
        check(quell_pwrite(file, record, sizeof record, offset), "writing");
    }
    check(quell_sync(file), "syncing"); /* survives a power failure */
    check(quell_close(file), "closing");
    check(quell_store_close(store), "closing the store");
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: checkpoint STORE [PROCESSES]\n");
        return 2;
    }
    int processes = argc > 2 ? atoi(argv[2]) : 4;
    for (int process = 0; process < processes; process++) {
        if (fork() == 0) {
            write_records(argv[1], process, processes);
            exit(0);
        }
    }
    int status, failed = 0;
    while (wait(&status) > 0)
        failed |= status;
    if (failed)
        return 1;

    quell_store *store = open_store(argv[1]);
    quell_file *file;
    quell_attributes attributes;
    static char record[RECORD_BYTES];
    check(quell_open(store, "checkpoint", O_RDONLY, 0, &file), "opening the file");
    check(quell_file_stat(file, &attributes), "asking for its size");
    for (uint64_t offset = 0; offset < attributes.size_bytes; offset += RECORD_BYTES) {
        char wanted = (char)('a' + offset / RECORD_BYTES % processes);
        check(quell_pread(file, record, sizeof record, offset), "reading");
        if (record[0] != wanted || record[RECORD_BYTES - 1] != wanted) {
            fprintf(stderr, "the record at %llu is not what was written\n", (unsigned long long)offset);
            return 1;
        }
    }
    check(quell_close(file), "closing");
    check(quell_store_close(store), "closing the store");
    printf("%d processes wrote %llu bytes\n", processes, (unsigned long long)attributes.size_bytes);
    return 0;
}
