/* Ranks write one file, each its own records, interleaved with those of the others, and read the
 * records of other ranks.
 *
 *   log_ranks plain|independent|collective|strided|sizes|truncated PATH PATH
 *
 * Both paths are the same file in two mounts: ranks with an even number use the first path, others
 * the second. */
#include "mpi_ranks.h"

#include <fcntl.h>
#include <unistd.h>

enum { RECORD_BYTES = 47008, ROUNDS = 8 };

static const char *path;
static char records[ROUNDS][RECORD_BYTES];

/* Fills the record at an index of the file with pseudorandom bytes that depend on the index. */
static void fill(char *record, int place) {
    unsigned state = 2463534242u + (unsigned)place;
    for (int i = 0; i < RECORD_BYTES; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        record[i] = (char)state;
    }
}

static int place(int round, int of) { return round * ranks + of; }

static MPI_Offset offset_of(int place) { return (MPI_Offset)place * RECORD_BYTES; }

static void fill_all(void) {
    for (int round = 0; round < ROUNDS; round++)
        fill(records[round], place(round, rank));
}

static void forget_all(void) { memset(records, 0, sizeof records); }

/* Checks that `records` contains the records of rank `of`. */
static void check_all(int of, const char *when) {
    static char expected[RECORD_BYTES];
    for (int round = 0; round < ROUNDS; round++) {
        fill(expected, place(round, of));
        if (memcmp(records[round], expected, RECORD_BYTES))
            fail("%s: record %d of rank %d differs from the written one", when, round, of);
    }
}

/* Checks every byte of the file with read(2), as a program without MPI-IO would read it. */
static void check_file(void) {
    int file = open(path, O_RDONLY);
    if (file < 0 || lseek(file, 0, SEEK_END) != offset_of(ROUNDS * ranks))
        fail("%s cannot be opened, or has another size", path);
    for (int of = 0; of < ranks; of++) {
        forget_all();
        for (int round = 0; round < ROUNDS; round++)
            if (pread(file, records[round], RECORD_BYTES, offset_of(place(round, of))) != RECORD_BYTES)
                fail("reading %s", path);
        check_all(of, "the whole file");
    }
    close(file);
}

static void write_plain(void) {
    int file = open(path, O_WRONLY | O_CREAT, 0644);
    if (file < 0)
        fail("opening %s", path);
    for (int round = 0; round < ROUNDS; round++)
        if (pwrite(file, records[round], RECORD_BYTES, offset_of(place(round, rank))) != RECORD_BYTES)
            fail("writing %s", path);
    if (close(file))
        fail("closing %s", path);
}

static MPI_File open_shared(int mode) {
    MPI_File file;
    MPI_Info info;
    MPI_Info_create(&info);
    /* Otherwise ROMIO would read the gaps between the records and write them again under a lock
     * (data sieving), which log_locks_mpi.c tests. */
    MPI_Info_set(info, "romio_ds_write", "disable");
    must(MPI_File_open(MPI_COMM_WORLD, path, mode, info, &file), "MPI_File_open");
    MPI_Info_free(&info);
    return file;
}

/* After every rank has written, every rank truncates the file, some of them twice: only data that
 * is written afterwards must remain. */
static void truncate_all(MPI_File file) {
    for (int turn = 0; turn < 3; turn++) {
        must(MPI_File_write_at(file, offset_of(place(ROUNDS + turn, rank)), records[turn], RECORD_BYTES, MPI_BYTE,
                               MPI_STATUS_IGNORE),
             "write_at");
        sync_all(file);
        must(MPI_File_set_size(file, 0), "MPI_File_set_size");
        if (turn == 1 && truncate(path, 0))
            fail("truncating %s", path);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* Sets a file view that shows only the records of rank `of`. */
static void look_at(MPI_File file, int of) {
    MPI_Datatype strided;
    MPI_Type_vector(ROUNDS, RECORD_BYTES, ranks * RECORD_BYTES, MPI_BYTE, &strided);
    MPI_Type_commit(&strided);
    must(MPI_File_set_view(file, offset_of(of), MPI_BYTE, strided, "native", MPI_INFO_NULL), "MPI_File_set_view");
    MPI_Type_free(&strided);
}

static void write_shared(const char *how) {
    MPI_File file = open_shared(MPI_MODE_CREATE | MPI_MODE_RDWR);
    if (!strcmp(how, "truncated"))
        truncate_all(file);
    if (strcmp(how, "independent")) {
        look_at(file, rank);
        if (strcmp(how, "collective"))
            must(MPI_File_write_at(file, 0, records, sizeof records, MPI_BYTE, MPI_STATUS_IGNORE), "write_at");
        else
            must(MPI_File_write_at_all(file, 0, records, sizeof records, MPI_BYTE, MPI_STATUS_IGNORE), "write_at_all");
    } else {
        for (int round = 0; round < ROUNDS; round++)
            must(MPI_File_write_at(file, offset_of(place(round, rank)), records[round], RECORD_BYTES, MPI_BYTE,
                                   MPI_STATUS_IGNORE),
                 "write_at");
    }
    /* Through the same open file, the data of the next rank, which may use the other mount. */
    int next = (rank + 1) % ranks;
    sync_all(file);
    forget_all();
    look_at(file, next);
    must(MPI_File_read_at(file, 0, records, sizeof records, MPI_BYTE, MPI_STATUS_IGNORE), "read_at");
    check_all(next, "after a sync");
    must(MPI_File_close(&file), "MPI_File_close");
}

static void read_shared(void) {
    int next = (rank + 1) % ranks;
    MPI_File file = open_shared(MPI_MODE_RDONLY);
    forget_all();
    look_at(file, next);
    must(MPI_File_read_at_all(file, 0, records, sizeof records, MPI_BYTE, MPI_STATUS_IGNORE), "read_at_all");
    check_all(next, "after a close");
    must(MPI_File_close(&file), "MPI_File_close");
}

/* Sets sizes before and after the ranks write. */
static void set_sizes(void) {
    MPI_Offset size;
    const MPI_Offset sizes[] = {offset_of(3), 100, offset_of(ROUNDS * ranks) + 17, 0};
    MPI_File file = open_shared(MPI_MODE_CREATE | MPI_MODE_RDWR);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        must(MPI_File_set_size(file, sizes[i]), "MPI_File_set_size");
        sync_all(file);
        must(MPI_File_get_size(file, &size), "MPI_File_get_size");
        if (size != sizes[i])
            fail("the size is %lld, not %lld", (long long)size, (long long)sizes[i]);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    must(MPI_File_preallocate(file, offset_of(ROUNDS * ranks)), "MPI_File_preallocate");
    must(MPI_File_close(&file), "MPI_File_close");
}

int main(int argc, char **argv) {
    start_ranks(&argc, &argv);
    if (argc != 4)
        fail("log_ranks HOW PATH PATH");
    const char *how = argv[1];
    path = argv[2 + rank % 2];
    fill_all();
    if (!strcmp(how, "plain")) {
        write_plain();
    } else {
        if (!strcmp(how, "sizes"))
            set_sizes();
        write_shared(how);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (strcmp(how, "plain"))
        read_shared();
    check_file();
    return end_ranks(how);
}
