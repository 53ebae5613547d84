/* SPDX-License-Identifier: Apache-2.0
 *
 * The component of the framework sharedfp: shared file pointers of files that ranks of several
 * nodes have opened. On one node, Open MPI's component sm serves files of log stores as well as
 * others. Over several nodes its components either need a file at this path or defer writes until
 * the file is closed, so this component refuses every operation. */
#include "components.h"

#include "ompi/proc/proc.h"

#include <errno.h>
#include <stdio.h>

static int refuse(struct ompio_file_t *handle) {
    struct failure failure = {.number = ENOTSUP};
    snprintf(failure.message, sizeof failure.message,
             "%s: shared file pointers are not supported for files of log stores that ranks of several nodes have "
             "opened; use explicit offsets",
             handle->f_filename);
    return error_code(&failure);
}

/* ompio also calls these when a file is opened and closed, and for MPI_MODE_APPEND. */
static int sharedfp_open(struct ompi_communicator_t *comm, const char *name, int amode, struct opal_info_t *info,
                         struct ompio_file_t *handle) {
    (void)comm, (void)name, (void)amode, (void)info, (void)handle;
    return OMPI_SUCCESS;
}

static int sharedfp_close(struct ompio_file_t *handle) {
    (void)handle;
    return OMPI_SUCCESS;
}

static int sharedfp_seek(struct ompio_file_t *handle, OMPI_MPI_OFFSET_TYPE offset, int whence) {
    (void)offset;
    return handle->f_amode & MPI_MODE_APPEND && whence == MPI_SEEK_SET ? OMPI_SUCCESS : refuse(handle);
}

static int sharedfp_get_position(struct ompio_file_t *handle, OMPI_MPI_OFFSET_TYPE *offset) {
    *offset = 0;
    return refuse(handle);
}

static int sharedfp_read(struct ompio_file_t *handle, void *into, int count, struct ompi_datatype_t *datatype,
                         ompi_status_public_t *status) {
    (void)into, (void)count, (void)datatype, (void)status;
    return refuse(handle);
}

static int sharedfp_read_begin(struct ompio_file_t *handle, void *into, int count, struct ompi_datatype_t *datatype) {
    (void)into, (void)count, (void)datatype;
    return refuse(handle);
}

static int sharedfp_read_end(struct ompio_file_t *handle, void *into, ompi_status_public_t *status) {
    (void)into, (void)status;
    return refuse(handle);
}

static int sharedfp_iread(struct ompio_file_t *handle, void *into, int count, struct ompi_datatype_t *datatype,
                          ompi_request_t **request) {
    (void)into, (void)count, (void)datatype, (void)request;
    return refuse(handle);
}

static int sharedfp_write(struct ompio_file_t *handle, const void *from, int count, struct ompi_datatype_t *datatype,
                          ompi_status_public_t *status) {
    (void)from, (void)count, (void)datatype, (void)status;
    return refuse(handle);
}

static int sharedfp_write_begin(struct ompio_file_t *handle, const void *from, int count,
                                struct ompi_datatype_t *datatype) {
    (void)from, (void)count, (void)datatype;
    return refuse(handle);
}

static int sharedfp_write_end(struct ompio_file_t *handle, const void *from, ompi_status_public_t *status) {
    (void)from, (void)status;
    return refuse(handle);
}

static int sharedfp_iwrite(struct ompio_file_t *handle, const void *from, int count, struct ompi_datatype_t *datatype,
                           ompi_request_t **request) {
    (void)from, (void)count, (void)datatype, (void)request;
    return refuse(handle);
}

static int module_init(struct ompio_file_t *handle) {
    (void)handle;
    return OMPI_SUCCESS;
}

static mca_sharedfp_base_module_t module = {
    .sharedfp_module_init = module_init,
    .sharedfp_module_finalize = module_init,
    .sharedfp_seek = sharedfp_seek,
    .sharedfp_get_position = sharedfp_get_position,
    .sharedfp_read = sharedfp_read,
    .sharedfp_read_ordered = sharedfp_read,
    .sharedfp_read_ordered_begin = sharedfp_read_begin,
    .sharedfp_read_ordered_end = sharedfp_read_end,
    .sharedfp_iread = sharedfp_iread,
    .sharedfp_write = sharedfp_write,
    .sharedfp_write_ordered = sharedfp_write,
    .sharedfp_write_ordered_begin = sharedfp_write_begin,
    .sharedfp_write_ordered_end = sharedfp_write_end,
    .sharedfp_iwrite = sharedfp_iwrite,
    .sharedfp_file_open = sharedfp_open,
    .sharedfp_file_close = sharedfp_close,
};

static int component_open(void) { return is_right_version(false) ? OMPI_SUCCESS : OMPI_ERR_NOT_AVAILABLE; }

static int init_query(bool progress_threads, bool threads) {
    (void)progress_threads, (void)threads;
    return OMPI_SUCCESS;
}

/* Returns whether all ranks run on this node. */
static bool is_on_one_node(struct ompi_communicator_t *comm) {
    struct ompi_group_t *group = comm->c_local_group;
    for (int i = 0; i < ompi_group_size(group); i++)
        if (!OPAL_PROC_ON_LOCAL_NODE(ompi_group_peer_lookup(group, i)->super.proc_flags))
            return false;
    return true;
}

static mca_sharedfp_base_module_t *file_query(struct ompio_file_t *handle, int *priority) {
    *priority = PRIORITY;
    return is_ours(handle->f_filename) && !is_on_one_node(handle->f_comm) ? &module : NULL;
}

static int file_unquery(struct ompio_file_t *handle) {
    (void)handle;
    return OMPI_SUCCESS;
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
    .sharedfpm_init_query = init_query,
    .sharedfpm_file_query = file_query,
    .sharedfpm_file_unquery = file_unquery,
};
