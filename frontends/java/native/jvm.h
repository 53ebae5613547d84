/* SPDX-License-Identifier: Apache-2.0
 *
 * The values that pass between Java and the functions of quell_blob.h, and the threads of the
 * library that call Java. The functions that fail leave an exception pending. */
#ifndef QUELL_BLOB_JVM_H
#define QUELL_BLOB_JVM_H

#include <jni.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quell_blob.h"

/* Bytes of Java in memory of C, or memory for them. `owned` is NULL, or is freed by `release`. */
struct bytes {
    unsigned char *data;
    size_t length;
    void *owned;
};

/* Copies an array, once. */
bool copy_array(JNIEnv *env, jbyteArray array, struct bytes *bytes);

/* Sets `bytes` to a range of a direct buffer, in place, or copies it from the array if `direct` is
 * NULL. */
bool data_of(JNIEnv *env, jbyteArray array, jobject direct, jint start, jint length, struct bytes *bytes);

/* Sets `bytes` to a range of a direct buffer, in place, or to new memory if `direct` is NULL. */
bool space_for(JNIEnv *env, jobject direct, jint start, jint length, struct bytes *bytes);

void release(struct bytes *bytes);

/* A buffer that grows. */
struct growing {
    unsigned char *data;
    size_t length, space;
};

/* Adds an integer, little endian. Returns false without memory. */
bool add_u32(struct growing *to, uint32_t number);
bool add_u64(struct growing *to, uint64_t number);
bool add_bytes(struct growing *to, const void *data, size_t length);

/* Returns a new array, or NULL with a pending exception. */
jbyteArray array_of(JNIEnv *env, const void *data, size_t length);

void throw_out_of_memory(JNIEnv *env, const char *message);

/* Returns the answer of a function of quell_blob.h. If it is negative, the exception for the last
 * error of this thread is pending. */
int64_t check(JNIEnv *env, int64_t answer);

/* Returns the environment of a thread of the library, which is attached to the virtual machine
 * until it ends. Prints a message and returns NULL if the virtual machine has ended or has no
 * memory. */
JNIEnv *callback_environment(void);

/* Passes the result of an operation, or the pending exception, to a global reference to a Pending,
 * and deletes the reference. */
void finish(JNIEnv *env, jobject pending, jlong count, jbyteArray data);

#endif
