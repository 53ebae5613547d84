/* SPDX-License-Identifier: Apache-2.0
 *
 * libquellblob: transactional blobs for programs that share state, in a directory or through a
 * server. Link with -lquellblob; a program that links libquellblob.a adds -lpthread -ldl -lm.
 * docs/semantics.md states the guarantees. All offsets, sizes and lengths are in bytes.
 *
 * Limits. A name has 1 to 1,024 bytes of any value, and need not end with a NUL. A blob has at
 * most 2^63 - 1 bytes. A transaction has at most 16,384 operations and 16,384 reads, 64 MiB of data
 * for one operation, and 1 MiB of numbers for one transform. Through a server, a transaction has at
 * most 257 MiB of data.
 *
 * Errors. A function returns 0 or a positive number on success, and a negative error number of
 * errno.h on failure. quell_blob_last_error() returns the message of the calling thread's last
 * error, quell_blob_last_failure() its reason, and quell_blob_last_conflicts() the blobs and ranges
 * of a conflict. EINVAL: an argument is invalid, or a limit is exceeded. If a server does not
 * answer, a call fails with ENOTCONN or ETIMEDOUT after at most 60 seconds; a commit may then have
 * taken effect. EIO with the message "a fault in libquell" is an error in the library itself.
 *
 * Pointers. A pointer must be valid for its type during the call, and a buffer must have the size
 * passed with it. NULL where it is not allowed fails with EINVAL. A handle is the result of a
 * function of this library and is valid until it is closed. Any number of threads may use it at the
 * same time, but none while and after it is closed. A transaction that was committed is valid until
 * it is closed; other functions on it fail with EINVAL. Transactions and snapshots can be closed
 * before and after their store; after their store, they can be committed and read, but not
 * submitted (EBADF).
 *
 * Processes. A handle belongs to the process that opened it. After fork(), every operation of the
 * child on it fails with EBADF; the child must open its own, and through a server. The child may
 * close it, which changes nothing.
 *
 * This file is generated from frontends/blob-capi/src by cbindgen. */

#ifndef QUELL_BLOB_H
#define QUELL_BLOB_H

#include <stddef.h>
#include <stdint.h>

// A reason that has no number of its own: the error number states it.
#define QUELL_BLOB_FAILED 0

// Other transactions have changed data that the transaction has read (ECANCELED).
#define QUELL_BLOB_CONFLICT 1

// The state that the snapshot or transaction reads is no longer kept (ESTALE).
#define QUELL_BLOB_SNAPSHOT_TOO_OLD 2

// A compare-and-set found another number than the expected one (ECANCELED).
#define QUELL_BLOB_DIFFERENT 3

// The result of a checked transform is outside the range of its type (EINVAL).
#define QUELL_BLOB_OVERFLOW 4

// A part of a blob: whether it exists.
#define QUELL_BLOB_EXISTENCE 0

// A part of a blob: its size.
#define QUELL_BLOB_SIZE 1

// A part of a blob: its bytes from `start` up to `end`, exclusive.
#define QUELL_BLOB_RANGE 2

// The names that begin with the name of the conflict.
#define QUELL_BLOB_NAMES 3

// Adds the operand.
#define QUELL_BLOB_ADD 0

// Multiplies by the operand.
#define QUELL_BLOB_MULTIPLY 1

// Replaces the number by the operand if the operand is less. A NaN is replaced.
#define QUELL_BLOB_MIN 2

// Replaces the number by the operand if the operand is greater. A NaN is replaced.
#define QUELL_BLOB_MAX 3

// Bitwise and; integers only.
#define QUELL_BLOB_AND 4

// Bitwise or; integers only.
#define QUELL_BLOB_OR 5

// Bitwise exclusive or; integers only.
#define QUELL_BLOB_XOR 6

// Replaces the number by the operand if it has the same bits as the expected number. Otherwise the
// whole transaction fails with QUELL_BLOB_DIFFERENT.
#define QUELL_BLOB_COMPARE_AND_SET 7

// The type of a number in a blob: uint8_t.
#define QUELL_BLOB_U8 0

// uint16_t.
#define QUELL_BLOB_U16 1

// uint32_t.
#define QUELL_BLOB_U32 2

// uint64_t.
#define QUELL_BLOB_U64 3

// int8_t.
#define QUELL_BLOB_I8 4

// int16_t.
#define QUELL_BLOB_I16 5

// int32_t.
#define QUELL_BLOB_I32 6

// int64_t.
#define QUELL_BLOB_I64 7

// An IEEE 754 number of 4 bytes.
#define QUELL_BLOB_F32 8

// An IEEE 754 number of 8 bytes.
#define QUELL_BLOB_F64 9

// The lower bits of an integer result outside the range of the type are stored.
#define QUELL_BLOB_WRAP 0

// The nearest number of the type is stored.
#define QUELL_BLOB_SATURATE 1

// The transaction fails with QUELL_BLOB_OVERFLOW.
#define QUELL_BLOB_CHECK 2

// A list of blobs, and the position of the next one.
typedef struct quell_blob_names quell_blob_names;

// The result of a transaction that was committed.
typedef struct quell_blob_result quell_blob_result;

// One state of a store.
typedef struct quell_blob_snapshot quell_blob_snapshot;

// An open store.
typedef struct quell_blob_store quell_blob_store;

// A transaction that is not committed.
typedef struct quell_blob_transaction quell_blob_transaction;

// The reason of an error.
typedef struct quell_blob_failure {
  // QUELL_BLOB_FAILED, _CONFLICT, _SNAPSHOT_TOO_OLD, _DIFFERENT or _OVERFLOW.
  uint32_t reason;
  // 1 if the same transaction can succeed when it is repeated from the beginning, otherwise 0.
  int is_repeatable;
  // The index of the operation in the transaction, from 0; -1 if none of them is the reason.
  int64_t operation;
  // The index of the number in the range of a transform, from 0.
  uint32_t cell;
  // The length of the number that a compare-and-set found, in bytes; otherwise 0.
  uint32_t found_bytes;
  // The number that a compare-and-set found, little endian.
  uint8_t found[8];
} quell_blob_failure;

// A part of a blob, or of the list of names.
typedef struct quell_blob_part {
  // QUELL_BLOB_EXISTENCE, _SIZE, _RANGE or _NAMES.
  uint32_t kind;
  // For QUELL_BLOB_RANGE, the first byte.
  uint64_t start;
  // For QUELL_BLOB_RANGE, the byte after the last one.
  uint64_t end;
} quell_blob_part;

// A part that a transaction has read, and that another one has changed.
typedef struct quell_blob_conflict {
  // The name of the blob, or the prefix of names.
  const void *name;
  // The length of the name, in bytes.
  size_t name_bytes;
  // The part as the transaction has read it.
  struct quell_blob_part read;
  // The part that was changed.
  struct quell_blob_part changed;
} quell_blob_conflict;

// Options for opening a store. 0 selects the default.
typedef struct quell_blob_options {
  // The largest number of submitted operations in flight (default 1,000). The functions that
  // submit one wait while as many are in flight.
  uint32_t in_flight_max;
  // Whether quell_blob_open fails with ENOENT if there is no store (default: it creates one).
  int must_exist;
} quell_blob_options;

// An operation on one or more consecutive numbers of a blob. Numbers and operands are little
// endian. Numbers after the end of the blob are zeros, and the blob is extended.
typedef struct quell_blob_transform {
  // QUELL_BLOB_ADD, _MULTIPLY, _MIN, _MAX, _AND, _OR, _XOR or _COMPARE_AND_SET.
  uint32_t kind;
  // The type of the numbers and operands: QUELL_BLOB_U8 to QUELL_BLOB_F64.
  uint32_t cell;
  // The treatment of integer results of add and multiply outside the range of the type:
  // QUELL_BLOB_WRAP, _SATURATE or _CHECK.
  uint32_t overflow;
  // The number of consecutive numbers: at least 1, and at most 1 MiB of them.
  uint32_t count;
  // One operand for each number, or one operand for all of them.
  const void *operands;
  // The length of the operands, in bytes.
  size_t operands_bytes;
  // For QUELL_BLOB_COMPARE_AND_SET, the expected numbers, as many as operands; otherwise NULL.
  const void *expected;
  // The length of the expected numbers, in bytes; otherwise 0.
  size_t expected_bytes;
  // Whether the numbers before the transform are returned.
  int returns_before;
} quell_blob_transform;

// The attributes of a blob.
typedef struct quell_blob_attributes {
  // The size, in bytes.
  uint64_t size_bytes;
  // The time of the last commit that changed the blob, in nanoseconds since 1970 (UTC).
  uint64_t modified_ns;
} quell_blob_attributes;

// A blob in a list.
typedef struct quell_blob_name {
  // The name. Valid until the list is closed.
  const void *name;
  // The length of the name, in bytes.
  size_t name_bytes;
  // The attributes of the blob.
  struct quell_blob_attributes attributes;
} quell_blob_name;

// The attributes of a blob as a file of `quell mount --blob`.
typedef struct quell_blob_file_attributes {
  // The type and the permissions, as `st_mode`.
  uint32_t mode;
  // The owner.
  uint32_t uid;
  // The group.
  uint32_t gid;
} quell_blob_file_attributes;

// The attempts of a transaction that conflicts, and their delays. 0 selects the default.
typedef struct quell_blob_retries {
  // The largest number of attempts (default 20).
  uint32_t attempts_max;
  // The mean time before the second attempt, in microseconds (default 100). It doubles with each
  // attempt.
  uint32_t first_delay_us;
  // The largest mean time before an attempt, in microseconds (default 1,000,000).
  uint32_t delay_max_us;
} quell_blob_retries;

// The body of a transaction: see quell_blob_transact.
typedef int (*quell_blob_body)(const struct quell_blob_transaction *transaction, void *context);

// Receives the result of a commit: see quell_blob_submit.
typedef void (*quell_blob_committed)(void *context, int status, const struct quell_blob_result *result);

// Receives the result of a read: see quell_blob_submit_read.
typedef void (*quell_blob_was_read)(void *context, int64_t count);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the message of the last error in this thread; never NULL. It is valid until the next
// error in this thread, or until the thread ends.
const char *quell_blob_last_error(void);

// Sets `failure` to the reason of the last error in this thread.
//
// # Safety
//
// `failure` is NULL or a variable for the reason.
int quell_blob_last_failure(struct quell_blob_failure *failure);

// Sets `conflicts` to the conflicts of the last error in this thread, and returns their number: 0
// if the error is no conflict. They are valid until the next error in this thread, or until the
// thread ends.
//
// # Safety
//
// `conflicts` is NULL or a variable for the pointer.
int64_t quell_blob_last_conflicts(const struct quell_blob_conflict **conflicts);

// Opens the store at a location: `dir:PATH`, the path of a directory, `unix:PATH`,
// `quell://HOST:PORT?key=FILE`, or `rados://POOL/NAMESPACE?key=FILE` for the present server of a
// store in RADOS; the last two with `&encrypt` for an encrypted connection. A directory that does
// not exist is created with mode 0700. If a server has the directory open, this process becomes a
// client of the server. `options` may be NULL.
//
// Fails with EBUSY if another process has the store open and is no server, with ENOTCONN if no
// server answers, with ENOENT if a pool of RADOS has no store, with EACCES if the directory
// belongs to another user or if others have access to it, with EEXIST if it has other files, and
// with EIO if the store does not have its format.
//
// # Safety
//
// `location` is NULL or a string that ends with a NUL; `options` is NULL or initialized; `store`
// is NULL or a variable for the handle.
int quell_blob_open(const char *location,
                    const struct quell_blob_options *options,
                    struct quell_blob_store **store);

// Waits until all callbacks have returned, and closes the store. Its directory or connection stays
// open until its transactions and snapshots are closed as well. Fails with EDEADLK in a callback;
// then the store stays open. Does nothing for NULL.
//
// # Safety
//
// `store` is NULL or an open handle that no other thread uses, and that is not used afterwards.
int quell_blob_close(struct quell_blob_store *store);

// Waits until the callbacks of all submitted operations have returned. Fails with EDEADLK in a
// callback.
//
// # Safety
//
// `store` is NULL or an open store.
int quell_blob_drain(const struct quell_blob_store *store);

// Creates an empty blob. Fails with EEXIST if there is a blob of this name.
//
// # Safety
//
// `store` is NULL or an open store; `name` has `name_bytes` bytes.
int quell_blob_create(const struct quell_blob_store *store, const void *name, size_t name_bytes);

// Deletes a blob. Fails with ENOENT if there is no blob of this name.
//
// # Safety
//
// `store` is NULL or an open store; `name` has `name_bytes` bytes.
int quell_blob_delete(const struct quell_blob_store *store, const void *name, size_t name_bytes);

// Gives a blob another name, without a copy of its content. Fails with ENOENT if there is no blob
// of this name, and with EEXIST if there is a blob of the other name.
//
// # Safety
//
// `store` is NULL or an open store; `name` has `name_bytes` bytes, and `to` has `to_bytes` bytes.
int quell_blob_rename(const struct quell_blob_store *store,
                      const void *name,
                      size_t name_bytes,
                      const void *to,
                      size_t to_bytes);

// Writes bytes of a blob. A blob that ends before `offset` is extended with zeros. Fails with
// ENOENT if there is no blob of this name.
//
// # Safety
//
// `store` is NULL or an open store; `name` has `name_bytes` bytes, and `data` has `length` bytes.
int quell_blob_write(const struct quell_blob_store *store,
                     const void *name,
                     size_t name_bytes,
                     uint64_t offset,
                     const void *data,
                     size_t length);

// Writes bytes at the end of a blob, and returns their offset. Fails with ENOENT if there is no
// blob of this name.
//
// # Safety
//
// `store` is NULL or an open store; `name` has `name_bytes` bytes, and `data` has `length` bytes.
int64_t quell_blob_append(const struct quell_blob_store *store,
                          const void *name,
                          size_t name_bytes,
                          const void *data,
                          size_t length);

// Sets the size of a blob: truncates it, or extends it with zeros, which need no space. Fails with
// ENOENT if there is no blob of this name.
//
// # Safety
//
// `store` is NULL or an open store; `name` has `name_bytes` bytes.
int quell_blob_resize(const struct quell_blob_store *store,
                      const void *name,
                      size_t name_bytes,
                      uint64_t size_bytes);

// Replaces numbers in a blob, in one commit and without reading them. If `transform` asks for the
// numbers before the transform, they are copied to `before`, and their length in bytes is
// returned; otherwise 0 is returned, and `before` may be NULL. `before_bytes` is the space in
// `before`.
//
// Fails with ENOENT if there is no blob of this name, with EINVAL for a transform that is not
// defined or a result outside the range of the type (QUELL_BLOB_OVERFLOW), with ECANCELED if a
// compare-and-set found another number (QUELL_BLOB_DIFFERENT), and with ERANGE if the space is too
// small. Then nothing is changed.
//
// # Safety
//
// `store` is NULL or an open store; `name` has `name_bytes` bytes; `transform` is NULL or
// initialized, with pointers to as many bytes as it states; `before` has space for `before_bytes`
// bytes.
int64_t quell_blob_apply(const struct quell_blob_store *store,
                         const void *name,
                         size_t name_bytes,
                         uint64_t offset,
                         const struct quell_blob_transform *transform,
                         void *before,
                         size_t before_bytes);

// Reads bytes of the latest state of a blob, and returns their number. It is less than `length` at
// the end of the blob only. Fails with ENOENT if there is no blob of this name, and with EIO if
// data does not have its checksum.
//
// # Safety
//
// `store` is NULL or an open store; `name` has `name_bytes` bytes; `into` has space for `length`
// bytes, which no other thread uses during the call.
int64_t quell_blob_read(const struct quell_blob_store *store,
                        const void *name,
                        size_t name_bytes,
                        uint64_t offset,
                        void *into,
                        size_t length);

// Sets `attributes` to the attributes of a blob in the latest state. Fails with ENOENT if there is
// no blob of this name.
//
// # Safety
//
// `store` is NULL or an open store; `name` has `name_bytes` bytes; `attributes` is NULL or a
// variable for the attributes.
int quell_blob_stat(const struct quell_blob_store *store,
                    const void *name,
                    size_t name_bytes,
                    struct quell_blob_attributes *attributes);

// Removes all data that neither the latest state nor a snapshot needs. Commits also remove such
// data, after some of it has accumulated.
//
// # Safety
//
// `store` is NULL or an open store.
int quell_blob_collect(const struct quell_blob_store *store);

// Begins a snapshot of the latest state. Later commits do not change it. All functions on it fail
// with ESTALE if later commits have changed so much that the store no longer keeps the state, or
// if the server of the store was restarted.
//
// # Safety
//
// `store` is NULL or an open store; `snapshot` is NULL or a variable for the handle.
int quell_blob_snapshot_begin(const struct quell_blob_store *store, struct quell_blob_snapshot **snapshot);

// Returns the version of the state, which is never negative.
//
// # Safety
//
// `snapshot` is NULL or an open snapshot.
int64_t quell_blob_snapshot_version(const struct quell_blob_snapshot *snapshot);

// Reads as quell_blob_read.
//
// # Safety
//
// `snapshot` is NULL or an open snapshot; `name` has `name_bytes` bytes; `into` has space for
// `length` bytes, which no other thread uses during the call.
int64_t quell_blob_snapshot_read(const struct quell_blob_snapshot *snapshot,
                                 const void *name,
                                 size_t name_bytes,
                                 uint64_t offset,
                                 void *into,
                                 size_t length);

// Sets `attributes` as quell_blob_stat does.
//
// # Safety
//
// `snapshot` is NULL or an open snapshot; `name` has `name_bytes` bytes; `attributes` is NULL or a
// variable for the attributes.
int quell_blob_snapshot_stat(const struct quell_blob_snapshot *snapshot,
                             const void *name,
                             size_t name_bytes,
                             struct quell_blob_attributes *attributes);

// Sets `position` to the first byte from `offset` on at which a blob has data, and returns 1. The
// bytes before it are zeros. Returns 0 if there is no data up to the end. Fails with ENOENT if
// there is no blob of this name.
//
// # Safety
//
// `snapshot` is NULL or an open snapshot; `name` has `name_bytes` bytes; `position` is NULL or a
// variable for the position.
int quell_blob_snapshot_next_data(const struct quell_blob_snapshot *snapshot,
                                  const void *name,
                                  size_t name_bytes,
                                  uint64_t offset,
                                  uint64_t *position);

// Lists at most `count_max` blobs whose names begin with `prefix` and are after `after`, in the
// order of their names. The last name of one list is `after` of the next one; both may be NULL
// with length 0. The list is in memory.
//
// # Safety
//
// `snapshot` is NULL or an open snapshot; `prefix` has `prefix_bytes` bytes, and `after` has
// `after_bytes` bytes; `names` is NULL or a variable for the handle.
int quell_blob_snapshot_list(const struct quell_blob_snapshot *snapshot,
                             const void *prefix,
                             size_t prefix_bytes,
                             const void *after,
                             size_t after_bytes,
                             size_t count_max,
                             struct quell_blob_names **names);

// Ends a snapshot. Does nothing for NULL.
//
// # Safety
//
// `snapshot` is NULL or an open handle that no other thread uses, and that is not used afterwards.
int quell_blob_snapshot_close(struct quell_blob_snapshot *snapshot);

// Sets `name` to the next blob of a list and returns 1, or returns 0 if there are no more.
//
// # Safety
//
// `names` is NULL or a list that is not closed; `name` is NULL or a variable for the blob.
int quell_blob_names_next(const struct quell_blob_names *names, struct quell_blob_name *name);

// Frees a list. Does nothing for NULL.
//
// # Safety
//
// `names` is NULL or a list that no other thread uses, and that is not used afterwards.
int quell_blob_names_close(struct quell_blob_names *names);

// Begins a transaction. It reads the latest state and its own changes. Others see its changes
// after its commit, all at once. The commit fails with ECANCELED (QUELL_BLOB_CONFLICT) if another
// transaction has changed a part that this one has read.
//
// # Safety
//
// `store` is NULL or an open store; `transaction` is NULL or a variable for the handle.
int quell_blob_begin(const struct quell_blob_store *store, struct quell_blob_transaction **transaction);

// Begins a transaction that cannot read, and never conflicts. Unlike quell_blob_begin, it sends no
// request to a server before its commit. It has at most 16,384 operations.
//
// # Safety
//
// `store` is NULL or an open store; `transaction` is NULL or a variable for the handle.
int quell_blob_batch(const struct quell_blob_store *store, struct quell_blob_transaction **transaction);

// Adds the creation of an empty blob. If the blob exists, the commit fails with EEXIST, unless
// `may_exist` is not 0; then the blob is left unchanged.
//
// # Safety
//
// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes.
int quell_blob_transaction_create(const struct quell_blob_transaction *transaction,
                                  const void *name,
                                  size_t name_bytes,
                                  int may_exist);

// Adds the deletion of a blob. The commit fails with ENOENT if it does not exist.
//
// # Safety
//
// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes.
int quell_blob_transaction_delete(const struct quell_blob_transaction *transaction,
                                  const void *name,
                                  size_t name_bytes);

// Adds a change of the name of a blob, whose content is not copied. The commit fails with EEXIST
// if the other name is in use.
//
// # Safety
//
// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes, and `to` has
// `to_bytes` bytes.
int quell_blob_transaction_rename(const struct quell_blob_transaction *transaction,
                                  const void *name,
                                  size_t name_bytes,
                                  const void *to,
                                  size_t to_bytes);

// Adds a write of bytes, which are copied. The commit fails with ENOENT if there is no blob of
// this name.
//
// # Safety
//
// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes, and `data` has
// `length` bytes.
int quell_blob_transaction_write(const struct quell_blob_transaction *transaction,
                                 const void *name,
                                 size_t name_bytes,
                                 uint64_t offset,
                                 const void *data,
                                 size_t length);

// Adds a write of bytes, which are copied, at the end of a blob. The result of the commit has
// their offset. Appends of several transactions do not conflict.
//
// # Safety
//
// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes, and `data` has
// `length` bytes.
int quell_blob_transaction_append(const struct quell_blob_transaction *transaction,
                                  const void *name,
                                  size_t name_bytes,
                                  const void *data,
                                  size_t length);

// Adds a change of the size of a blob.
//
// # Safety
//
// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes.
int quell_blob_transaction_resize(const struct quell_blob_transaction *transaction,
                                  const void *name,
                                  size_t name_bytes,
                                  uint64_t size_bytes);

// Adds a change of the attributes of a blob as a file, which the store keeps and does not
// interpret, or of the time of its last change, in nanoseconds since 1970 (UTC). NULL leaves the
// attributes or the time as they are. The commit fails with ENOENT if there is no blob of this
// name.
//
// # Safety
//
// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes; `file` and
// `modified_ns` are NULL or initialized.
int quell_blob_transaction_set_attributes(const struct quell_blob_transaction *transaction,
                                          const void *name,
                                          size_t name_bytes,
                                          const struct quell_blob_file_attributes *file,
                                          const uint64_t *modified_ns);

// Adds a transform. It is applied to the numbers at the commit, so that transforms of several
// transactions do not conflict.
//
// # Safety
//
// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes; `transform` is NULL
// or initialized, with pointers to as many bytes as it states.
int quell_blob_transaction_apply(const struct quell_blob_transaction *transaction,
                                 const void *name,
                                 size_t name_bytes,
                                 uint64_t offset,
                                 const struct quell_blob_transform *transform);

// Reads bytes, including the changes of this transaction, and returns their number. It is less
// than `length` at the end of the blob only. Fails with ENOENT if there is no blob of this name,
// with the reason for which an earlier operation of the transaction cannot be applied, and with
// ESTALE if the state is no longer kept.
//
// # Safety
//
// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes; `into` has space
// for `length` bytes, which no other thread uses during the call.
int64_t quell_blob_transaction_read(const struct quell_blob_transaction *transaction,
                                    const void *name,
                                    size_t name_bytes,
                                    uint64_t offset,
                                    void *into,
                                    size_t length);

// Sets `attributes` to the attributes of a blob, including the changes of this transaction. Fails
// with ENOENT if there is no blob of this name. The commit fails if the size or existence has
// changed; a change of the time is no conflict.
//
// # Safety
//
// `transaction` is NULL or an open transaction; `name` has `name_bytes` bytes; `attributes` is
// NULL or a variable for the attributes.
int quell_blob_transaction_stat(const struct quell_blob_transaction *transaction,
                                const void *name,
                                size_t name_bytes,
                                struct quell_blob_attributes *attributes);

// Lists blobs as quell_blob_snapshot_list does, including the changes of this transaction. The
// commit fails if a blob whose name begins with `prefix` was created or deleted.
//
// # Safety
//
// `transaction` is NULL or an open transaction; `prefix` has `prefix_bytes` bytes, and `after` has
// `after_bytes` bytes; `names` is NULL or a variable for the handle.
int quell_blob_transaction_list(const struct quell_blob_transaction *transaction,
                                const void *prefix,
                                size_t prefix_bytes,
                                const void *after,
                                size_t after_bytes,
                                size_t count_max,
                                struct quell_blob_names **names);

// Returns the version of the state that the transaction reads, which is never negative. Fails with
// EINVAL for a batch.
//
// # Safety
//
// `transaction` is NULL or an open transaction.
int64_t quell_blob_transaction_version(const struct quell_blob_transaction *transaction);

// Commits a transaction. When the call returns, all readers see it, and it survives a power
// failure. If it fails, it has changed nothing, with the exceptions of ETIMEDOUT, ENOTCONN and
// EIO, after which it can have taken effect. The transaction has ended in either case: other
// functions fail with EINVAL, and the handle must be closed. `result` may be NULL.
//
// # Safety
//
// `transaction` is NULL or an open transaction; `result` is NULL or a variable for the result.
int quell_blob_commit(const struct quell_blob_transaction *transaction, struct quell_blob_result **result);

// Frees a transaction. One that was not committed changes nothing. Does nothing for NULL.
//
// # Safety
//
// `transaction` is NULL or an open handle that no other thread uses, and that is not used
// afterwards.
int quell_blob_transaction_close(struct quell_blob_transaction *transaction);

// Begins a transaction, passes it to `body` with `context`, and commits it. After a conflict, and
// if the state is no longer kept, all of this is repeated after a delay. `body` is called on this
// thread, and may be called several times. It must neither commit nor close the transaction.
//
// If `body` returns 0, the transaction is committed. If it returns a negative number, for example
// the result of a failed read, the transaction is not committed; after -ECANCELED and -ESTALE it
// is repeated, and all other numbers are returned. A positive number ends the transaction without
// a commit, and is returned. `retries` and `result` may be NULL. After the last attempt, the error
// of its commit is returned.
//
// # Safety
//
// `store` is NULL or an open store; `retries` is NULL or initialized; `body` is NULL or a function
// that returns to its caller; `result` is NULL or a variable for the result.
int quell_blob_transact(const struct quell_blob_store *store,
                        const struct quell_blob_retries *retries,
                        quell_blob_body body,
                        void *context,
                        struct quell_blob_result **result);

// Returns the version of the state after the transaction, which is never negative. Later
// transactions get the same or a larger one.
//
// # Safety
//
// `result` is NULL or the result of a transaction that is not closed.
int64_t quell_blob_result_version(const struct quell_blob_result *result);

// Returns the offset at which the data of an append begins. `operation` is the index of the append
// in the transaction, from 0. Fails with EINVAL if the operation is not an append.
//
// # Safety
//
// `result` is NULL or the result of a transaction that is not closed.
int64_t quell_blob_result_appended(const struct quell_blob_result *result, size_t operation);

// Copies the numbers before a transform, for which `returns_before` was set, to `into`, and
// returns their length in bytes. `operation` is the index of the transform in the transaction,
// from 0. Fails with EINVAL if there are no such numbers, and with ERANGE if `space` is too small.
//
// # Safety
//
// `result` is NULL or the result of a transaction that is not closed; `into` has space for `space`
// bytes, or is NULL.
int64_t quell_blob_result_before(const struct quell_blob_result *result,
                                 size_t operation,
                                 void *into,
                                 size_t space);

// Frees a result. Does nothing for NULL.
//
// # Safety
//
// `result` is NULL or a result that no other thread uses, and that is not used afterwards. A
// result that was passed to a callback must not be freed.
int quell_blob_result_close(struct quell_blob_result *result);

// Commits a transaction as quell_blob_commit does, without waiting. If the call succeeds, `done`
// is called exactly once, with `context`, with 0 or the negative error number, and with the
// result, or NULL after an error. The result is valid until `done` returns. If the call fails,
// `done` is not called. The handle can be closed at once.
//
// The call waits while the largest number of operations is in flight: see quell_blob_options. Data
// of 32 KiB and more of an operation is written before the call returns, unless a server has the
// store open.
//
// Callbacks of a store are called by one thread, one after another, when a result is available.
// They may call all functions but quell_blob_close and quell_blob_drain, and the functions that
// submit an operation do not wait in them. In a callback, quell_blob_last_error() and the details
// of the error describe the operation. While a callback runs, others of the store wait.
//
// # Safety
//
// `transaction` is NULL or an open transaction; `done` is NULL or a function that can be called by
// another thread with `context`, and that returns to its caller.
int quell_blob_submit(const struct quell_blob_transaction *transaction,
                      quell_blob_committed done,
                      void *context);

// Reads as quell_blob_read does, without waiting. If the call succeeds, `done` is called exactly
// once, with `context`, and with the number of bytes or the negative error number. Until then
// `into` must not be used. The rules of quell_blob_submit for callbacks and for waiting apply. At
// most 64 MiB can be read.
//
// # Safety
//
// `store` is NULL or an open store; `name` has `name_bytes` bytes; `into` has space for `length`
// bytes until `done` is called; `done` is NULL or a function that can be called by another thread
// with `context`, and that returns to its caller.
int quell_blob_submit_read(const struct quell_blob_store *store,
                           const void *name,
                           size_t name_bytes,
                           uint64_t offset,
                           void *into,
                           size_t length,
                           quell_blob_was_read done,
                           void *context);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QUELL_BLOB_H */
