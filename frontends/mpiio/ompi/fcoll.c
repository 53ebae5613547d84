/* SPDX-License-Identifier: Apache-2.0
 *
 * The component of the framework fcoll: collective reads and writes. Each rank reads and writes its
 * own extents: appending them to its own log is faster than sending them to another rank. It has no
 * collective operations in the background: ompio then does them as independent ones. */
#include "components.h"

#include <errno.h>

/* Returns, on all ranks, the error of the lowest rank that has an error. `code` is the result of
 * this rank. */
static int agreed(struct ompio_file_t *handle, int code) {
    struct open_file *open = handle->f_fs_ptr;
    struct failure failure = open->transfer;
    if (code != OMPI_SUCCESS && !failure.number) {
        int length;
        failure.number = EIO;
        PMPI_Error_string(code > 0 ? code : MPI_ERR_OTHER, failure.message, &length);
    }
    if (open->transfer.number)
        open->untold.number = 0; /* the program is told now */
    agree(&failure, handle->f_comm);
    return code > 0 ? code : error_code(&failure);
}

static int read_all(struct ompio_file_t *handle, void *into, int count, struct ompi_datatype_t *datatype,
                    ompi_status_public_t *status) {
    struct open_file *open = handle->f_fs_ptr;
    open->transfer.number = 0;
    return agreed(handle, mca_common_ompio_file_read(handle, into, count, datatype, status));
}

static int write_all(struct ompio_file_t *handle, const void *from, int count, struct ompi_datatype_t *datatype,
                     ompi_status_public_t *status) {
    struct open_file *open = handle->f_fs_ptr;
    open->transfer.number = 0;
    return agreed(handle, mca_common_ompio_file_write(handle, from, count, datatype, status));
}

static mca_fcoll_base_module_t module = {
    .fcoll_module_init = succeed,
    .fcoll_module_finalize = succeed,
    .fcoll_file_read_all = read_all,
    .fcoll_file_write_all = write_all,
};

static int component_open(void) { return is_right_version(false) ? OMPI_SUCCESS : OMPI_ERR_NOT_AVAILABLE; }

static mca_fcoll_base_module_t *file_query(struct ompio_file_t *handle, int *priority) {
    *priority = PRIORITY;
    return is_ours(handle->f_filename) ? &module : NULL;
}

OMPI_DECLSPEC extern mca_fcoll_base_component_2_0_0_t mca_fcoll_quell_component;

mca_fcoll_base_component_2_0_0_t mca_fcoll_quell_component = {
    .fcollm_version =
        {
            MCA_FCOLL_BASE_VERSION_2_0_0,
            .mca_component_name = "quell",
            MCA_BASE_MAKE_VERSION(component, 0, 1, 0),
            .mca_open_component = component_open,
        },
    .fcollm_init_query = succeed_with_threads,
    .fcollm_file_query = file_query,
    .fcollm_file_unquery = succeed,
};
