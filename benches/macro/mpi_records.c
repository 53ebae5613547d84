/* The ranks of an MPI job write or read records of one file, or of one file each. mpi.py runs this
 * program, with one PATH for each rank, which lead to the same file on different nodes.
 *
 *   mpi_records WORK RECORDS BYTES PATH...
 *
 *   WORK   collective  write the rank's records, which take turns with the records of the other
 *                      ranks, with MPI_File_write_all in 10 calls, sync, close
 *          private     write a file of the rank's own with write(2), fsync, close
 *          verify      read the records of the next rank collectively, and compare every byte
 *          random      write records at scattered offsets with MPI_File_write_at, close
 *          open        open for reading, read one record, close
 *
 * The time from a common start to the end of the last rank is printed as a JSON object. Exit
 * code 1: a call failed or bytes are wrong. */
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CALLS = 10 };

static int rank, ranks;
static long records, bytes;
static const char *path;

static void must(int is_done, const char *operation) {
    if (is_done)
        return;
    fprintf(stderr, "mpi_records: rank %d: %s failed for %s\n", rank, operation, path);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void call(int result, const char *function) { must(result == MPI_SUCCESS, function); }

static void fill(unsigned char *record, int of, long number) {
    unsigned state = 2463534242u + (unsigned)(of * 1000003 + number);
    for (long i = 0; i < bytes; i++) {
        if (i % 64 == 0)
            state = state * 1664525u + 1013904223u;
        record[i] = (unsigned char)(state >> 16) + (unsigned char)i;
    }
}

static MPI_File open_with_view(int mode, int of) {
    MPI_File file;
    MPI_Datatype strided;
    call(MPI_File_open(MPI_COMM_WORLD, path, mode, MPI_INFO_NULL, &file), "MPI_File_open");
    MPI_Type_vector((int)records, (int)bytes, (int)bytes * ranks, MPI_BYTE, &strided);
    MPI_Type_commit(&strided);
    call(MPI_File_set_view(file, (MPI_Offset)of * bytes, MPI_BYTE, strided, "native", MPI_INFO_NULL), "set_view");
    MPI_Type_free(&strided);
    return file;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 5)
        return 2;
    const char *work = argv[1];
    records = atol(argv[2]);
    bytes = atol(argv[3]);
    path = argv[4 + rank % (argc - 4)];
    int of = strcmp(work, "verify") ? rank : (rank + 1) % ranks;
    long each = records / CALLS;
    unsigned char *all = malloc((size_t)(records * bytes)), *expected = malloc((size_t)bytes);
    must(all && expected, "malloc");
    for (long i = 0; i < records; i++)
        fill(all + i * bytes, of, i);
    MPI_File file;
    double took, longest;
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime();
    if (!strcmp(work, "collective")) {
        file = open_with_view(MPI_MODE_CREATE | MPI_MODE_WRONLY, rank);
        for (int i = 0; i < CALLS; i++)
            call(MPI_File_write_all(file, all + i * each * bytes, (int)(each * bytes), MPI_BYTE, MPI_STATUS_IGNORE),
                 "MPI_File_write_all");
        call(MPI_File_sync(file), "MPI_File_sync");
        call(MPI_File_close(&file), "MPI_File_close");
    } else if (!strcmp(work, "private")) {
        char own[4096];
        snprintf(own, sizeof own, "%s-%d", path, rank);
        int fd = open(own, O_CREAT | O_WRONLY, 0644);
        must(fd >= 0, "open");
        for (long i = 0; i < records; i++)
            must(write(fd, all + i * bytes, (size_t)bytes) == bytes, "write");
        must(fsync(fd) == 0 && close(fd) == 0, "fsync");
    } else if (!strcmp(work, "verify")) {
        memset(all, 0, (size_t)(records * bytes));
        file = open_with_view(MPI_MODE_RDONLY, of);
        for (int i = 0; i < CALLS; i++)
            call(MPI_File_read_all(file, all + i * each * bytes, (int)(each * bytes), MPI_BYTE, MPI_STATUS_IGNORE),
                 "MPI_File_read_all");
        call(MPI_File_close(&file), "MPI_File_close");
        for (long i = 0; i < each * CALLS; i++) {
            fill(expected, of, i);
            must(!memcmp(expected, all + i * bytes, (size_t)bytes), "comparing");
        }
    } else if (!strcmp(work, "random")) {
        call(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file), "open");
        for (long i = 0; i < records; i++) {
            /* Scattered, without overlaps: a prime larger than the number of records. */
            MPI_Offset place = ((MPI_Offset)(i * 337 % 1009) * ranks + rank) * bytes * 2;
            call(MPI_File_write_at(file, place, all + i * bytes, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE), "write_at");
        }
        call(MPI_File_close(&file), "MPI_File_close");
    } else {
        call(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), "MPI_File_open");
        call(MPI_File_read_at(file, 0, all, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE), "MPI_File_read_at");
        call(MPI_File_close(&file), "MPI_File_close");
    }
    took = MPI_Wtime() - began;
    MPI_Reduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("{\"bytes\": %lld, \"seconds\": %.6f}\n", (long long)records * bytes * ranks, longest);
    MPI_Finalize();
    return 0;
}
