/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges of bytes among the ranks of a communicator; exchange.h describes the functions. */
#include "exchange.h"

#include <limits.h>
#include <stdlib.h>

/* Returns true on all ranks if the value is true on all of them. */
static bool all(MPI_Comm comm, bool value) {
    int own = value, together;
    PMPI_Allreduce(&own, &together, 1, MPI_INT, MPI_MIN, comm);
    return together;
}

/* Sums counts into offsets, and returns the total. */
static int64_t offsets_of(const int *lengths, int *offsets, int count) {
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        offsets[i] = (int)total;
        total += lengths[i];
    }
    return total;
}

/* Returns the blocks that lie one after another in memory, without empty ones. */
static size_t split(const char *memory, const int *lengths, int count, quell_bytes *blocks) {
    size_t offset = 0, found = 0;
    for (int i = 0; i < count; i++) {
        if (lengths[i])
            blocks[found++] = (quell_bytes){.bytes = memory + offset, .length = (size_t)lengths[i]};
        offset += (size_t)lengths[i];
    }
    return found;
}

/* Returns on all ranks whether all blocks have at most `bytes_max` bytes together, and the sum. */
static bool is_bounded(MPI_Comm comm, const quell_bytes *own, uint64_t bytes_max, uint64_t *total) {
    uint64_t length = own->length;
    PMPI_Allreduce(&length, total, 1, MPI_UINT64_T, MPI_SUM, comm);
    /* MPI counts with an int. */
    return *total <= bytes_max && *total <= INT_MAX;
}

bool gather(MPI_Comm comm, const quell_bytes *own, uint64_t bytes_max, char **memory, quell_bytes **blocks,
            size_t *count) {
    int rank, ranks, length = (int)own->length;
    uint64_t total;
    *memory = NULL, *blocks = NULL, *count = 0;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &ranks);
    if (!is_bounded(comm, own, bytes_max, &total))
        return false;
    int *lengths = malloc(2 * (size_t)ranks * sizeof *lengths);
    if (rank == 0) {
        *memory = malloc(total + 1);
        *blocks = malloc((size_t)ranks * sizeof **blocks);
    }
    bool is_done = all(comm, lengths && (rank || (*memory && *blocks)));
    if (is_done) {
        int *offsets = lengths + ranks;
        PMPI_Gather(&length, 1, MPI_INT, lengths, 1, MPI_INT, 0, comm);
        if (rank == 0)
            offsets_of(lengths, offsets, ranks);
        PMPI_Gatherv(own->bytes, length, MPI_BYTE, *memory, lengths, offsets, MPI_BYTE, 0, comm);
        if (rank == 0)
            *count = split(*memory, lengths, ranks, *blocks);
    }
    free(lengths);
    return is_done;
}

/* Exchanges among the first ranks of the nodes: `sizes` are the numbers of ranks of the nodes. All
 * arrays have space for all ranks of the job. */
static void exchange_among_leaders(MPI_Comm leaders, int node_size, const int *node_lengths, const char *node_bytes,
                                   int *lengths, char *memory, int *scratch) {
    int nodes, own_total = 0, *sizes = scratch;
    PMPI_Comm_size(leaders, &nodes);
    int *offsets = sizes + nodes, *totals = offsets + nodes;
    for (int i = 0; i < node_size; i++)
        own_total += node_lengths[i];
    PMPI_Allgather(&node_size, 1, MPI_INT, sizes, 1, MPI_INT, leaders);
    PMPI_Allgather(&own_total, 1, MPI_INT, totals, 1, MPI_INT, leaders);
    offsets_of(sizes, offsets, nodes);
    PMPI_Allgatherv(node_lengths, node_size, MPI_INT, lengths, sizes, offsets, MPI_INT, leaders);
    offsets_of(totals, offsets, nodes);
    PMPI_Allgatherv(node_bytes, own_total, MPI_BYTE, memory, totals, offsets, MPI_BYTE, leaders);
}

bool exchange(MPI_Comm comm, const quell_bytes *own, uint64_t bytes_max, char **memory, quell_bytes **blocks,
              size_t *count) {
    int rank, ranks, node_rank, node_size, length = (int)own->length;
    uint64_t total;
    MPI_Comm node, leaders;
    *memory = NULL, *blocks = NULL, *count = 0;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &ranks);
    if (!is_bounded(comm, own, bytes_max, &total))
        return false;
    PMPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    PMPI_Comm_rank(node, &node_rank);
    PMPI_Comm_size(node, &node_size);
    PMPI_Comm_split(comm, node_rank == 0 ? 0 : MPI_UNDEFINED, rank, &leaders);

    size_t node_total = 0;
    int *numbers = malloc(6 * (size_t)ranks * sizeof *numbers);
    uint64_t own_length = own->length, node_sum = 0;
    PMPI_Reduce(&own_length, &node_sum, 1, MPI_UINT64_T, MPI_SUM, 0, node);
    node_total = (size_t)node_sum;
    char *node_bytes = node_rank == 0 ? malloc(node_total + 1) : NULL;
    *memory = malloc(total + 1);
    *blocks = malloc((size_t)ranks * sizeof **blocks);
    bool is_done = all(comm, numbers && *memory && *blocks && (node_rank || node_bytes));
    if (is_done) {
        int *lengths = numbers, *node_lengths = numbers + ranks, *offsets = numbers + 2 * ranks;
        PMPI_Gather(&length, 1, MPI_INT, node_lengths, 1, MPI_INT, 0, node);
        if (node_rank == 0)
            offsets_of(node_lengths, offsets, node_size);
        PMPI_Gatherv(own->bytes, length, MPI_BYTE, node_bytes, node_lengths, offsets, MPI_BYTE, 0, node);
        if (node_rank == 0)
            exchange_among_leaders(leaders, node_size, node_lengths, node_bytes, lengths, *memory,
                                   numbers + 3 * ranks);
        PMPI_Bcast(lengths, ranks, MPI_INT, 0, node);
        PMPI_Bcast(*memory, (int)total, MPI_BYTE, 0, node);
        *count = split(*memory, lengths, ranks, *blocks);
    }
    free(node_bytes);
    free(numbers);
    if (leaders != MPI_COMM_NULL)
        PMPI_Comm_free(&leaders);
    PMPI_Comm_free(&node);
    return is_done;
}
