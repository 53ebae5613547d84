/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions that the components share; components.h describes them. */
#include "components.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool is_right_version(bool is_reported) {
    char running[MPI_MAX_LIBRARY_VERSION_STRING] = "", expected[64];
    int length = 0;
    int prefix = snprintf(expected, sizeof expected, "Open MPI v%d.%d.%d", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION,
                          OMPI_RELEASE_VERSION);
    PMPI_Get_library_version(running, &length);
    /* "4.1.1" must not match "4.1.12". */
    if (!strncmp(running, expected, (size_t)prefix) && (running[prefix] < '0' || running[prefix] > '9'))
        return true;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (is_reported && (!rank || !strcmp(rank, "0"))) {
        running[strcspn(running, ",")] = 0;
        fprintf(stderr,
                "quell: the MPI-IO components were compiled for %s, and %s is running: they are not used. "
                "Run 'quell mpi build' with this Open MPI.\n",
                expected, running);
    }
    return false;
}

bool is_ours(const char *path) { return path && quell_virtual_path(path, NULL, 0) != 0; }

void set_failure(struct failure *failure, int64_t number) {
    if (number >= 0 || failure->number)
        return;
    failure->number = (int)-number;
    snprintf(failure->message, sizeof failure->message, "%s", quell_last_error());
}

void fail(struct failure *failure, int number, const char *format, const char *subject) {
    failure->number = number;
    snprintf(failure->message, sizeof failure->message, format, subject);
}

void agree(struct failure *failure, MPI_Comm comm) {
    int rank, ranks, failed;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &ranks);
    int own = failure->number ? rank : ranks;
    PMPI_Allreduce(&own, &failed, 1, MPI_INT, MPI_MIN, comm);
    if (failed < ranks)
        PMPI_Bcast(failure, sizeof *failure, MPI_BYTE, failed, comm);
}

static int class_of(int number) {
    switch (number) {
    case EACCES:
    case EPERM:
        return MPI_ERR_ACCESS;
    case ENOENT:
    case ESTALE:
        return MPI_ERR_NO_SUCH_FILE;
    case EEXIST:
        return MPI_ERR_FILE_EXISTS;
    case EISDIR:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
        return MPI_ERR_BAD_FILE;
    case ENOSPC:
        return MPI_ERR_NO_SPACE;
    case EDQUOT:
        return MPI_ERR_QUOTA;
    case EROFS:
        return MPI_ERR_READ_ONLY;
    case ENOMEM:
        return MPI_ERR_NO_MEM;
    case ENOLCK:
    case ENOTSUP:
    case ENOSYS:
        return MPI_ERR_UNSUPPORTED_OPERATION;
    default:
        return MPI_ERR_IO;
    }
}

int error_code(const struct failure *failure) {
    /* MPI keeps every code that is added until the end of the program, so their number is bounded;
     * an error that was returned before has the same code again. */
    enum { CODES_MAX = 64 };
    static struct {
        int class, code;
        char message[MESSAGE_BYTES];
    } codes[CODES_MAX];
    static int count;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int code, class = class_of(failure->number);
    if (!failure->number)
        return MPI_SUCCESS;
    pthread_mutex_lock(&lock);
    int found = -1;
    for (int i = 0; i < count; i++)
        if (codes[i].class == class && !strcmp(codes[i].message, failure->message))
            found = codes[i].code;
    if (found < 0 && count < CODES_MAX && !PMPI_Add_error_code(class, &code) &&
        !PMPI_Add_error_string(code, failure->message)) {
        codes[count].class = class;
        codes[count].code = found = code;
        memcpy(codes[count].message, failure->message, MESSAGE_BYTES);
        count++;
    }
    pthread_mutex_unlock(&lock);
    return found < 0 ? class : found;
}

int succeed(struct ompio_file_t *handle) {
    (void)handle;
    return OMPI_SUCCESS;
}

int succeed_with_threads(bool progress_threads, bool threads) {
    (void)progress_threads, (void)threads;
    return OMPI_SUCCESS;
}

const char *hint(struct opal_info_t *info, const char *key, char value[64]) {
    int is_set = 0;
    value[0] = 0;
    /* An info object of MPI begins with the info object of the layer below. */
    if (info && (MPI_Info)info != MPI_INFO_NULL)
        PMPI_Info_get((MPI_Info)info, key, 63, value, &is_set);
    return is_set ? value : "";
}
