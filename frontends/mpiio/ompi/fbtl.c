/* SPDX-License-Identifier: Apache-2.0
 *
 * The component of the framework fbtl: reads and writes a list of extents as one call of libquell,
 * so that the extents of one call of MPI are one append with a short entry in the index log. It has
 * no operations in the background: ompio then does them at once. */
#include "components.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Keeps the error of a transfer, and returns the number of bytes, or an error. */
static ssize_t result(struct open_file *open, int64_t bytes) {
    set_failure(&open->transfer, bytes);
    return open->transfer.number ? OMPI_ERROR : (ssize_t)bytes;
}

static ssize_t refuse(struct ompio_file_t *handle, int number, const char *reason) {
    struct open_file *open = handle->f_fs_ptr;
    open->transfer.number = number;
    snprintf(open->transfer.message, sizeof open->transfer.message, "%s: %s", handle->f_filename, reason);
    return OMPI_ERROR;
}

static ssize_t refuse_atomic(struct ompio_file_t *handle) {
    return refuse(handle, ENOTSUP, "atomic mode is not supported; call MPI_File_set_atomicity with false");
}

static ssize_t fbtl_preadv(struct ompio_file_t *handle) {
    struct open_file *open = handle->f_fs_ptr;
    size_t count = (size_t)handle->f_num_of_io_entries;
    open->transfer.number = 0;
    if (handle->f_atomicity)
        return refuse_atomic(handle);
    quell_read_piece *pieces = calloc(count ? count : 1, sizeof *pieces);
    if (!pieces)
        return refuse(handle, ENOMEM, "no memory for the list of extents");
    for (size_t i = 0; i < count; i++) {
        const mca_common_ompio_io_array_t *extent = &handle->f_io_array[i];
        pieces[i].offset = (uint64_t)(uintptr_t)extent->offset;
        pieces[i].into = extent->memory_address;
        pieces[i].length = extent->length;
    }
    int64_t bytes = quell_read_pieces(open->file, pieces, count);
    free(pieces);
    return result(open, bytes);
}

static ssize_t fbtl_pwritev(struct ompio_file_t *handle) {
    struct open_file *open = handle->f_fs_ptr;
    size_t count = (size_t)handle->f_num_of_io_entries;
    open->transfer.number = 0;
    if (handle->f_atomicity)
        return refuse_atomic(handle);
    quell_write_piece *pieces = calloc(count ? count : 1, sizeof *pieces);
    if (!pieces)
        return refuse(handle, ENOMEM, "no memory for the list of extents");
    for (size_t i = 0; i < count; i++) {
        const mca_common_ompio_io_array_t *extent = &handle->f_io_array[i];
        pieces[i].offset = (uint64_t)(uintptr_t)extent->offset;
        pieces[i].from = extent->memory_address;
        pieces[i].length = extent->length;
    }
    int64_t bytes = quell_write_pieces(open->file, pieces, count);
    free(pieces);
    return result(open, bytes);
}

static int module_init(struct ompio_file_t *handle) {
    (void)handle;
    return OMPI_SUCCESS;
}

static mca_fbtl_base_module_t module = {
    .fbtl_module_init = module_init,
    .fbtl_module_finalize = module_init,
    .fbtl_preadv = fbtl_preadv,
    .fbtl_pwritev = fbtl_pwritev,
};

static int component_open(void) { return is_right_version(false) ? OMPI_SUCCESS : OMPI_ERR_NOT_AVAILABLE; }

static int init_query(bool progress_threads, bool threads) {
    (void)progress_threads, (void)threads;
    return OMPI_SUCCESS;
}

static mca_fbtl_base_module_t *file_query(struct ompio_file_t *handle, int *priority) {
    *priority = PRIORITY;
    return is_ours(handle->f_filename) ? &module : NULL;
}

static int file_unquery(struct ompio_file_t *handle) {
    (void)handle;
    return OMPI_SUCCESS;
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
    .fbtlm_init_query = init_query,
    .fbtlm_file_query = file_query,
    .fbtlm_file_unquery = file_unquery,
};
