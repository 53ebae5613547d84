/* SPDX-License-Identifier: Apache-2.0
 *
 * libquell: access to the files of log stores and of batches in the program's own process, without
 * a mount and without a daemon. Link with -lquell; a program that links libquell.a adds -lpthread
 * -ldl -lm.
 *
 * A file that several processes write at the same time is kept as logs, one pair per process, in a
 * directory of a store. Paths are relative to the root of the stores: components are separated by
 * '/', and "" and "/" are the root. Symbolic links are not followed (ELOOP).
 *
 * Errors. A function returns 0 or a positive number on success, and a negative error number of
 * errno.h on failure. quell_last_error() returns the message of the calling thread's last error.
 * EIO with the message "a fault in libquell" is an error in libquell itself: the only operation
 * still guaranteed for the handle is to close it.
 *
 * Pointers. A pointer must be valid for its type during the call, and a buffer must have the size
 * passed with it. NULL where it is not allowed fails with EINVAL. A handle is the result of a
 * function of this library and is valid until it is closed. Any number of threads may use it at the
 * same time, but none while and after it is closed.
 *
 * Processes. A handle belongs to the process that opened it. After fork(), every operation of the
 * child on it fails with EBADF; the child must open its own. The child may close it, which writes
 * nothing and frees nothing, so data that the parent has not published stays with the parent. Data
 * that was neither published, synced nor closed is lost when the process ends.
 *
 * Visibility. Data written by one process is visible to another one when that opens the file, or
 * calls quell_sync() on it, after the writer has called quell_publish(), quell_sync() or
 * quell_close(). Within a process it is visible immediately.
 *
 * Batches. Changes of a batch (quell_batch_begin()) become visible to other processes only with
 * quell_batch_commit(), and are lost if the process ends before; quell_publish() and quell_sync()
 * do not change that. A child that the process has forked keeps the batch in use until it ends or
 * executes another program.
 *
 * This file is generated from frontends/capi/src by cbindgen. */

#ifndef QUELL_H
#define QUELL_H

#include <stddef.h>
#include <stdint.h>

// An open directory: its entries at the time of the open, and the position of the next one.
typedef struct quell_dir quell_dir;

// An open file.
typedef struct quell_file quell_file;

// A share of the index of a file, as read by quell_read_share.
typedef struct quell_share quell_share;

// Stores opened as one directory tree, or a batch of a store for batches.
typedef struct quell_store quell_store;

// Options for reading and writing files. 0 selects the default.
typedef struct quell_choices {
  // The size of the write buffer of a process for one file, in bytes (default 1 MiB). Its
  // content is then appended to the log.
  size_t buffer_bytes;
  // The number of threads that read the index when a file is opened (default 4).
  size_t index_threads;
  // If the index of a file has at most this many bytes, the last writer that closes the file
  // flattens it (default: never).
  uint64_t flatten_bytes;
} quell_choices;

// The attributes of a file, directory or symbolic link.
typedef struct quell_attributes {
  // In bytes.
  uint64_t size_bytes;
  // In units of 512 bytes.
  uint64_t blocks;
  // As st_mode, for S_ISDIR(mode) and the other macros of sys/stat.h.
  uint32_t mode;
  // The number of names; 1 for a file of a log store.
  uint32_t links;
  // The owner.
  uint32_t uid;
  // The group.
  uint32_t gid;
  // The time of the last change of the content, in seconds since 1970 (UTC).
  int64_t modified_s;
  // The time of the last change of the content or the attributes, in seconds since 1970 (UTC).
  int64_t changed_s;
  // The nanoseconds of `modified_s`: 0 to 999,999,999.
  uint32_t modified_ns;
  // The nanoseconds of `changed_s`: 0 to 999,999,999.
  uint32_t changed_ns;
  // Identifies a node among those that are open in this process. It is not valid in other
  // processes.
  uint64_t node;
} quell_attributes;

// The options of a new batch. NULL and 0 select the default.
typedef struct quell_batch_options {
  // The existing directory of the store that the batch changes, with everything below it
  // (default: the root directory). The paths of the batch are relative to it.
  const char *directory;
  // The name that `quell batch status` shows (default: "libquell").
  const char *name;
  // The user IDs of the owners that the caller trusts: the store belongs to the caller or to one
  // of them.
  const uint32_t *trusted_owners;
  // The number of `trusted_owners`.
  size_t trusted_owners_count;
  // If it is not 0, a commit publishes either all changes or none.
  int is_atomic;
} quell_batch_options;

// The result of a commit.
typedef struct quell_batch_result {
  // The number of the batch in its store, for `quell batch conflicts`.
  uint64_t number;
  // The number of new files, directories and links that were published.
  uint64_t entries;
  // The number of operations that were not published, because they conflict with changes that
  // others have published since the batch began.
  uint64_t conflicts;
} quell_batch_result;

// A range of a file to read into memory.
typedef struct quell_read_piece {
  // The offset in the file, in bytes.
  uint64_t offset;
  // The memory to read into: at least `length` bytes.
  void *into;
  // The number of bytes to read.
  size_t length;
  // The number of bytes read: less than `length` only if the file ends there.
  size_t received;
} quell_read_piece;

// A range of a file to write from memory.
typedef struct quell_write_piece {
  // The offset in the file, in bytes.
  uint64_t offset;
  // The memory to write from: at least `length` bytes.
  const void *from;
  // The number of bytes to write.
  size_t length;
} quell_write_piece;

// A share of the index of a file, in the memory of the caller.
typedef struct quell_bytes {
  // The bytes of the share.
  const void *bytes;
  // The number of bytes.
  size_t length;
} quell_bytes;

// An entry of a directory.
typedef struct quell_entry {
  // Valid until the directory is closed.
  const char *name;
  // The type bits of st_mode, for S_ISDIR(mode) and the other macros of sys/stat.h.
  uint32_t mode;
} quell_entry;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the message of the last error in this thread; never NULL. It is valid until the next
// error in this thread, or until the thread ends.
const char *quell_last_error(void);

// Opens the directories `paths` as one directory tree. The directories must exist; missing
// internal files in them are created. All processes must open the tree with the same directories.
// `choices` may be NULL.
//
// # Safety
//
// `paths` has `count` pointers, each NULL or a string that ends with a NUL; `choices` is NULL or
// initialized; `store` is NULL or a variable for the handle.
int quell_store_open(const char *const *paths,
                     size_t count,
                     const struct quell_choices *choices,
                     struct quell_store **store);

// Closes the store. Files that were opened in it stay open. A batch that was not committed is
// aborted, as by quell_batch_abort, unless a call of quell_batch_commit has written its changes to
// the store; handles of its open files stay valid, and are closed with quell_close. The handle is
// closed also if an error is returned. Does nothing for NULL.
//
// # Safety
//
// `store` is NULL or an open handle that no other thread uses, and that is not used afterwards.
int quell_store_close(struct quell_store *store);

// Sets `stat` to the attributes of the file, directory or symbolic link at `path`.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL; `stat` is
// NULL or a variable for the attributes.
int quell_stat(const struct quell_store *store, const char *path, struct quell_attributes *stat);

// Sets the size of the file to `size_bytes`. Data beyond it is removed; a file that becomes longer
// is filled with zeros.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL.
int quell_truncate(const struct quell_store *store, const char *path, uint64_t size_bytes);

// Merges the indexes of the published data of a file into one, which makes later opens of a file
// with many writers much faster. Data written afterwards is found through its own index. Returns
// the size of the merged index in bytes.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL.
int64_t quell_flatten(const struct quell_store *store, const char *path);

// Removes a file or symbolic link. Files that are open in this process keep their data until they
// are closed.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL.
int quell_remove(const struct quell_store *store, const char *path);

// Renames `from` to `to`, and replaces an existing entry of that name.
//
// # Safety
//
// `store` is NULL or an open store; `from` and `to` are each NULL or a string that ends with a
// NUL.
int quell_rename(const struct quell_store *store, const char *from, const char *to);

// Creates a directory with `permissions`, reduced by the umask.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL.
int quell_mkdir(const struct quell_store *store, const char *path, uint32_t permissions);

// Removes an empty directory.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL.
int quell_rmdir(const struct quell_store *store, const char *path);

// Begins a batch in the store for batches at `store`, a directory that `quell batch init` has
// made. The batch is a directory tree like that of quell_store_open, with the content of the store
// at the time of the call. Changes of its files and names are executed in this process, without
// requests to a metadata server, and become visible to others with quell_batch_commit. `options`
// may be NULL.
//
// Changes and opens for writing that the permissions of the entries deny to the caller fail with
// EACCES or EPERM; the owner of a file may always write to it. Names, attributes and contents are
// read without checks, because all users of a store can read its tables. Locks fail with ENOLCK,
// and functions for an index with EOPNOTSUPP. `quell batch watch` shows no names of the batch.
//
// Fails with EBUSY if another open batch changes a part of the same tree, or if another process
// has the store open for 10 s without serving it; with ENOTCONN if the store belongs to another
// user and has no server. A process that ends before it has committed or closed the batch leaves
// an open batch, which `quell batch abort` discards.
//
// # Safety
//
// `store` is NULL or a string that ends with a NUL; `options` is NULL or initialized, and
// `trusted_owners` has `trusted_owners_count` elements; `batch` is NULL or a variable for the
// handle.
int quell_batch_begin(const char *store,
                      const struct quell_batch_options *options,
                      struct quell_store **batch);

// Returns the number of the batch in its store.
//
// # Safety
//
// `batch` is NULL or a batch.
int64_t quell_batch_number(const struct quell_store *batch);

// Verifies and publishes the changes of a batch. Files of the batch must be closed before, and no
// other thread may use the batch during the call. Operations that conflict with changes of others
// are not published; their number is in `result`, which may be NULL, and `quell batch conflicts`
// lists them. Afterwards, all functions for files of the batch fail with EBADF.
//
// Fails with EBUSY if a file is open (then the batch can still be changed), if the batch is atomic
// and has conflicts, or if another process has the store open for 60 s without serving it; with
// EDQUOT if a limit of the use of the store would be exceeded. After an error, the batch can be
// committed again or aborted. If the message names `quell batch commit`, the changes are in the
// store, and this command can commit them after quell_store_close, too. If a server of the store
// ends during the call, the call waits up to 24 hours for the next one.
//
// # Safety
//
// `batch` is NULL or a batch; `result` is NULL or a variable for the result.
int quell_batch_commit(const struct quell_store *batch, struct quell_batch_result *result);

// Discards the changes of a batch, also those that are made later through open files. Afterwards,
// all functions for files of the batch fail with EBADF. Fails with EBUSY if another process has
// the store open for 60 s without serving it; after an error, the batch can only be aborted again.
//
// # Safety
//
// `batch` is NULL or a batch.
int quell_batch_abort(const struct quell_store *batch);

// Opens the regular file at `path`. `flags` consists of flags of fcntl.h: one of O_RDONLY,
// O_WRONLY and O_RDWR, and any of O_CREAT, O_EXCL, O_TRUNC and O_CLOEXEC. Others, including
// O_APPEND, are errors (see quell_append). A file that is created gets `permissions`, reduced by
// the umask.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL; `file` is
// NULL or a variable for the handle.
int quell_open(const struct quell_store *store,
               const char *path,
               int flags,
               uint32_t permissions,
               struct quell_file **file);

// Publishes all written data and closes the file. The file is closed even if publishing fails.
// Does nothing for NULL.
//
// # Safety
//
// `file` is NULL or an open handle that no other thread uses, and that is not used afterwards.
int quell_close(struct quell_file *file);

// Reads up to `length` bytes from `offset`, and returns the number of bytes read. It is less than
// `length` only if the file ends there.
//
// # Safety
//
// `file` is NULL or an open file; `into` is NULL or has space for `length` bytes that nothing else
// uses during the call.
int64_t quell_pread(const struct quell_file *file, void *into, size_t length, uint64_t offset);

// Writes all `length` bytes at `offset`, and returns `length`. After an error, any part of them
// may have been written.
//
// # Safety
//
// `file` is NULL or an open file; `from` is NULL or has `length` bytes that do not change during
// the call.
int64_t quell_pwrite(const struct quell_file *file, const void *from, size_t length, uint64_t offset);

// Appends all `length` bytes at the end of the file as known to this process, and returns their
// offset.
//
// # Safety
//
// `file` is NULL or an open file; `from` is NULL or has `length` bytes that do not change during
// the call.
int64_t quell_append(const struct quell_file *file, const void *from, size_t length);

// Reads several ranges in one call, sets `received` in each, and returns the total number of bytes
// read. The buffers must not overlap.
//
// # Safety
//
// `file` is NULL or an open file; `pieces` has `count` elements, each `into` has space for
// `length` bytes, and no two of these buffers overlap or are used by another thread.
int64_t quell_read_pieces(const struct quell_file *file, struct quell_read_piece *pieces, size_t count);

// Writes several ranges in one call, in order: where two overlap, the later one remains. Returns
// the total number of bytes written.
//
// # Safety
//
// `file` is NULL or an open file; `pieces` has `count` elements, and each `from` has `length`
// bytes that do not change during the call.
int64_t quell_write_pieces(const struct quell_file *file,
                           const struct quell_write_piece *pieces,
                           size_t count);

// Makes all data written so far visible to processes that open the file from now on.
//
// # Safety
//
// `file` is NULL or an open file.
int quell_publish(const struct quell_file *file);

// As quell_publish; in addition the data survives a power failure, and data that other processes
// have published becomes visible.
//
// # Safety
//
// `file` is NULL or an open file.
int quell_sync(const struct quell_file *file);

// Sets `stat` to the attributes of the file.
//
// # Safety
//
// `file` is NULL or an open file; `stat` is NULL or a variable for the attributes.
int quell_file_stat(const struct quell_file *file, struct quell_attributes *stat);

// Sets the size of the file to `size_bytes`. Data beyond it is removed; a file that becomes longer
// is filled with zeros.
//
// # Safety
//
// `file` is NULL or an open file.
int quell_file_truncate(const struct quell_file *file, uint64_t size_bytes);

// Locks `length` bytes from `offset`, or all bytes from there if `length` is 0, and waits as long
// as another handle, of this or another process on any node, has a lock that conflicts: a shared
// one (`is_exclusive` is 0) with exclusive locks, an exclusive one with all locks. Locks of this
// handle are replaced. Then data that others published before they released a lock is visible.
// Reads and writes do not check locks. Fails with ENOLCK if the file system of the store keeps no
// locks between its nodes, and with EBADF for an exclusive lock if the caller may not write to the
// file. Closing the file releases its locks.
//
// # Safety
//
// `file` is NULL or an open file.
int quell_lock(const struct quell_file *file, uint64_t offset, uint64_t length, int is_exclusive);

// As quell_lock, but does not wait: returns 1 if the range is locked now, and 0 if another handle
// has a lock that conflicts.
//
// # Safety
//
// `file` is NULL or an open file.
int quell_try_lock(const struct quell_file *file, uint64_t offset, uint64_t length, int is_exclusive);

// Publishes the data written through this handle, then releases its locks of the range, which is
// given as for quell_lock. They are released even if the data cannot be published.
//
// # Safety
//
// `file` is NULL or an open file.
int quell_unlock(const struct quell_file *file, uint64_t offset, uint64_t length);

// Returns the number of index logs that opening the file reads, and thus the largest useful number
// of shares: 0 if no process has published data, and 1 if the file is flattened.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL.
int64_t quell_index_logs(const struct quell_store *store, const char *path);

// Reads share `number` (from 0) of `shares` of the index of a file, for processes that open the
// file together: each reads one share, all exchange their shares, and each calls
// quell_open_with_shares. Each index log is then read once, and not once by each process. Fails
// with EFBIG if the share has more than 1 GiB; each process then opens the file with quell_open.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL; `share` is
// NULL or a variable for the handle.
int quell_read_share(const struct quell_store *store,
                     const char *path,
                     size_t number,
                     size_t shares,
                     struct quell_share **share);

// Sets `bytes` to the bytes of the share, which are valid until it is freed.
//
// # Safety
//
// `share` is NULL or a share of quell_read_share; `bytes` is NULL or a variable for the result.
int quell_share_bytes(const struct quell_share *share, struct quell_bytes *bytes);

// Frees the share. Does nothing for NULL.
//
// # Safety
//
// `share` is NULL or a share of quell_read_share that is not used afterwards.
int quell_share_free(struct quell_share *share);

// Opens the existing regular file at `path` with `count` shares of its index, in any order. Data
// that is in no share is found through the index logs. `flags` are O_RDONLY or O_RDWR. Fails with
// EIO if the bytes are not a share of this file.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL; `shares` has
// `count` elements, and each `bytes` has `length` bytes; `file` is NULL or a variable for the
// handle.
int quell_open_with_shares(const struct quell_store *store,
                           const char *path,
                           int flags,
                           const struct quell_bytes *shares,
                           size_t count,
                           struct quell_file **file);

// As quell_flatten, with all shares of the index of the file: the index logs are not read again.
// One of the processes that have read the shares calls it.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL; `shares` has
// `count` elements, and each `bytes` has `length` bytes.
int64_t quell_flatten_shares(const struct quell_store *store,
                             const char *path,
                             const struct quell_bytes *shares,
                             size_t count);

// Returns 1 if the path lies below a virtual directory of the environment variable QUELL_VIEW, or
// is one, and 0 if not. A relative path is relative to the current directory; symbolic links are
// not followed. Copies the path in the store to `in_store`, which has space for `space` bytes and
// may be NULL if that is 0; fails with ERANGE if it is too small. Fails with EINVAL if the value
// of the variable is invalid; it is read once in a process.
//
// # Safety
//
// `path` is NULL or a string that ends with a NUL; `in_store` has space for `space` bytes.
int quell_virtual_path(const char *path, char *in_store, size_t space);

// Opens the store of the virtual directory of the path, once in a process for all calls with the
// same choices. If `choices` is NULL, the choices of QUELL_VIEW apply. Otherwise a buffer size of
// 0 stands for the buffer size of QUELL_VIEW, no file is flattened when it is closed, and the
// other members have no effect. Fails with ENOENT if the path lies below no virtual directory. The
// caller closes the handle.
//
// # Safety
//
// `path` is NULL or a string that ends with a NUL; `choices` is NULL or initialized; `store` is
// NULL or a variable for the handle.
int quell_virtual_store(const char *path, const struct quell_choices *choices, struct quell_store **store);

// Returns the largest size of the index logs of a file that is flattened when its last writer
// closes it, in bytes, as QUELL_VIEW states for the virtual directory of the path: 0 if no file is
// flattened. Fails with ENOENT if the path lies below no virtual directory.
//
// # Safety
//
// `path` is NULL or a string that ends with a NUL.
int64_t quell_virtual_flatten_bytes(const char *path);

// Opens the directory at `path` to list its present entries.
//
// # Safety
//
// `store` is NULL or an open store; `path` is NULL or a string that ends with a NUL; `dir` is NULL
// or a variable for the handle.
int quell_dir_open(const struct quell_store *store, const char *path, struct quell_dir **dir);

// Sets `entry` to the next entry and returns 1, or returns 0 if there are no more. `.` and `..`
// are not listed, and the order is arbitrary.
//
// # Safety
//
// `dir` is NULL or an open directory; `entry` is NULL or a variable for the entry.
int quell_dir_next(const struct quell_dir *dir, struct quell_entry *entry);

// Closes the directory. Does nothing for NULL.
//
// # Safety
//
// `dir` is NULL or an open handle that no other thread uses, and that is not used afterwards.
int quell_dir_close(struct quell_dir *dir);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QUELL_H */
