/* Cases of MPI-IO whose data is checked: mpiio_cases CASE PATH [ARGUMENT]. Prints "CASE: N ranks"
 * if all checks hold. The path names a file that does not exist before, unless it is read. */
#include "mpi_ranks.h"

static const char *path, *argument;

#define MUST(call) must((call), #call)

#define REFUSED(class, call) refused((class), (call), #call)
static void refused(int class, int result, const char *call) {
    int found;
    if (result == MPI_SUCCESS)
        fail("%s succeeded", call);
    MPI_Error_class(result, &found);
    if (found != class) {
        char text[MPI_MAX_ERROR_STRING];
        int length;
        MPI_Error_string(result, text, &length);
        fail("%s failed with class %d instead of %d: %s", call, found, class, text);
    }
}

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            fail("line %d: not so: %s", __LINE__, #condition);                                                         \
    } while (0)

/* The byte at an offset of every file here that was written by `writer`. */
static char byte_at(MPI_Offset offset, int writer) {
    unsigned long x = (unsigned long)offset * 2654435761u + (unsigned long)writer * 40503u;
    return (char)(x >> 11 ^ x);
}

static void fill(char *bytes, MPI_Offset offset, size_t length, int writer) {
    for (size_t i = 0; i < length; i++)
        bytes[i] = byte_at(offset + (MPI_Offset)i, writer);
}

static void check(const char *bytes, MPI_Offset offset, size_t length, int writer, const char *when) {
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != byte_at(offset + (MPI_Offset)i, writer))
            fail("%s: byte %lld is not that of rank %d", when, (long long)offset + (long long)i, writer);
}

static MPI_File open_with(MPI_Comm comm, int mode, MPI_Info info) {
    MPI_File file;
    MUST(MPI_File_open(comm, path, mode, info, &file));
    return file;
}

static MPI_File open_shared(int mode) { return open_with(MPI_COMM_WORLD, mode, MPI_INFO_NULL); }

static void close_file(MPI_File *file) { MUST(MPI_File_close(file)); }

static MPI_Offset size_of(MPI_File file) {
    MPI_Offset size;
    MUST(MPI_File_get_size(file, &size));
    return size;
}

enum { RECORD = 1000, RECORDS = 64 };

static void view_records(MPI_File file, int of) {
    MPI_Datatype strided;
    MPI_Type_vector(RECORDS, RECORD, ranks * RECORD, MPI_BYTE, &strided);
    MPI_Type_commit(&strided);
    MUST(MPI_File_set_view(file, (MPI_Offset)of * RECORD, MPI_BYTE, strided, "native", MPI_INFO_NULL));
    MPI_Type_free(&strided);
}

static void fill_records(char *bytes, int of) {
    for (int i = 0; i < RECORDS; i++)
        fill(bytes + i * RECORD, ((MPI_Offset)i * ranks + of) * RECORD, RECORD, of);
}

static void check_records(const char *bytes, int of, const char *when) {
    for (int i = 0; i < RECORDS; i++)
        check(bytes + i * RECORD, ((MPI_Offset)i * ranks + of) * RECORD, RECORD, of, when);
}

/* Interleaved records, written and read collectively. */
static void strided(void) {
    static char bytes[RECORD * RECORDS];
    int next = (rank + 1) % ranks;
    MPI_Status status;
    int count;
    MPI_File file = open_shared(MPI_MODE_CREATE | MPI_MODE_RDWR);
    view_records(file, rank);
    fill_records(bytes, rank);
    MUST(MPI_File_write_all(file, bytes, sizeof bytes, MPI_BYTE, &status));
    MPI_Get_count(&status, MPI_BYTE, &count);
    CHECK(count == sizeof bytes);
    sync_all(file);
    view_records(file, next);
    memset(bytes, 0, sizeof bytes);
    MUST(MPI_File_read_all(file, bytes, sizeof bytes, MPI_BYTE, &status));
    MPI_Get_count(&status, MPI_BYTE, &count);
    CHECK(count == sizeof bytes);
    check_records(bytes, next, "after a sync");
    close_file(&file);
    file = open_shared(MPI_MODE_RDONLY);
    CHECK(size_of(file) == (MPI_Offset)RECORD * RECORDS * ranks);
    for (int of = 0; of < ranks; of++) {
        view_records(file, of);
        memset(bytes, 0, sizeof bytes);
        MUST(MPI_File_read_at_all(file, 0, bytes, sizeof bytes, MPI_BYTE, MPI_STATUS_IGNORE));
        check_records(bytes, of, "after a close");
    }
    close_file(&file);
}

/* Blocks of different lengths, in the file and in memory, behind a displacement. */
static void irregular(void) {
    enum { BLOCKS = 20, MOST = 64, SPACE = BLOCKS * MOST };
    int lengths[BLOCKS], in_file[BLOCKS], in_memory[BLOCKS], total = 0;
    static char memory[SPACE * 2];
    for (int i = 0; i < BLOCKS; i++) {
        lengths[i] = 1 + (i * 7 + rank * 3) % (MOST - 1);
        in_file[i] = (i * ranks + rank) * MOST + i % 5;
        in_memory[i] = i * 2 * MOST;
        if (lengths[i] > MOST - 5)
            lengths[i] = MOST - 5;
        total += lengths[i];
    }
    MPI_Datatype file_type, memory_type;
    MPI_Type_indexed(BLOCKS, lengths, in_file, MPI_BYTE, &file_type);
    MPI_Type_indexed(BLOCKS, lengths, in_memory, MPI_BYTE, &memory_type);
    MPI_Type_commit(&file_type);
    MPI_Type_commit(&memory_type);
    for (int i = 0; i < BLOCKS; i++)
        fill(memory + in_memory[i], 777 + in_file[i], (size_t)lengths[i], rank);
    MPI_File file = open_shared(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MUST(MPI_File_set_view(file, 777, MPI_BYTE, file_type, "native", MPI_INFO_NULL));
    MUST(MPI_File_write_all(file, memory, 1, memory_type, MPI_STATUS_IGNORE));
    close_file(&file);
    file = open_shared(MPI_MODE_RDONLY);
    memset(memory, 0, sizeof memory);
    MUST(MPI_File_set_view(file, 777, MPI_BYTE, file_type, "native", MPI_INFO_NULL));
    MPI_Status status;
    int count;
    MUST(MPI_File_read(file, memory, 1, memory_type, &status));
    MPI_Get_count(&status, MPI_BYTE, &count);
    CHECK(count == total);
    for (int i = 0; i < BLOCKS; i++)
        check(memory + in_memory[i], 777 + in_file[i], (size_t)lengths[i], rank, "irregular blocks");
    close_file(&file);
    MPI_Type_free(&file_type);
    MPI_Type_free(&memory_type);
}

/* Individual pointers and explicit offsets, with overlapping writes of one rank. */
static void independent(void) {
    char bytes[5000], read[5000];
    MPI_Offset mine = (MPI_Offset)rank * 5000, position;
    MPI_File file = open_shared(MPI_MODE_CREATE | MPI_MODE_RDWR);
    fill(bytes, mine, sizeof bytes, rank);
    MUST(MPI_File_seek(file, mine, MPI_SEEK_SET));
    for (int i = 0; i < 5; i++)
        MUST(MPI_File_write(file, bytes + 1000 * i, 1000, MPI_BYTE, MPI_STATUS_IGNORE));
    MUST(MPI_File_get_position(file, &position));
    CHECK(position == mine + 5000);
    memset(read, 'x', sizeof read);
    MUST(MPI_File_write_at(file, mine + 100, read, 50, MPI_BYTE, MPI_STATUS_IGNORE));
    MUST(MPI_File_write_at(file, mine + 100, bytes + 100, 50, MPI_BYTE, MPI_STATUS_IGNORE));
    MUST(MPI_File_read_at(file, mine, read, 5000, MPI_BYTE, MPI_STATUS_IGNORE));
    check(read, mine, 5000, rank, "own data before a sync");
    sync_all(file);
    int next = (rank + 1) % ranks;
    MUST(MPI_File_seek(file, (MPI_Offset)next * 5000 + 17, MPI_SEEK_SET));
    MUST(MPI_File_read(file, read, 1000, MPI_BYTE, MPI_STATUS_IGNORE));
    check(read, (MPI_Offset)next * 5000 + 17, 1000, next, "data of another rank");
    MPI_Status status;
    int count;
    MUST(MPI_File_read_at(file, (MPI_Offset)ranks * 5000 - 10, read, 5000, MPI_BYTE, &status));
    MPI_Get_count(&status, MPI_BYTE, &count);
    CHECK(count == 10);
    close_file(&file);
}

/* Extents of many megabytes, beyond 4 GiB. */
static void large(void) {
    size_t length = (24 << 20) + 13;
    MPI_Offset mine = (5LL << 30) + (MPI_Offset)rank * (MPI_Offset)length;
    char *bytes = malloc(length);
    MPI_File file = open_shared(MPI_MODE_CREATE | MPI_MODE_WRONLY);
    fill(bytes, mine, length, rank);
    MUST(MPI_File_write_at_all(file, mine, bytes, (int)length, MPI_BYTE, MPI_STATUS_IGNORE));
    close_file(&file);
    file = open_shared(MPI_MODE_RDONLY);
    CHECK(size_of(file) == (5LL << 30) + (MPI_Offset)ranks * (MPI_Offset)length);
    int next = (rank + 1) % ranks;
    MPI_Offset theirs = (5LL << 30) + (MPI_Offset)next * (MPI_Offset)length;
    memset(bytes, 0, length);
    MUST(MPI_File_read_at_all(file, theirs, bytes, (int)length, MPI_BYTE, MPI_STATUS_IGNORE));
    check(bytes, theirs, length, next, "large extents");
    MUST(MPI_File_read_at(file, 1 << 20, bytes, 1000, MPI_BYTE, MPI_STATUS_IGNORE));
    for (int i = 0; i < 1000; i++)
        CHECK(bytes[i] == 0);
    close_file(&file);
    free(bytes);
}

static void modes(void) {
    MPI_File file;
    char bytes[10] = "0123456789";
    REFUSED(MPI_ERR_NO_SUCH_FILE, MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
    REFUSED(MPI_ERR_NO_SUCH_FILE, MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    file = open_shared(MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY);
    if (rank == 0)
        MUST(MPI_File_write_at(file, 0, bytes, 10, MPI_BYTE, MPI_STATUS_IGNORE));
    close_file(&file);
    int exclusive = MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR;
    REFUSED(MPI_ERR_FILE_EXISTS, MPI_File_open(MPI_COMM_WORLD, path, exclusive, MPI_INFO_NULL, &file));
    /* An existing file is not truncated. */
    file = open_shared(MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_APPEND);
    CHECK(size_of(file) == 10);
    MPI_Offset position;
    MUST(MPI_File_get_position(file, &position));
    CHECK(position == 10);
    close_file(&file);
    file = open_shared(MPI_MODE_RDONLY);
    REFUSED(MPI_ERR_READ_ONLY, MPI_File_write_at(file, 0, bytes, 10, MPI_BYTE, MPI_STATUS_IGNORE));
    close_file(&file);
    /* Each rank a communicator of its own. */
    char own[4096], read[4];
    snprintf(own, sizeof own, "%s.%d", path, rank);
    MUST(MPI_File_open(MPI_COMM_SELF, own, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
    MUST(MPI_File_write(file, own + strlen(own) - 4, 4, MPI_BYTE, MPI_STATUS_IGNORE));
    MUST(MPI_File_read_at(file, 0, read, 4, MPI_BYTE, MPI_STATUS_IGNORE));
    CHECK(!memcmp(own + strlen(own) - 4, read, 4));
    close_file(&file);
    /* Half of the ranks. */
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    if (rank % 2) {
        file = open_with(half, MPI_MODE_RDONLY, MPI_INFO_NULL);
        MUST(MPI_File_read_at_all(file, 0, read, 4, MPI_BYTE, MPI_STATUS_IGNORE));
        CHECK(!memcmp("0123", read, 4));
        close_file(&file);
    }
    MPI_Comm_free(&half);
}

static void deletion(void) {
    MPI_File file = open_shared(MPI_MODE_CREATE | MPI_MODE_RDWR);
    close_file(&file);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MUST(MPI_File_delete(path, MPI_INFO_NULL));
        REFUSED(MPI_ERR_NO_SUCH_FILE, MPI_File_delete(path, MPI_INFO_NULL));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    REFUSED(MPI_ERR_NO_SUCH_FILE, MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
    file = open_shared(MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE);
    MUST(MPI_File_write_at(file, rank, "x", 1, MPI_BYTE, MPI_STATUS_IGNORE));
    close_file(&file);
    MPI_Barrier(MPI_COMM_WORLD);
    REFUSED(MPI_ERR_NO_SUCH_FILE, MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
}

static void sizes(void) {
    const MPI_Offset tested[] = {300000, 100, (1LL << 33) + 17, 0, 5000};
    char bytes[100];
    MPI_File file = open_shared(MPI_MODE_CREATE | MPI_MODE_RDWR);
    for (unsigned i = 0; i < sizeof tested / sizeof *tested; i++) {
        /* Data that is not synced yet is truncated, too. */
        MUST(MPI_File_write_at(file, 1000 + rank, "x", 1, MPI_BYTE, MPI_STATUS_IGNORE));
        MUST(MPI_File_set_size(file, tested[i]));
        CHECK(size_of(file) == tested[i]);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MUST(MPI_File_read_at(file, 4990, bytes, 10, MPI_BYTE, MPI_STATUS_IGNORE));
    for (int i = 0; i < 10; i++)
        CHECK(bytes[i] == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    fill(bytes, rank * 100, 100, rank);
    MUST(MPI_File_write_at(file, rank * 100, bytes, 100, MPI_BYTE, MPI_STATUS_IGNORE));
    sync_all(file);
    MUST(MPI_File_preallocate(file, 20000));
    CHECK(size_of(file) == 20000);
    MUST(MPI_File_preallocate(file, 100));
    CHECK(size_of(file) == 20000);
    sync_all(file);
    for (int of = 0; of < ranks; of++) {
        MUST(MPI_File_read_at(file, of * 100, bytes, 100, MPI_BYTE, MPI_STATUS_IGNORE));
        check(bytes, of * 100, 100, of, "after preallocate");
    }
    close_file(&file);
}

static void nonblocking(void) {
    enum { EACH = 3000 };
    static char bytes[4][EACH], read[4][EACH];
    MPI_Request requests[4];
    MPI_File file = open_shared(MPI_MODE_CREATE | MPI_MODE_RDWR);
    for (int i = 0; i < 4; i++) {
        MPI_Offset at = ((MPI_Offset)i * ranks + rank) * EACH;
        fill(bytes[i], at, EACH, rank);
        if (i < 2)
            MUST(MPI_File_iwrite_at(file, at, bytes[i], EACH, MPI_BYTE, &requests[i]));
        else
            MUST(MPI_File_iwrite_at_all(file, at, bytes[i], EACH, MPI_BYTE, &requests[i]));
    }
    MUST(MPI_Waitall(4, requests, MPI_STATUSES_IGNORE));
    sync_all(file);
    int next = (rank + 1) % ranks;
    for (int i = 0; i < 4; i++) {
        MPI_Offset at = ((MPI_Offset)i * ranks + next) * EACH;
        if (i < 2)
            MUST(MPI_File_iread_at(file, at, read[i], EACH, MPI_BYTE, &requests[i]));
        else
            MUST(MPI_File_iread_at_all(file, at, read[i], EACH, MPI_BYTE, &requests[i]));
    }
    MUST(MPI_Waitall(4, requests, MPI_STATUSES_IGNORE));
    for (int i = 0; i < 4; i++)
        check(read[i], ((MPI_Offset)i * ranks + next) * EACH, EACH, next, "nonblocking");
    close_file(&file);
}

static void split_collective(void) {
    static char bytes[RECORD * RECORDS];
    int next = (rank + 1) % ranks;
    MPI_File file = open_shared(MPI_MODE_CREATE | MPI_MODE_RDWR);
    view_records(file, rank);
    fill_records(bytes, rank);
    MUST(MPI_File_write_all_begin(file, bytes, sizeof bytes, MPI_BYTE));
    MUST(MPI_File_write_all_end(file, bytes, MPI_STATUS_IGNORE));
    sync_all(file);
    view_records(file, next);
    memset(bytes, 0, sizeof bytes);
    MUST(MPI_File_read_at_all_begin(file, 0, bytes, sizeof bytes, MPI_BYTE));
    MUST(MPI_File_read_at_all_end(file, bytes, MPI_STATUS_IGNORE));
    check_records(bytes, next, "split collective");
    close_file(&file);
}

/* Shared file pointers: every rank writes records of which each is found once. */
static void shared_pointer(void) {
    enum { EACH = 8, LENGTH = 40 };
    char bytes[LENGTH], *all = calloc((size_t)ranks, EACH * LENGTH);
    MPI_Offset position;
    MPI_File file = open_shared(MPI_MODE_CREATE | MPI_MODE_RDWR);
    for (int i = 0; i < EACH; i++) {
        memset(bytes, 'A' + rank, LENGTH);
        bytes[0] = (char)('a' + i);
        MUST(MPI_File_write_shared(file, bytes, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    }
    sync_all(file);
    CHECK(size_of(file) == (MPI_Offset)ranks * EACH * LENGTH);
    MUST(MPI_File_read_at(file, 0, all, ranks * EACH * LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
    for (int of = 0; of < ranks; of++)
        for (int i = 0; i < EACH; i++) {
            int found = 0;
            memset(bytes, 'A' + of, LENGTH);
            bytes[0] = (char)('a' + i);
            for (int at = 0; at < ranks * EACH; at++)
                found += !memcmp(all + at * LENGTH, bytes, LENGTH);
            if (found != 1)
                fail("record %d of rank %d was found %d times", i, of, found);
        }
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(MPI_File_get_position_shared(file, &position));
    CHECK(position == (MPI_Offset)ranks * EACH * LENGTH);
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    /* In the order of the ranks. */
    memset(bytes, 'a' + rank, LENGTH);
    MUST(MPI_File_write_ordered(file, bytes, rank + 1, MPI_BYTE, MPI_STATUS_IGNORE));
    sync_all(file);
    MUST(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    memset(bytes, 0, LENGTH);
    MUST(MPI_File_read_ordered(file, bytes, rank + 1, MPI_BYTE, MPI_STATUS_IGNORE));
    for (int i = 0; i <= rank; i++)
        CHECK(bytes[i] == 'a' + rank);
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(MPI_File_read_shared(file, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(MPI_File_get_position_shared(file, &position));
    CHECK(position == (MPI_Offset)ranks * (ranks + 1) / 2 + ranks);
    /* In a view of integers, the pointer counts integers, and begins at 0. */
    int value = 1000 + rank;
    MPI_Status status;
    MUST(MPI_File_set_view(file, 4096, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    MUST(MPI_File_write_ordered_begin(file, &value, 1, MPI_INT));
    MUST(MPI_File_write_ordered_end(file, &value, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(MPI_File_get_position_shared(file, &position));
    CHECK(position == ranks);
    sync_all(file);
    MUST(MPI_File_seek_shared(file, 1 - ranks, MPI_SEEK_CUR));
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(MPI_File_get_position_shared(file, &position));
    CHECK(position == 1);
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(MPI_File_read_at(file, rank, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
    CHECK(value == 1000 + rank);
    close_file(&file);
    free(all);
}

/* In atomic mode, overlapping writes of ranks are not mixed, and are visible at once. */
static void atomic(void) {
    enum { LENGTH = 20000 };
    static char bytes[LENGTH];
    MPI_File file = open_shared(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MUST(MPI_File_set_atomicity(file, 1));
    for (int turn = 0; turn < 5; turn++) {
        memset(bytes, 'a' + rank, LENGTH);
        MUST(MPI_File_write_at(file, 0, bytes, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
        MUST(MPI_File_read_at(file, 0, bytes, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE));
        for (int i = 1; i < LENGTH; i++)
            CHECK(bytes[i] == bytes[0]);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    close_file(&file);
}

/* A hint with an invalid value makes the open fail on all ranks; the valid ones are accepted. */
static void hints(void) {
    MPI_Info info;
    MPI_File file;
    MPI_Info_create(&info);
    MPI_Info_set(info, "quell_buffer", rank == ranks - 1 ? "many" : "65536");
    int mode = MPI_MODE_CREATE | MPI_MODE_RDWR;
    int result = MPI_File_open(MPI_COMM_WORLD, path, mode, info, &file);
    CHECK(result != MPI_SUCCESS);
    char text[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(result, text, &length);
    CHECK(strstr(text, "quell_buffer"));
    MPI_Info_set(info, "quell_buffer", "65536");
    MPI_Info_set(info, "quell_index", argument ? argument : "parallel");
    file = open_with(MPI_COMM_WORLD, mode, info);
    MPI_Info_free(&info);
    static char bytes[RECORD * RECORDS];
    view_records(file, rank);
    fill_records(bytes, rank);
    MUST(MPI_File_write_all(file, bytes, sizeof bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    close_file(&file);
    file = open_shared(MPI_MODE_RDONLY);
    view_records(file, (rank + 1) % ranks);
    MUST(MPI_File_read_all(file, bytes, sizeof bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    check_records(bytes, (rank + 1) % ranks, "with hints");
    close_file(&file);
}

/* The open fails on every rank with an error string that contains the argument. */
static void refusal(void) {
    MPI_File file;
    char text[MPI_MAX_ERROR_STRING];
    int length;
    int result = MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    if (result == MPI_SUCCESS)
        fail("%s was opened", path);
    MPI_Error_string(result, text, &length);
    if (!strstr(text, argument))
        fail("the error is '%s', without '%s'", text, argument);
    printf("rank %d: %s\n", rank, text);
}

/* Writes records at random places, for `random_read`. */
static MPI_Offset random_place(int i, int of) {
    /* 1009 is a prime larger than the number of records, so the places of one rank differ. */
    return ((MPI_Offset)((i * 337 + of * 101) % 1009) * ranks + of) * 512;
}

static void random_write(void) {
    char bytes[512];
    MPI_File file = open_shared(MPI_MODE_CREATE | MPI_MODE_WRONLY);
    for (int i = 0; i < 1000; i++) {
        fill(bytes, random_place(i, rank), sizeof bytes, rank);
        MUST(MPI_File_write_at(file, random_place(i, rank), bytes, sizeof bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    }
    close_file(&file);
}

static void random_read(void) {
    char bytes[512];
    int of = (rank + 1) % ranks;
    MPI_File file = open_shared(MPI_MODE_RDONLY);
    for (int i = 0; i < 1000; i += 50) {
        MUST(MPI_File_read_at(file, random_place(i, of), bytes, sizeof bytes, MPI_BYTE, MPI_STATUS_IGNORE));
        check(bytes, random_place(i, of), sizeof bytes, of, "a random record");
    }
    close_file(&file);
}

static void open_only(void) {
    MPI_File file = open_shared(MPI_MODE_RDONLY);
    close_file(&file);
}

static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
    {"strided", strided},           {"irregular", irregular}, {"independent", independent},
    {"large", large},               {"modes", modes},         {"deletion", deletion},
    {"sizes", sizes},               {"nonblocking", nonblocking}, {"split_collective", split_collective},
    {"shared_pointer", shared_pointer}, {"atomic", atomic},   
    {"hints", hints},               {"refusal", refusal},     {"random_write", random_write},
    {"random_read", random_read},   {"open_only", open_only},
};

int main(int argc, char **argv) {
    start_ranks(&argc, &argv);
    if (argc < 3)
        fail("mpiio_cases CASE PATH [ARGUMENT]");
    path = argv[2];
    argument = argv[3];
    for (unsigned i = 0; i < sizeof CASES / sizeof *CASES; i++)
        if (!strcmp(CASES[i].name, argv[1])) {
            CASES[i].run();
            return end_ranks(argv[1]);
        }
    fail("there is no case %s", argv[1]);
}
