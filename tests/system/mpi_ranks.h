/* The parts that the MPI programs of the tests share. */
#ifndef MPI_RANKS_H
#define MPI_RANKS_H

#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

/* Prints the reason and ends the job. */
static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "rank %d: ", rank);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

/* Requires that a call of MPI has succeeded. */
static void must(int result, const char *call) {
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (result == MPI_SUCCESS)
        return;
    MPI_Error_string(result, text, &length);
    fail("%s: %s", call, text);
}

/* Makes the data of all ranks visible to all: MPI requires a sync by the writers, and one by the
 * readers. */
static void sync_all(MPI_File file) {
    must(MPI_File_sync(file), "MPI_File_sync");
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_File_sync(file), "MPI_File_sync");
}

static void start_ranks(int *argc, char ***argv) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
}

/* Ends MPI after all ranks are here, and prints "NAME: N ranks". Returns the exit code. */
static int end_ranks(const char *name) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%s: %d ranks\n", name, ranks);
    MPI_Finalize();
    return 0;
}

#endif
