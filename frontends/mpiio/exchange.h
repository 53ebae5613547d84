/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges of bytes among the ranks of a communicator. */
#ifndef QUELL_EXCHANGE_H
#define QUELL_EXCHANGE_H

#include <mpi.h>
#include <quell.h>
#include <stdbool.h>

#ifdef OPEN_MPI
/* libquell_mpi.so is loaded into programs without MPI, too. Functions are looked up when they are
 * called, but the objects behind these constants when the library is loaded. */
#pragma weak ompi_mpi_byte
#pragma weak ompi_mpi_int
#pragma weak ompi_mpi_uint64_t
#pragma weak ompi_mpi_op_min
#pragma weak ompi_mpi_op_sum
#pragma weak ompi_mpi_comm_null
#pragma weak ompi_mpi_info_null
#pragma weak ompi_mpi_file_null
#endif

#define HIDDEN __attribute__((visibility("hidden")))

/* Exchanges one block of bytes of each rank among all ranks: within each node to its first rank,
 * among these, and back to all ranks of each node (Parallel Index Read with group leaders). Sets
 * `blocks` to an array of the blocks of all ranks that have bytes, in any order, and `count` to
 * their number; the caller frees `*memory` and `*blocks`. Returns false on all ranks, without an
 * exchange, if they have more than `bytes_max` bytes together or memory is short. Collective. */
HIDDEN bool exchange(MPI_Comm comm, const quell_bytes *own, uint64_t bytes_max, char **memory, quell_bytes **blocks,
                     size_t *count);

/* Does the same for rank 0 alone; on other ranks `count` is 0. Collective. */
HIDDEN bool gather(MPI_Comm comm, const quell_bytes *own, uint64_t bytes_max, char **memory, quell_bytes **blocks,
                   size_t *count);

#endif
