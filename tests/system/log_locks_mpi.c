/* Operations of MPI-IO that rely on locks, by ranks on two mounts of one store.
 *
 *   log_locks_mpi sieve|atomic|atomic-holes|shared|ordered PATH
 *
 * PATH is the same for all ranks, as on a cluster. */
#include "mpi_ranks.h"

enum { PIECE_BYTES = 100, PIECES = 200, ATOMIC_BYTES = 70000, ATOMIC_ROUNDS = 12, RECORD_BYTES = 64, RECORDS = 25 };

static MPI_File open_file(const char *path) {
    MPI_File file;
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "romio_ds_write", "enable");
    MPI_Info_set(info, "romio_ds_read", "enable");
    must(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &file), "MPI_File_open");
    MPI_Info_free(&info);
    return file;
}

static char value_at(int of, int piece) { return (char)(1 + (of * 31 + piece * 7) % 250); }

/* Every rank writes its own pieces between those of the others with one independent call, which
 * data sieving turns into a read, a change and a write of all pieces. */
static void sieve(MPI_File file) {
    static char pieces[PIECES * PIECE_BYTES], found[PIECE_BYTES];
    MPI_Datatype strided;
    MPI_Type_vector(PIECES, PIECE_BYTES, ranks * PIECE_BYTES, MPI_BYTE, &strided);
    MPI_Type_commit(&strided);
    for (int round = 0; round < 3; round++) {
        for (int piece = 0; piece < PIECES; piece++)
            memset(pieces + piece * PIECE_BYTES, value_at(rank + round, piece), PIECE_BYTES);
        must(MPI_File_set_view(file, (MPI_Offset)rank * PIECE_BYTES, MPI_BYTE, strided, "native", MPI_INFO_NULL),
             "MPI_File_set_view");
        MPI_Barrier(MPI_COMM_WORLD);
        must(MPI_File_write_at(file, 0, pieces, sizeof pieces, MPI_BYTE, MPI_STATUS_IGNORE), "MPI_File_write_at");
        sync_all(file);
        must(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), "MPI_File_set_view");
        for (int piece = 0; piece < PIECES; piece++)
            for (int of = 0; of < ranks; of++) {
                MPI_Offset at = ((MPI_Offset)piece * ranks + of) * PIECE_BYTES;
                must(MPI_File_read_at(file, at, found, PIECE_BYTES, MPI_BYTE, MPI_STATUS_IGNORE), "MPI_File_read_at");
                for (int i = 0; i < PIECE_BYTES; i++)
                    if (found[i] != value_at(of + round, piece))
                        fail("round %d: byte %d of piece %d of rank %d was lost", round, i, piece, of);
            }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Type_free(&strided);
}

/* All ranks write the same bytes: a read finds those of one rank. */
static void atomic(MPI_File file, int has_holes) {
    static char bytes[ATOMIC_BYTES];
    MPI_Datatype strided;
    must(MPI_File_set_atomicity(file, 1), "MPI_File_set_atomicity");
    MPI_Type_vector(ATOMIC_BYTES / PIECE_BYTES, PIECE_BYTES, 2 * PIECE_BYTES, MPI_BYTE, &strided);
    MPI_Type_commit(&strided);
    if (has_holes)
        must(MPI_File_set_view(file, 0, MPI_BYTE, strided, "native", MPI_INFO_NULL), "MPI_File_set_view");
    for (int round = 0; round < ATOMIC_ROUNDS; round++) {
        memset(bytes, 1 + rank, sizeof bytes);
        must(MPI_File_write_at(file, 0, bytes, sizeof bytes, MPI_BYTE, MPI_STATUS_IGNORE), "MPI_File_write_at");
        must(MPI_File_read_at(file, 0, bytes, sizeof bytes, MPI_BYTE, MPI_STATUS_IGNORE), "MPI_File_read_at");
        for (int i = 0; i < ATOMIC_BYTES; i++)
            if (bytes[i] != bytes[0] || bytes[0] < 1 || bytes[0] > ranks)
                fail("round %d: byte %d is of rank %d, byte 0 of rank %d", round, i, bytes[i] - 1, bytes[0] - 1);
    }
    MPI_Type_free(&strided);
}

static void record_of(char *record, int of, int number) {
    memset(record, '.', RECORD_BYTES);
    snprintf(record, RECORD_BYTES, "%d %d", of, number);
}

/* The records of all ranks, written through one file pointer, are all in the file, each once. */
static void shared(MPI_File file, int is_ordered) {
    char record[RECORD_BYTES], expected[RECORD_BYTES];
    static int count[64][RECORDS];
    for (int number = 0; number < RECORDS; number++) {
        record_of(record, rank, number);
        must(is_ordered ? MPI_File_write_ordered(file, record, RECORD_BYTES, MPI_BYTE, MPI_STATUS_IGNORE)
                        : MPI_File_write_shared(file, record, RECORD_BYTES, MPI_BYTE, MPI_STATUS_IGNORE),
             "writing with the shared file pointer");
    }
    sync_all(file);
    for (int place = 0; place < ranks * RECORDS; place++) {
        int of, number;
        must(MPI_File_read_at(file, (MPI_Offset)place * RECORD_BYTES, record, RECORD_BYTES, MPI_BYTE,
                              MPI_STATUS_IGNORE),
             "MPI_File_read_at");
        if (sscanf(record, "%d %d", &of, &number) != 2 || of < 0 || of >= ranks || number < 0 || number >= RECORDS)
            fail("record %d is missing", place);
        record_of(expected, of, number);
        if (memcmp(record, expected, RECORD_BYTES) || count[of][number]++)
            fail("record %d of rank %d is torn or there twice", number, of);
        if (is_ordered && (of != place % ranks || number != place / ranks))
            fail("place %d has record %d of rank %d", place, number, of);
    }
}

int main(int argc, char **argv) {
    start_ranks(&argc, &argv);
    if (argc != 3 || ranks > 64)
        fail("usage: log_locks_mpi PATTERN PATH");
    MPI_File file = open_file(argv[2]);
    if (!strcmp(argv[1], "sieve"))
        sieve(file);
    else if (!strcmp(argv[1], "atomic") || !strcmp(argv[1], "atomic-holes"))
        atomic(file, !!strcmp(argv[1], "atomic"));
    else if (!strcmp(argv[1], "shared") || !strcmp(argv[1], "ordered"))
        shared(file, argv[1][0] == 'o');
    else
        fail("no such pattern: %s", argv[1]);
    must(MPI_File_close(&file), "MPI_File_close");
    return end_ranks(argv[1]);
}
