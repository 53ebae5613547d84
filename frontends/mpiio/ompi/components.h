/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts that the Open MPI components of Quell share. Each component is one shared library, for
 * one framework of ompio:
 *
 *   fs        opens, closes and deletes files, sets and returns their size, syncs them
 *   fbtl      reads and writes a list of extents, as one call of libquell
 *   fcoll     collective reads and writes: each rank its own extents
 *   sharedfp  shared file pointers
 *
 * A component takes only files below a virtual directory of the environment variable QUELL_VIEW;
 * for every other file its query returns NULL, and Open MPI uses its own components.
 *
 * Collective functions agree about errors before they return: an error on one rank is returned on
 * all of them. MPI is called by its PMPI names, and profilers count only calls of the program. */
#ifndef QUELL_OMPI_COMPONENTS_H
#define QUELL_OMPI_COMPONENTS_H

#include "ompi_config.h"

#include "mpi.h"
#include "ompi/mca/common/ompio/common_ompio.h"
#include "ompi/mca/fbtl/fbtl.h"
#include "ompi/mca/fcoll/fcoll.h"
#include "ompi/mca/fs/fs.h"
#include "ompi/mca/mca.h"
#include "ompi/mca/sharedfp/sharedfp.h"

#include "exchange.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

/* Higher than the priorities of all components of Open MPI. */
enum { PRIORITY = 1000 };

enum { MESSAGE_BYTES = 512 };

/* An error of this rank, or of another one after an agreement. */
struct failure {
    /* A positive number of errno.h; 0 if there is no error. */
    int number;
    char message[MESSAGE_BYTES];
};

/* An open file of this rank, kept in `f_fs_ptr`. */
struct open_file {
    quell_store *store;
    quell_file *file;
    /* The path in the store. */
    char path[PATH_MAX];
    /* If the index logs of the file have at most this many bytes, the job flattens it after the
     * last rank has closed it; 0 if it does not. */
    uint64_t flatten_bytes;
    bool writes;
    /* The error of the last read or write. Open MPI 4.1 drops the result of an fbtl component. */
    struct failure transfer;
    /* The first error of a write that was not returned to the program; sync and close return it. */
    struct failure untold;
    /* The number of the file that has the shared file pointer, the same on all ranks, and that file
     * after this rank has used the pointer. */
    uint64_t pointer_number;
    quell_file *pointer;
    /* The result of a split operation with the shared file pointer. */
    ompi_status_public_t split_status;
};

/* Checks that this component was compiled for the Open MPI that runs. Prints the reason on rank 0
 * if it was not, and `is_reported` is set. */
HIDDEN bool is_right_version(bool is_reported);

/* Returns whether these components serve the file. With an invalid QUELL_VIEW they serve all files,
 * so that opening a file fails with the reason. */
HIDDEN bool is_ours(const char *path);

/* Sets the error to the error of the last failed call of libquell, which returned `number`. */
HIDDEN void set_failure(struct failure *failure, int64_t number);

/* Sets an error; `format` has one conversion specification, for the subject. */
HIDDEN void fail(struct failure *failure, int number, const char *format, const char *subject);

/* Sets the error of all ranks to the error of the lowest rank that has an error. Collective. */
HIDDEN void agree(struct failure *failure, MPI_Comm comm);

/* Returns the error code of MPI for the error, with its message as error string, and MPI_SUCCESS if
 * there is none. */
HIDDEN int error_code(const struct failure *failure);

/* The functions of components that have nothing to do. */
HIDDEN int succeed(struct ompio_file_t *handle);
HIDDEN int succeed_with_threads(bool progress_threads, bool threads);

/* Returns the value of a hint, or an empty string. */
HIDDEN const char *hint(struct opal_info_t *info, const char *key, char value[64]);

#endif
