/* SPDX-License-Identifier: Apache-2.0
 *
 * libquell: the files of log stores, in the program's own process: no mount, no daemon. Link with -lquell; a program that
 * links libquell.a adds -lpthread -ldl -lm.
 *
 * A file that many processes write at once is kept as logs, one pair for each process, in a directory of a store. Paths are those within
 * the stores: components between '/', "" and "/" are the root; symbolic links are not followed (ELOOP).
 *
 * Errors. A function returns 0 or something positive if all is well, and a negative error number of errno.h if not; quell_last_error() has
 * the words for it, for each thread its own. EIO with "a fault in libquell" is a fault of ours: nothing is promised of the
 * handle any more but that it can be closed.
 *
 * Pointers. A pointer points to what its type says, for the time of the call, and a buffer has the size that comes with it. Where NULL is
 * not allowed it is refused with EINVAL. A handle is what a function here gave, until it is closed; it is used by any number of threads at
 * once, but by none while and after it is closed.
 *
 * Processes. Handles belong to the process that opened them. After fork() the child is refused whatever it asks of them (EBADF): it opens its
 * own. Closing one there is allowed, writes nothing and frees nothing, and lets what the parent has not published be the parent's alone. What was written and
 * neither published, synced nor closed is lost with the process.
 *
 * Others. What one process writes is seen by whoever opens the file, or calls quell_sync() on it, after the writer has called quell_publish(),
 * quell_sync() or quell_close(). Within a process it is seen at once.
 *
 * This file is made from doors/capi/src by cbindgen. */

#ifndef QUELL_H
#define QUELL_H

#include <stddef.h>
#include <stdint.h>

// A listing that somebody goes through.
typedef struct quell_dir quell_dir;

// An open file.
typedef struct quell_file quell_file;

// Stores that are open as one tree of files.
typedef struct quell_store quell_store;

// How files are read and written. 0 stands for what is usual.
typedef struct quell_choices {
  // What a process collects of what it writes to one file before it is appended to the log (1 MiB).
  size_t buffer_bytes;
  // Threads that read the index when a file is opened (4).
  size_t index_threads;
  // When the last writer of a file ends, its index is flattened if all of it is not larger than this (never).
  uint64_t flatten_bytes;
} quell_choices;

// What there is to know about a file, directory or symbolic link.
typedef struct quell_attributes {
  uint64_t size_bytes;
  // In units of 512 bytes.
  uint64_t blocks;
  // As st_mode: S_ISDIR(mode) and the others of sys/stat.h tell what it is.
  uint32_t mode;
  uint32_t links;
  uint32_t uid;
  uint32_t gid;
  int64_t modified_s;
  int64_t changed_s;
  uint32_t modified_ns;
  uint32_t changed_ns;
  // Tells apart what is open at the same time in this process. It means nothing to another one.
  uint64_t node;
} quell_attributes;

// Where bytes of the file go to in memory.
typedef struct quell_read_piece {
  // Where they begin in the file.
  uint64_t offset;
  void *into;
  size_t length;
  // How many there were: fewer than `length` only where the file ends.
  size_t received;
} quell_read_piece;

// Where bytes of the file come from in memory.
typedef struct quell_write_piece {
  // Where they begin in the file.
  uint64_t offset;
  const void *from;
  size_t length;
} quell_write_piece;

// One entry of a directory.
typedef struct quell_entry {
  // There until the directory is closed.
  const char *name;
  // The type bits of st_mode: S_ISDIR(mode) and the others of sys/stat.h tell what it is.
  uint32_t mode;
} quell_entry;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What the last function that failed on this thread says about it: words for people, never NULL. They are there until
// another function fails on this thread, or the thread ends.
const char *quell_last_error(void);

// Opens the directories `paths` as one tree of files, and makes what each of them keeps for itself where it is missing. The
// directories themselves must be there, and everybody who opens the tree names the same ones. `choices` may be NULL.
//
// # Safety
//
// `paths` has `count` pointers, each NULL or a string that ends with a zero; `choices` is NULL or
// filled; `store` is NULL or a variable to write the handle to.
int quell_store_open(const char *const *paths,
                     size_t count,
                     const struct quell_choices *choices,
                     struct quell_store **store);

// Closes the store; files that were opened in it stay open. NULL is nothing to close.
//
// # Safety
//
// `store` is NULL or an open handle that no other thread uses and nothing uses afterwards.
int quell_store_close(struct quell_store *store);

// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero; `stat` is NULL or
// a variable to write to.
int quell_stat(const struct quell_store *store, const char *path, struct quell_attributes *stat);

// Makes the file `size_bytes` long: bytes from there on are gone, or it is filled up with zeros.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero.
int quell_truncate(const struct quell_store *store, const char *path, uint64_t size_bytes);

// Makes one index of what was published of a file, for all who open it from now on: with many writers that takes a fraction of the
// time. What is written afterwards is found beside it. Returns how many bytes the index has.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero.
int64_t quell_flatten(const struct quell_store *store,
                      const char *path);

// Removes a file or symbolic link. Who has the file open in this process keeps it until it is closed.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero.
int quell_remove(const struct quell_store *store, const char *path);

// Gives `from` the name `to`, which is replaced if it is there.
//
// # Safety
//
// `store` is NULL or an open store; `from` is NULL or a string that ends with a zero; `to` is NULL or a
// string that ends with a zero.
int quell_rename(const struct quell_store *store, const char *from, const char *to);

// Makes a directory; the umask is taken away from `permissions`.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero.
int quell_mkdir(const struct quell_store *store, const char *path, uint32_t permissions);

// Removes an empty directory.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero.
int quell_rmdir(const struct quell_store *store, const char *path);

// Opens the regular file at `path`. `flags` are those of fcntl.h: one of O_RDONLY, O_WRONLY and O_RDWR, and any of O_CREAT, O_EXCL,
// O_TRUNC and O_CLOEXEC; no others (quell_append appends). A file that is made has `permissions` without the umask.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero; `file` is NULL or
// a variable to write the handle to.
int quell_open(const struct quell_store *store,
               const char *path,
               int flags,
               uint32_t permissions,
               struct quell_file **file);

// Publishes what was written, and closes the file; it is closed also if that fails. NULL is nothing to close.
//
// # Safety
//
// `file` is NULL or an open handle that no other thread uses and nothing uses afterwards.
int quell_close(struct quell_file *file);

// Reads up to `length` bytes from `offset` on, and returns how many there were: fewer only where the file ends.
//
// # Safety
//
// `file` is NULL or an open file; `into` is NULL or has room for `length` bytes that nothing else uses
// during the call.
int64_t quell_pread(const struct quell_file *file,
                    void *into,
                    size_t length,
                    uint64_t offset);

// Writes all `length` bytes at `offset`, and returns `length`. After an error any part of them may have been written.
//
// # Safety
//
// `file` is NULL or an open file; `from` is NULL or has `length` bytes that nothing changes during the
// call.
int64_t quell_pwrite(const struct quell_file *file,
                     const void *from,
                     size_t length,
                     uint64_t offset);

// Writes all `length` bytes where the file ends as this process knows it, and returns where that was.
//
// # Safety
//
// `file` is NULL or an open file; `from` is NULL or has `length` bytes that nothing changes during the
// call.
int64_t quell_append(const struct quell_file *file, const void *from, size_t length);

// Reads all pieces in one call, says in each how many bytes it received, and returns how many that were together.
// The pieces' memory must not overlap.
//
// # Safety
//
// `file` is NULL or an open file; `pieces` has `count` pieces, each `into` has room for `length` bytes,
// and no two of these overlap or are used by another thread.
int64_t quell_read_pieces(const struct quell_file *file,
                          struct quell_read_piece *pieces,
                          size_t count);

// Writes all pieces in one call, in order: a later one wins where two overlap. Returns how many bytes that were.
//
// # Safety
//
// `file` is NULL or an open file; `pieces` has `count` pieces, and each `from` has `length` bytes that
// nothing changes during the call.
int64_t quell_write_pieces(const struct quell_file *file,
                           const struct quell_write_piece *pieces,
                           size_t count);

// What was written so far is there for everybody who opens the file from now on.
//
// # Safety
//
// `file` is NULL or an open file.
int quell_publish(const struct quell_file *file);

// As quell_publish, it survives a loss of power, and what others have published is seen from now on.
//
// # Safety
//
// `file` is NULL or an open file.
int quell_sync(const struct quell_file *file);

// # Safety
//
// `file` is NULL or an open file; `stat` is NULL or a variable to write to.
int quell_file_stat(const struct quell_file *file, struct quell_attributes *stat);

// Makes the file `size_bytes` long: bytes from there on are gone, or it is filled up with zeros.
//
// # Safety
//
// `file` is NULL or an open file.
int quell_file_truncate(const struct quell_file *file, uint64_t size_bytes);

// Opens the directory at `path` to list what is in it now.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a zero; `dir` is NULL or a
// variable to write the handle to.
int quell_dir_open(const struct quell_store *store, const char *path, struct quell_dir **dir);

// Fills `entry` with the next one and returns 1, or 0 when there are no more. There is no `.` and no `..`, and no order.
//
// # Safety
//
// `dir` is NULL or an open directory; `entry` is NULL or a variable to write to.
int quell_dir_next(const struct quell_dir *dir,
                   struct quell_entry *entry);

// NULL is nothing to close.
//
// # Safety
//
// `dir` is NULL or an open handle that no other thread uses and nothing uses afterwards.
int quell_dir_close(struct quell_dir *dir);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QUELL_H */
