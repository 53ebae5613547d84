/* SPDX-License-Identifier: Apache-2.0
 *
 * The component of the framework fbtl: reads and writes a list of extents as one call of libquell,
 * so that the extents of one call of MPI are one append with a short entry in the index log. It has
 * no operations in the background: ompio then does them at once. */
#include "components.h"

#include <errno.h>
#include <stdlib.h>

/* Keeps the error of a transfer, and returns the number of bytes, or an error. */
static ssize_t result(struct open_file *open, const struct failure *failure, int64_t bytes, bool is_write) {
    open->transfer = *failure;
    if (!failure->number)
        return (ssize_t)bytes;
    if (is_write && !open->untold.number)
        open->untold = *failure;
    return OMPI_ERROR;
}

/* Locks the extents from the first to the last one in atomic mode: the lock makes data of other
 * ranks visible, and releasing it publishes the data of this one. */
static bool lock(struct ompio_file_t *handle, bool is_write, uint64_t *first, uint64_t *length,
                 struct failure *failure) {
    struct open_file *open = handle->f_fs_ptr;
    uint64_t end = 0;
    *first = UINT64_MAX;
    if (!handle->f_atomicity || handle->f_num_of_io_entries == 0)
        return false;
    for (int i = 0; i < handle->f_num_of_io_entries; i++) {
        uint64_t offset = (uint64_t)(uintptr_t)handle->f_io_array[i].offset;
        uint64_t extent_end = offset + handle->f_io_array[i].length;
        *first = offset < *first ? offset : *first;
        end = extent_end > end ? extent_end : end;
    }
    *length = end - *first;
    if (*length == 0)
        return false;
    set_failure(failure, quell_lock(open->file, *first, *length, is_write));
    return !failure->number;
}

static ssize_t fbtl_preadv(struct ompio_file_t *handle) {
    struct open_file *open = handle->f_fs_ptr;
    struct failure failure = {0};
    size_t count = (size_t)handle->f_num_of_io_entries;
    uint64_t first, length;
    int64_t bytes = 0;
    quell_read_piece *pieces = calloc(count ? count : 1, sizeof *pieces);
    if (!pieces)
        fail(&failure, ENOMEM, "read %s: no memory for the list of extents", handle->f_filename);
    for (size_t i = 0; pieces && i < count; i++) {
        const mca_common_ompio_io_array_t *extent = &handle->f_io_array[i];
        pieces[i].offset = (uint64_t)(uintptr_t)extent->offset;
        pieces[i].into = extent->memory_address;
        pieces[i].length = extent->length;
    }
    bool is_locked = !failure.number && lock(handle, false, &first, &length, &failure);
    if (!failure.number) {
        bytes = quell_read_pieces(open->file, pieces, count);
        set_failure(&failure, bytes);
    }
    if (is_locked)
        set_failure(&failure, quell_unlock(open->file, first, length));
    free(pieces);
    return result(open, &failure, bytes, false);
}

static ssize_t fbtl_pwritev(struct ompio_file_t *handle) {
    struct open_file *open = handle->f_fs_ptr;
    struct failure failure = {0};
    size_t count = (size_t)handle->f_num_of_io_entries;
    uint64_t first, length;
    int64_t bytes = 0;
    quell_write_piece *pieces = calloc(count ? count : 1, sizeof *pieces);
    if (!pieces)
        fail(&failure, ENOMEM, "write %s: no memory for the list of extents", handle->f_filename);
    for (size_t i = 0; pieces && i < count; i++) {
        const mca_common_ompio_io_array_t *extent = &handle->f_io_array[i];
        pieces[i].offset = (uint64_t)(uintptr_t)extent->offset;
        pieces[i].from = extent->memory_address;
        pieces[i].length = extent->length;
    }
    bool is_locked = !failure.number && lock(handle, true, &first, &length, &failure);
    if (!failure.number) {
        bytes = quell_write_pieces(open->file, pieces, count);
        set_failure(&failure, bytes);
    }
    if (is_locked)
        set_failure(&failure, quell_unlock(open->file, first, length));
    free(pieces);
    return result(open, &failure, bytes, true);
}

static mca_fbtl_base_module_t module = {
    .fbtl_module_init = succeed,
    .fbtl_module_finalize = succeed,
    .fbtl_preadv = fbtl_preadv,
    .fbtl_pwritev = fbtl_pwritev,
};

static int component_open(void) { return is_right_version(false) ? OMPI_SUCCESS : OMPI_ERR_NOT_AVAILABLE; }

static mca_fbtl_base_module_t *file_query(struct ompio_file_t *handle, int *priority) {
    *priority = PRIORITY;
    return is_ours(handle->f_filename) ? &module : NULL;
}

OMPI_DECLSPEC extern mca_fbtl_base_component_2_0_0_t mca_fbtl_quell_component;

mca_fbtl_base_component_2_0_0_t mca_fbtl_quell_component = {
    .fbtlm_version =
        {
            MCA_FBTL_BASE_VERSION_2_0_0,
            .mca_component_name = "quell",
            MCA_BASE_MAKE_VERSION(component, 0, 1, 0),
            .mca_open_component = component_open,
        },
    .fbtlm_init_query = succeed_with_threads,
    .fbtlm_file_query = file_query,
    .fbtlm_file_unquery = succeed,
};
