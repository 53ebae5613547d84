/* SPDX-License-Identifier: Apache-2.0
 *
 * The component of the framework fs: opens, closes and deletes files of log stores, sets and
 * returns their size, and syncs them. */
#include "components.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* A larger index is not exchanged: each rank keeps all of it in memory while it opens the file. */
static const uint64_t EXCHANGED_BYTES_MAX = 512u << 20;

/* The facts that rank 0 determines for all ranks. */
struct plan {
    struct failure failure;
    /* The number of index logs to read. */
    int64_t index_logs;
    /* A random number, see `open_file`. */
    uint64_t pointer_number;
};

/* Reads the hints that apply to this file into the options of its store. */
static void read_hints(struct opal_info_t *info, const char *name, quell_choices *choices, struct open_file *open,
                       struct failure *failure) {
    char value[64], *end;
    if (*hint(info, "quell_buffer", value)) {
        unsigned long long bytes = strtoull(value, &end, 10);
        if (*end || bytes < 4096 || bytes > 1 << 30)
            fail(failure, EINVAL, "the hint quell_buffer is '%s', and not a number of bytes from 4096 to 1073741824",
                 value);
        choices->buffer_bytes = (size_t)bytes;
    }
    int64_t threshold = quell_virtual_flatten_bytes(name);
    if (*hint(info, "quell_index", value)) {
        if (!strcmp(value, "flatten"))
            threshold = threshold > 0 ? threshold : 64 << 20;
        else if (!strcmp(value, "parallel"))
            threshold = 0;
        else
            fail(failure, EINVAL, "the hint quell_index is '%s', and not parallel or flatten", value);
    }
    open->flatten_bytes = threshold > 0 ? (uint64_t)threshold : 0;
}

/* Opens the store, and the path of the file in it. */
static void open_store(struct opal_info_t *info, const char *name, struct open_file *open, struct failure *failure) {
    quell_choices choices = {0};
    int found = quell_virtual_path(name, open->path, sizeof open->path);
    set_failure(failure, found);
    if (found == 0)
        fail(failure, ENOENT, "open %s: it lies below no virtual directory of QUELL_VIEW on this rank", name);
    if (!failure->number)
        read_hints(info, name, &choices, open, failure);
    if (!failure->number)
        set_failure(failure, quell_virtual_store(name, &choices, &open->store));
}

static int flags_of(int amode) {
    if (amode & MPI_MODE_RDWR)
        return O_RDWR;
    return amode & MPI_MODE_WRONLY ? O_WRONLY : O_RDONLY;
}

/* Rank 0 opens the file, so that only one rank creates it, and looks for its index logs. */
static void open_first(struct open_file *open, int amode, struct plan *plan) {
    int flags = flags_of(amode) | (amode & MPI_MODE_CREATE ? O_CREAT : 0) | (amode & MPI_MODE_EXCL ? O_EXCL : 0);
    set_failure(&plan->failure, quell_open(open->store, open->path, flags, 0666, &open->file));
    if (!plan->failure.number && !(amode & MPI_MODE_WRONLY)) {
        plan->index_logs = quell_index_logs(open->store, open->path);
        set_failure(&plan->failure, plan->index_logs);
    }
}

/* Reads the index of the file by all ranks together and opens the file with it. Parallel Index
 * Read: each rank reads a share of the index logs. Leaves the file as it is if the index is too
 * large to be exchanged. Collective. */
static void open_together(struct open_file *open, int amode, int64_t index_logs, MPI_Comm comm,
                          struct failure *failure) {
    int rank, ranks;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &ranks);
    int shares = index_logs < ranks ? (int)index_logs : ranks;
    /* Spreads the shares over the ranks, and so over the nodes. */
    int64_t number = (int64_t)rank * shares / ranks;
    bool reads = rank == 0 || (int64_t)(rank - 1) * shares / ranks != number;
    quell_share *share = NULL;
    quell_bytes own = {0}, *blocks = NULL;
    if (reads) {
        int64_t read = quell_read_share(open->store, open->path, (size_t)number, (size_t)shares, &share);
        /* A share that is too large makes the sum too large. */
        if (read == -EFBIG)
            own.length = EXCHANGED_BYTES_MAX + 1;
        else
            set_failure(failure, read);
        if (share)
            quell_share_bytes(share, &own);
    }
    agree(failure, comm);
    char *memory = NULL;
    size_t count = 0;
    if (!failure->number && exchange(comm, &own, EXCHANGED_BYTES_MAX, &memory, &blocks, &count)) {
        quell_file *file = NULL;
        set_failure(failure, quell_open_with_shares(open->store, open->path, flags_of(amode), blocks, count, &file));
        if (file) {
            /* Rank 0 has opened the file before. */
            set_failure(failure, quell_close(open->file));
            open->file = file;
        }
    }
    quell_share_free(share);
    free(memory);
    free(blocks);
}

static void release(struct open_file *open) {
    if (open) {
        quell_close(open->pointer);
        quell_close(open->file);
        quell_store_close(open->store);
        free(open);
    }
}

static int fs_open(struct ompi_communicator_t *comm, const char *name, int amode_of_ompio, struct opal_info_t *info,
                   struct ompio_file_t *handle) {
    /* ompio passes "read and write" for "write only". */
    int rank, ranks, amode = handle->f_amode;
    struct plan plan = {0};
    struct failure failure = {0};
    (void)amode_of_ompio;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &ranks);
    struct open_file *open = calloc(1, sizeof *open);
    if (!open)
        fail(&failure, ENOMEM, "open %s: no memory", name);
    /* The first process that opens a store creates its internal files. */
    if (rank == 0 && !failure.number)
        open_store(info, name, open, &failure);
    if (rank == 0 && !failure.number) {
        open->writes = !(amode & MPI_MODE_RDONLY);
        open_first(open, amode, &plan);
    }
    if (rank == 0 && failure.number)
        plan.failure = failure;
    if (rank == 0 && getrandom(&plan.pointer_number, sizeof plan.pointer_number, 0) < 0)
        fail(&plan.failure, errno, "open %s: no random number", name);
    PMPI_Bcast(&plan, sizeof plan, MPI_BYTE, 0, comm);
    if (open)
        open->pointer_number = plan.pointer_number;
    if (!plan.failure.number && rank && !failure.number) {
        open_store(info, name, open, &failure);
        open->writes = !(amode & MPI_MODE_RDONLY);
    }
    if (plan.failure.number)
        failure = plan.failure;
    else
        agree(&failure, comm);
    if (!failure.number && ranks > 1 && plan.index_logs > 0)
        open_together(open, amode, plan.index_logs, comm, &failure);
    if (!failure.number && !open->file)
        set_failure(&failure, quell_open(open->store, open->path, flags_of(amode), 0, &open->file));
    if (!plan.failure.number)
        agree(&failure, comm);
    if (failure.number) {
        release(open);
        return error_code(&failure);
    }
    handle->f_fs_ptr = open;
    /* Cyclic assignment of stripes to aggregators has no meaning for logs. */
    handle->f_stripe_size = 0;
    handle->f_stripe_count = 1;
    return OMPI_SUCCESS;
}

/* Index Flatten: each rank reads a share of the index logs, which its node has in its cache if it
 * has written them, and rank 0 writes one index of all shares. A file that cannot be flattened is
 * read from its logs, so this fails without an error. Collective. */
static void flatten(struct open_file *open, MPI_Comm comm) {
    int rank, ranks;
    int64_t logs = 0;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &ranks);
    if (rank == 0)
        logs = quell_index_logs(open->store, open->path);
    PMPI_Bcast(&logs, 1, MPI_INT64_T, 0, comm);
    if (logs < 2)
        return;
    int shares = logs < ranks ? (int)logs : ranks;
    quell_share *share = NULL;
    quell_bytes own = {0}, *blocks = NULL;
    char *memory = NULL;
    size_t count = 0;
    if (rank < shares) {
        if (quell_read_share(open->store, open->path, (size_t)rank, (size_t)shares, &share) == 0)
            quell_share_bytes(share, &own);
        else
            own.length = open->flatten_bytes + 1; /* more than is gathered */
    }
    if (gather(comm, &own, open->flatten_bytes, &memory, &blocks, &count) && rank == 0)
        quell_flatten_shares(open->store, open->path, blocks, count);
    quell_share_free(share);
    free(memory);
    free(blocks);
}

static int fs_close(struct ompio_file_t *handle) {
    struct open_file *open = handle->f_fs_ptr;
    struct failure failure = {0};
    /* ompio also closes a file that could not be opened. */
    if (!open)
        return OMPI_SUCCESS;
    failure = open->untold;
    set_failure(&failure, quell_close(open->file));
    open->file = NULL;
    agree(&failure, handle->f_comm);
    if (!failure.number && open->writes && open->flatten_bytes && !(handle->f_amode & MPI_MODE_DELETE_ON_CLOSE))
        flatten(open, handle->f_comm);
    release(open);
    handle->f_fs_ptr = NULL;
    return error_code(&failure);
}

static int fs_delete(char *name, struct opal_info_t *info) {
    struct open_file *open = calloc(1, sizeof *open);
    struct failure failure = {0};
    if (!open)
        fail(&failure, ENOMEM, "delete %s: no memory", name);
    if (!failure.number)
        open_store(info, name, open, &failure);
    if (!failure.number)
        set_failure(&failure, quell_remove(open->store, open->path));
    release(open);
    return error_code(&failure);
}

static int fs_set_size(struct ompio_file_t *handle, OMPI_MPI_OFFSET_TYPE size) {
    struct open_file *open = handle->f_fs_ptr;
    struct failure failure = {0};
    /* Data that a rank has written before must not follow the truncation. */
    set_failure(&failure, quell_publish(open->file));
    agree(&failure, handle->f_comm);
    if (!failure.number && handle->f_rank == 0)
        set_failure(&failure, quell_file_truncate(open->file, (uint64_t)size));
    agree(&failure, handle->f_comm);
    /* Makes the truncation visible. */
    if (!failure.number && handle->f_rank)
        set_failure(&failure, quell_sync(open->file));
    agree(&failure, handle->f_comm);
    return error_code(&failure);
}

static int fs_get_size(struct ompio_file_t *handle, OMPI_MPI_OFFSET_TYPE *size) {
    struct open_file *open = handle->f_fs_ptr;
    struct failure failure = {0};
    quell_attributes attributes = {0};
    set_failure(&failure, quell_file_stat(open->file, &attributes));
    *size = (OMPI_MPI_OFFSET_TYPE)attributes.size_bytes;
    return error_code(&failure);
}

static int fs_sync(struct ompio_file_t *handle) {
    struct open_file *open = handle->f_fs_ptr;
    struct failure failure = open->untold;
    set_failure(&failure, quell_sync(open->file));
    open->untold.number = 0;
    agree(&failure, handle->f_comm);
    return error_code(&failure);
}

static mca_fs_base_module_t module = {
    .fs_module_init = succeed,
    .fs_module_finalize = succeed,
    .fs_file_open = fs_open,
    .fs_file_close = fs_close,
    .fs_file_delete = fs_delete,
    .fs_file_set_size = fs_set_size,
    .fs_file_get_size = fs_get_size,
    .fs_file_sync = fs_sync,
};

static int component_open(void) { return is_right_version(true) ? OMPI_SUCCESS : OMPI_ERR_NOT_AVAILABLE; }

static mca_fs_base_module_t *file_query(struct ompio_file_t *handle, int *priority) {
    *priority = PRIORITY;
    return is_ours(handle->f_filename) ? &module : NULL;
}

OMPI_DECLSPEC extern mca_fs_base_component_2_0_0_t mca_fs_quell_component;

mca_fs_base_component_2_0_0_t mca_fs_quell_component = {
    .fsm_version =
        {
            MCA_FS_BASE_VERSION_2_0_0,
            .mca_component_name = "quell",
            MCA_BASE_MAKE_VERSION(component, 0, 1, 0),
            .mca_open_component = component_open,
        },
    .fsm_init_query = succeed_with_threads,
    .fsm_file_query = file_query,
    .fsm_file_unquery = succeed,
};
