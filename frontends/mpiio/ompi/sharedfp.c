/* SPDX-License-Identifier: Apache-2.0
 *
 * The component of the framework sharedfp: shared file pointers. Open MPI's own components are not
 * used, also when all ranks run on one node: sm makes a semaphore in /dev/shm for each open file,
 * and names it after the last component of the path only. Jobs of one user with equal file names
 * then share a semaphore, and a job of another user cannot open its file. The other components
 * need a file at this path or defer writes until the file is closed.
 *
 * The pointer is a number of bytes, in a file of its own beside the file, which the first rank that
 * uses the pointer creates and rank 0 removes when the file is closed. A lock on it is held while
 * it is changed, so that each rank gets its own range. A missing or empty file means 0. */
#include "components.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* Writes the path of the file with the pointer. */
static bool pointer_path(const struct open_file *open, char path[PATH_MAX]) {
    const char *slash = strrchr(open->path, '/');
    int directory = slash ? (int)(slash - open->path) + 1 : 0;
    int length = snprintf(path, PATH_MAX, "%.*s.quell-shared-pointer-%016llx", directory, open->path,
                          (unsigned long long)open->pointer_number);
    return length < PATH_MAX;
}

static void open_pointer(struct open_file *open, int flags, struct failure *failure) {
    char path[PATH_MAX];
    if (open->pointer)
        return;
    if (pointer_path(open, path))
        set_failure(failure, quell_open(open->store, path, O_RDWR | flags, 0666, &open->pointer));
    else
        fail(failure, ENAMETOOLONG, "%s: its shared file pointer has no place", open->path);
}

/* Adds `bytes` to the pointer, and returns its previous value. */
static int64_t advance(struct open_file *open, int64_t bytes, struct failure *failure) {
    int64_t position = 0;
    open_pointer(open, O_CREAT, failure);
    if (failure->number)
        return 0;
    set_failure(failure, quell_lock(open->pointer, 0, 0, 1));
    if (failure->number)
        return 0;
    set_failure(failure, quell_pread(open->pointer, &position, sizeof position, 0));
    if (!failure->number && bytes) {
        int64_t next = position + bytes;
        set_failure(failure, quell_pwrite(open->pointer, &next, sizeof next, 0));
    }
    set_failure(failure, quell_unlock(open->pointer, 0, 0));
    return position;
}

static int64_t bytes_of(int count, struct ompi_datatype_t *datatype) {
    MPI_Count size;
    PMPI_Type_size_x(datatype, &size);
    return (int64_t)size * count;
}

/* Returns the range of each rank in the order of the ranks, after all earlier ones. Collective. */
static int64_t advance_in_order(struct ompio_file_t *handle, int64_t bytes, struct failure *failure) {
    struct open_file *open = handle->f_fs_ptr;
    int64_t before = 0, all = 0, start = 0;
    PMPI_Exscan(&bytes, &before, 1, MPI_INT64_T, MPI_SUM, handle->f_comm);
    PMPI_Allreduce(&bytes, &all, 1, MPI_INT64_T, MPI_SUM, handle->f_comm);
    if (handle->f_rank == 0) {
        before = 0; /* MPI_Exscan leaves it undefined */
        start = advance(open, all, failure);
    }
    agree(failure, handle->f_comm);
    PMPI_Bcast(&start, 1, MPI_INT64_T, 0, handle->f_comm);
    return start + before;
}

/* The functions of ompio that read and write count in elements of the view. */
static OMPI_MPI_OFFSET_TYPE elements(const struct ompio_file_t *handle, int64_t bytes) {
    return (OMPI_MPI_OFFSET_TYPE)bytes / (OMPI_MPI_OFFSET_TYPE)handle->f_etype_size;
}

static int sharedfp_open(struct ompi_communicator_t *comm, const char *name, int amode,
                         struct opal_info_t *info, struct ompio_file_t *handle) {
    (void)comm, (void)name, (void)amode, (void)info, (void)handle;
    return OMPI_SUCCESS;
}

/* Rank 0 removes the file with the pointer after all ranks have closed it. Collective. */
static int sharedfp_close(struct ompio_file_t *handle) {
    struct open_file *open = handle->f_fs_ptr;
    char path[PATH_MAX];
    if (!open)
        return OMPI_SUCCESS;
    int is_used = open->pointer != NULL, any = 0;
    quell_close(open->pointer);
    open->pointer = NULL;
    PMPI_Reduce(&is_used, &any, 1, MPI_INT, MPI_MAX, 0, handle->f_comm);
    if (any && pointer_path(open, path))
        quell_remove(open->store, path);
    return OMPI_SUCCESS;
}

/* Collective. ompio also calls this when a view is set, with 0, which must not create a file. */
static int sharedfp_seek(struct ompio_file_t *handle, OMPI_MPI_OFFSET_TYPE offset, int whence) {
    struct open_file *open = handle->f_fs_ptr;
    struct failure failure = {0};
    PMPI_Barrier(handle->f_comm);
    if (handle->f_rank == 0) {
        quell_attributes attributes = {0};
        int64_t target = (int64_t)offset * (int64_t)handle->f_etype_size;
        open_pointer(open, whence == MPI_SEEK_SET && offset == 0 ? 0 : O_CREAT, &failure);
        bool is_zero = failure.number == ENOENT && offset == 0 && whence == MPI_SEEK_SET;
        if (is_zero)
            failure.number = 0;
        if (!failure.number && !is_zero) {
            set_failure(&failure, quell_lock(open->pointer, 0, 0, 1));
            int64_t position = 0;
            if (whence == MPI_SEEK_CUR)
                set_failure(&failure, quell_pread(open->pointer, &position, sizeof position, 0));
            if (whence == MPI_SEEK_END) {
                set_failure(&failure, quell_file_stat(open->file, &attributes));
                position = (int64_t)attributes.size_bytes;
            }
            target += position;
            if (target < 0 && !failure.number)
                fail(&failure, EINVAL, "%s: the shared file pointer cannot be negative", open->path);
            if (!failure.number)
                set_failure(&failure, quell_pwrite(open->pointer, &target, sizeof target, 0));
            set_failure(&failure, quell_unlock(open->pointer, 0, 0));
        }
    }
    agree(&failure, handle->f_comm);
    return error_code(&failure);
}

/* ompio converts the number of bytes to elements. */
static int sharedfp_get_position(struct ompio_file_t *handle, OMPI_MPI_OFFSET_TYPE *offset) {
    struct failure failure = {0};
    *offset = (OMPI_MPI_OFFSET_TYPE)advance(handle->f_fs_ptr, 0, &failure);
    return error_code(&failure);
}

static int sharedfp_read(struct ompio_file_t *handle, void *into, int count, struct ompi_datatype_t *datatype,
                         ompi_status_public_t *status) {
    struct failure failure = {0};
    int64_t start = advance(handle->f_fs_ptr, bytes_of(count, datatype), &failure);
    if (failure.number)
        return error_code(&failure);
    return mca_common_ompio_file_read_at(handle, elements(handle, start), into, count, datatype, status);
}

static int sharedfp_write(struct ompio_file_t *handle, const void *from, int count,
                          struct ompi_datatype_t *datatype, ompi_status_public_t *status) {
    struct failure failure = {0};
    int64_t start = advance(handle->f_fs_ptr, bytes_of(count, datatype), &failure);
    if (failure.number)
        return error_code(&failure);
    return mca_common_ompio_file_write_at(handle, elements(handle, start), from, count, datatype, status);
}

static int sharedfp_iread(struct ompio_file_t *handle, void *into, int count, struct ompi_datatype_t *datatype,
                          ompi_request_t **request) {
    struct failure failure = {0};
    int64_t start = advance(handle->f_fs_ptr, bytes_of(count, datatype), &failure);
    if (failure.number)
        return error_code(&failure);
    return mca_common_ompio_file_iread_at(handle, elements(handle, start), into, count, datatype, request);
}

static int sharedfp_iwrite(struct ompio_file_t *handle, const void *from, int count,
                           struct ompi_datatype_t *datatype, ompi_request_t **request) {
    struct failure failure = {0};
    int64_t start = advance(handle->f_fs_ptr, bytes_of(count, datatype), &failure);
    if (failure.number)
        return error_code(&failure);
    return mca_common_ompio_file_iwrite_at(handle, elements(handle, start), from, count, datatype, request);
}

static int read_ordered(struct ompio_file_t *handle, void *into, int count, struct ompi_datatype_t *datatype,
                        ompi_status_public_t *status) {
    struct failure failure = {0};
    int64_t start = advance_in_order(handle, bytes_of(count, datatype), &failure);
    if (failure.number)
        return error_code(&failure);
    return mca_common_ompio_file_read_at_all(handle, elements(handle, start), into, count, datatype, status);
}

static int write_ordered(struct ompio_file_t *handle, const void *from, int count,
                         struct ompi_datatype_t *datatype, ompi_status_public_t *status) {
    struct failure failure = {0};
    int64_t start = advance_in_order(handle, bytes_of(count, datatype), &failure);
    if (failure.number)
        return error_code(&failure);
    return mca_common_ompio_file_write_at_all(handle, elements(handle, start), from, count, datatype, status);
}

/* The split operations are done when they begin; the end returns the status. */
static int read_ordered_begin(struct ompio_file_t *handle, void *into, int count,
                              struct ompi_datatype_t *datatype) {
    struct open_file *open = handle->f_fs_ptr;
    return read_ordered(handle, into, count, datatype, &open->split_status);
}

static int write_ordered_begin(struct ompio_file_t *handle, const void *from, int count,
                               struct ompi_datatype_t *datatype) {
    struct open_file *open = handle->f_fs_ptr;
    return write_ordered(handle, from, count, datatype, &open->split_status);
}

static int read_ordered_end(struct ompio_file_t *handle, void *into, ompi_status_public_t *status) {
    struct open_file *open = handle->f_fs_ptr;
    (void)into;
    if (status != MPI_STATUS_IGNORE)
        status->_ucount = open->split_status._ucount;
    return OMPI_SUCCESS;
}

static int write_ordered_end(struct ompio_file_t *handle, const void *from, ompi_status_public_t *status) {
    (void)from;
    return read_ordered_end(handle, NULL, status);
}

static mca_sharedfp_base_module_t module = {
    .sharedfp_module_init = succeed,
    .sharedfp_module_finalize = succeed,
    .sharedfp_seek = sharedfp_seek,
    .sharedfp_get_position = sharedfp_get_position,
    .sharedfp_read = sharedfp_read,
    .sharedfp_read_ordered = read_ordered,
    .sharedfp_read_ordered_begin = read_ordered_begin,
    .sharedfp_read_ordered_end = read_ordered_end,
    .sharedfp_iread = sharedfp_iread,
    .sharedfp_write = sharedfp_write,
    .sharedfp_write_ordered = write_ordered,
    .sharedfp_write_ordered_begin = write_ordered_begin,
    .sharedfp_write_ordered_end = write_ordered_end,
    .sharedfp_iwrite = sharedfp_iwrite,
    .sharedfp_file_open = sharedfp_open,
    .sharedfp_file_close = sharedfp_close,
};

static int component_open(void) { return is_right_version(false) ? OMPI_SUCCESS : OMPI_ERR_NOT_AVAILABLE; }

static mca_sharedfp_base_module_t *file_query(struct ompio_file_t *handle, int *priority) {
    *priority = PRIORITY;
    return is_ours(handle->f_filename) ? &module : NULL;
}

OMPI_DECLSPEC extern mca_sharedfp_base_component_2_0_0_t mca_sharedfp_quell_component;

mca_sharedfp_base_component_2_0_0_t mca_sharedfp_quell_component = {
    .sharedfpm_version =
        {
            MCA_SHAREDFP_BASE_VERSION_2_0_0,
            .mca_component_name = "quell",
            MCA_BASE_MAKE_VERSION(component, 0, 1, 0),
            .mca_open_component = component_open,
        },
    .sharedfpm_init_query = succeed_with_threads,
    .sharedfpm_file_query = file_query,
    .sharedfpm_file_unquery = succeed,
};
