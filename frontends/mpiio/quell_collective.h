/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface between libquell_mpi.so, which knows the communicator of MPI_File_open, and
 * libquell_preload.so, which opens the file when the MPI library calls open(2). With it, the ranks
 * of a job read the index of a file together (Parallel Index Read), instead of each rank alone.
 *
 * The preload library defines the functions; libquell_mpi.so refers to them weakly and calls them
 * only if they are defined. The order in each rank is: quell_collective_open, the open of the MPI
 * library, quell_collective_release.
 *
 * A function returns 0, or a negative error number of errno.h. An error is not fatal: the MPI
 * library then opens the file without a shared index. */
#ifndef QUELL_COLLECTIVE_H
#define QUELL_COLLECTIVE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of one rank, as `quell_bytes` of quell.h. */
struct quell_block {
    const void *bytes;
    size_t length;
};

/* The ranks that open a file together. */
struct quell_job {
    int rank;
    int ranks;
    void *context;
    /* Sends `length` bytes from `from` of rank 0 to `into` of all other ranks. */
    int (*broadcast)(void *context, void *bytes, size_t length);
    /* Gives the bytes of all ranks to all ranks, and keeps them until quell_collective_open
     * returns. Blocks of ranks without bytes are left out; their order is arbitrary. Returns -EFBIG
     * on all ranks, without an exchange, if they have more than `total_max` bytes together. */
    int (*exchange)(void *context, const struct quell_block *own, size_t total_max,
                    const struct quell_block **blocks, size_t *count);
};

/* Opens the index of the existing file at `path`, which lies below a virtual directory, together
 * with all ranks of the job, each of which calls this function. Sets `held` to a reference that
 * keeps the index in memory until it is released, or to NULL if there is no reference. Every rank
 * calls `broadcast` and `exchange` in the same order, also after an error of its own. */
int quell_collective_open(const char *path, const struct quell_job *job, void **held) __attribute__((weak));

/* Makes the published data of other processes visible in the files that this process has open at
 * `path`. */
int quell_collective_sync(const char *path) __attribute__((weak));

/* Releases the reference; does nothing for NULL. */
void quell_collective_release(void *held) __attribute__((weak));

#ifdef __cplusplus
}
#endif

#endif
