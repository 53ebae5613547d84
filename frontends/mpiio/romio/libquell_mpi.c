/* SPDX-License-Identifier: Apache-2.0
 *
 * libquell_mpi.so: wraps MPI_File_open, MPI_File_sync and MPI_File_close of MPICH, and of Open
 * MPI's ROMIO, for files below virtual directories of QUELL_VIEW, which libquell_preload.so serves.
 * It is loaded with LD_PRELOAD before that library.
 *
 * - Sets hints that the program has not set: without data sieving and collective buffering, each
 *   rank appends its own data to its own log, and needs no locks.
 * - Passes the communicator to the preload library, so that the ranks read the index together
 *   (quell_collective.h).
 *
 * - Makes the data of other ranks visible in MPI_File_sync: ROMIO calls fsync(2) only if the rank
 *   has written since the last call, so that in the sequence sync, barrier, sync the last call
 *   would do nothing.
 *
 * The library refers to MPI and loads libquell only when a program calls MPI_File_open, because
 * LD_PRELOAD loads it into programs without MPI, too. */
#define _GNU_SOURCE
#include "exchange.h"
#include "quell_collective.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

/* Returns whether the path lies below a virtual directory. */
static bool is_virtual(const char *path) {
    static int (*find)(const char *, char *, size_t);
    const char *view = getenv("QUELL_VIEW");
    if (!view || !*view || !path)
        return false;
    if (!find) {
        void *library = dlopen(QUELL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        if (library)
            find = (int (*)(const char *, char *, size_t))dlsym(library, "quell_virtual_path");
        if (!find)
            fprintf(stderr, "quell: %s cannot be loaded (%s): no hints are set for %s\n", QUELL_LIBRARY,
                    dlerror(), path);
    }
    return find && find(path, NULL, 0) == 1;
}

static void set_default(MPI_Info info, const char *key, const char *value) {
    char found[MPI_MAX_INFO_VAL + 1];
    int is_set = 0;
    PMPI_Info_get(info, key, MPI_MAX_INFO_VAL, found, &is_set);
    if (!is_set)
        PMPI_Info_set(info, key, value);
}

/* The communicator, and the memory that an exchange keeps until the file is open. */
struct context {
    MPI_Comm comm;
    char *memory;
    quell_bytes *blocks;
};

static int broadcast(void *context, void *bytes, size_t length) {
    struct context *job = context;
    return PMPI_Bcast(bytes, (int)length, MPI_BYTE, 0, job->comm) == MPI_SUCCESS ? 0 : -EIO;
}

_Static_assert(sizeof(struct quell_block) == sizeof(quell_bytes), "the same structure");

static int exchange_blocks(void *context, const struct quell_block *own, size_t total_max,
                           const struct quell_block **blocks, size_t *count) {
    struct context *job = context;
    quell_bytes bytes = {.bytes = own->bytes, .length = own->length};
    free(job->memory);
    free(job->blocks);
    bool is_done = exchange(job->comm, &bytes, total_max, &job->memory, &job->blocks, count);
    *blocks = (const struct quell_block *)job->blocks;
    return is_done ? 0 : -EFBIG;
}

/* The virtual files that this process has open. */
static struct open_file {
    MPI_File file;
    char *path;
    struct open_file *next;
} *open_files;
static pthread_mutex_t open_files_lock = PTHREAD_MUTEX_INITIALIZER;

static int remember(MPI_File file, const char *path) {
    struct open_file *open = malloc(sizeof *open);
    char *copy = strdup(path);
    if (!open || !copy) {
        free(open);
        free(copy);
        return MPI_ERR_NO_MEM;
    }
    pthread_mutex_lock(&open_files_lock);
    *open = (struct open_file){.file = file, .path = copy, .next = open_files};
    open_files = open;
    pthread_mutex_unlock(&open_files_lock);
    return MPI_SUCCESS;
}

static void forget(MPI_File file) {
    pthread_mutex_lock(&open_files_lock);
    struct open_file **link = &open_files, *found;
    while (*link && (*link)->file != file)
        link = &(*link)->next;
    found = *link;
    if (found)
        *link = found->next;
    pthread_mutex_unlock(&open_files_lock);
    if (found)
        free(found->path);
    free(found);
}

/* Returns a copy of the path of a virtual file, or NULL. */
static char *path_of(MPI_File file) {
    char *path = NULL;
    pthread_mutex_lock(&open_files_lock);
    for (struct open_file *open = open_files; open && !path; open = open->next)
        if (open->file == file)
            path = strdup(open->path);
    pthread_mutex_unlock(&open_files_lock);
    return path;
}

static int open_virtual(MPI_Comm comm, const char *name, int amode, MPI_Info info, MPI_File *file) {
    MPI_Info own;
    void *held = NULL;
    struct context context = {.comm = comm};
    int result = info == MPI_INFO_NULL ? PMPI_Info_create(&own) : PMPI_Info_dup(info, &own);
    if (result != MPI_SUCCESS)
        return result;
    set_default(own, "romio_ds_write", "disable");
    set_default(own, "romio_cb_write", "disable");
    if (quell_collective_open && quell_collective_release && !(amode & (MPI_MODE_WRONLY | MPI_MODE_EXCL))) {
        struct quell_job job = {.context = &context, .broadcast = broadcast, .exchange = exchange_blocks};
        PMPI_Comm_rank(comm, &job.rank);
        PMPI_Comm_size(comm, &job.ranks);
        quell_collective_open(name, &job, &held);
        free(context.memory);
        free(context.blocks);
    }
    result = PMPI_File_open(comm, name, amode, own, file);
    if (held)
        quell_collective_release(held);
    PMPI_Info_free(&own);
    if (result == MPI_SUCCESS && (result = remember(*file, name)) != MPI_SUCCESS)
        PMPI_File_close(file);
    return result;
}

EXPORTED int MPI_File_open(MPI_Comm comm, const char *name, int amode, MPI_Info info, MPI_File *file) {
    if (is_virtual(name))
        return open_virtual(comm, name, amode, info, file);
    return PMPI_File_open(comm, name, amode, info, file);
}

EXPORTED int MPI_File_close(MPI_File *file) {
    forget(*file);
    return PMPI_File_close(file);
}

EXPORTED int MPI_File_sync(MPI_File file) {
    int result = PMPI_File_sync(file);
    char *path = result == MPI_SUCCESS && quell_collective_sync ? path_of(file) : NULL;
    int synced = path ? quell_collective_sync(path) : 0;
    free(path);
    if (synced < 0) {
        PMPI_File_call_errhandler(file, MPI_ERR_IO);
        return MPI_ERR_IO;
    }
    return result;
}

#ifdef OPEN_MPI
/* Open MPI's Fortran functions call the functions of C with the prefix PMPI; MPICH's call those
 * without it. A Fortran string has its length as a hidden argument, and blanks at its end. */
static void open_for_fortran(const MPI_Fint *comm, const char *path, const MPI_Fint *amode, const MPI_Fint *info,
                             MPI_Fint *file, MPI_Fint *error, int length) {
    MPI_File opened = MPI_FILE_NULL;
    while (length > 0 && path[length - 1] == ' ')
        length--;
    char *name = strndup(path, (size_t)length);
    int result = name ? MPI_File_open(PMPI_Comm_f2c(*comm), name, *amode, PMPI_Info_f2c(*info), &opened)
                      : MPI_ERR_NO_MEM;
    free(name);
    if (result == MPI_SUCCESS)
        *file = PMPI_File_c2f(opened);
    if (error)
        *error = result;
}

static void close_for_fortran(MPI_Fint *file, MPI_Fint *error) {
    MPI_File found = PMPI_File_f2c(*file);
    int result = MPI_File_close(&found);
    if (result == MPI_SUCCESS)
        *file = PMPI_File_c2f(found);
    if (error)
        *error = result;
}

static void sync_for_fortran(MPI_Fint *file, MPI_Fint *error) {
    int result = MPI_File_sync(PMPI_File_f2c(*file));
    if (error)
        *error = result;
}

#define OPEN_FOR_FORTRAN(name)                                                                                     \
    EXPORTED void name(MPI_Fint *, char *, MPI_Fint *, MPI_Fint *, MPI_Fint *, MPI_Fint *, int);                   \
    EXPORTED void name(MPI_Fint *comm, char *path, MPI_Fint *amode, MPI_Fint *info, MPI_Fint *file,                \
                       MPI_Fint *error, int length) {                                                              \
        open_for_fortran(comm, path, amode, info, file, error, length);                                            \
    }

#define FOR_FORTRAN(name, function)                                                                                \
    EXPORTED void name(MPI_Fint *, MPI_Fint *);                                                                    \
    EXPORTED void name(MPI_Fint *file, MPI_Fint *error) { function(file, error); }

OPEN_FOR_FORTRAN(mpi_file_open)
OPEN_FOR_FORTRAN(mpi_file_open_)
OPEN_FOR_FORTRAN(mpi_file_open__)
OPEN_FOR_FORTRAN(MPI_FILE_OPEN)
FOR_FORTRAN(mpi_file_close, close_for_fortran)
FOR_FORTRAN(mpi_file_close_, close_for_fortran)
FOR_FORTRAN(mpi_file_close__, close_for_fortran)
FOR_FORTRAN(MPI_FILE_CLOSE, close_for_fortran)
FOR_FORTRAN(mpi_file_sync, sync_for_fortran)
FOR_FORTRAN(mpi_file_sync_, sync_for_fortran)
FOR_FORTRAN(mpi_file_sync__, sync_for_fortran)
FOR_FORTRAN(MPI_FILE_SYNC, sync_for_fortran)
/* For the module mpi_f08. */
OPEN_FOR_FORTRAN(ompi_file_open_f)
FOR_FORTRAN(ompi_file_close_f, close_for_fortran)
FOR_FORTRAN(ompi_file_sync_f, sync_for_fortran)
#endif
