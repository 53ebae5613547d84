/* Commits with callbacks while the server is killed and started again: blob_killed LOCATION. Each
 * commit appends a number to a blob and adds 1 to a sum. Prints a line after each 1,000 commits. In
 * the end, each acknowledged commit must be in the store once. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quell_blob.h"

enum { COMMITS = 8000 };

static int64_t offsets[COMMITS];
static int committed;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, quell_blob_last_error());
    exit(1);
}

static void was_committed(void *context, int status, const quell_blob_result *result) {
    int64_t *offset = context;
    if (status < 0)
        fail("commit");
    *offset = quell_blob_result_appended(result, 0);
    if (++committed % 1000 == 0) {
        printf("%d committed\n", committed);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    static int32_t numbers[COMMITS];
    quell_blob_store *store;
    int64_t one = 1, sum = 0;
    quell_blob_options options = {.in_flight_max = 500};
    quell_blob_transform add = {.kind = QUELL_BLOB_ADD, .cell = QUELL_BLOB_I64, .count = 1};
    add.operands = &one;
    add.operands_bytes = sizeof one;
    if (argc != 2 || quell_blob_open(argv[1], &options, &store) < 0)
        fail("open");
    if (quell_blob_create(store, "log", 3) < 0 || quell_blob_create(store, "sum", 3) < 0)
        fail("create");
    for (int32_t i = 0; i < COMMITS; i++) {
        quell_blob_transaction *batch;
        if (quell_blob_batch(store, &batch) < 0 ||
            quell_blob_transaction_append(batch, "log", 3, &i, sizeof i) < 0 ||
            quell_blob_transaction_apply(batch, "sum", 3, 0, &add) < 0 ||
            quell_blob_submit(batch, was_committed, &offsets[i]) < 0)
            fail("submit");
        quell_blob_transaction_close(batch);
    }
    if (quell_blob_drain(store) < 0 || committed != COMMITS)
        fail("drain");
    if (quell_blob_read(store, "sum", 3, 0, &sum, sizeof sum) != sizeof sum || sum != COMMITS)
        fail("the sum");
    if (quell_blob_read(store, "log", 3, 0, numbers, sizeof numbers) != sizeof numbers)
        fail("the log");
    for (int32_t i = 0; i < COMMITS; i++)
        if (offsets[i] % 4 != 0 || numbers[offsets[i] / 4] != i)
            fail("an append is not at its offset");
    return quell_blob_close(store) < 0;
}
