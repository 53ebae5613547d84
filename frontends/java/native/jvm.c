/* SPDX-License-Identifier: Apache-2.0 */
#include "jvm.h"

#include <endian.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERSION JNI_VERSION_1_8

static JavaVM *vm;
/* Its destructor detaches the threads of the library when they end. */
static pthread_key_t attached;
/* Global references, and the methods of their classes. */
static jclass exceptions, pendings, out_of_memory;
static jmethodID exception_of, pending_finish, pending_fail;

static void detach(void *environment) {
    (void)environment;
    (*vm)->DetachCurrentThread(vm);
}

static jclass global_class(JNIEnv *env, const char *name) {
    jclass local = (*env)->FindClass(env, name);
    jclass global = local == NULL ? NULL : (*env)->NewGlobalRef(env, local);
    (*env)->DeleteLocalRef(env, local);
    return global;
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *loading, void *reserved) {
    (void)reserved;
    JNIEnv *env;
    vm = loading;
    if ((*vm)->GetEnv(vm, (void **)&env, VERSION) != JNI_OK || pthread_key_create(&attached, detach) != 0)
        return JNI_ERR;
    /* After each failure an exception is pending, which System.load throws. */
    out_of_memory = global_class(env, "java/lang/OutOfMemoryError");
    exceptions = out_of_memory == NULL ? NULL : global_class(env, "quell/blob/BlobException");
    pendings = exceptions == NULL ? NULL : global_class(env, "quell/blob/Pending");
    if (pendings == NULL)
        return JNI_ERR;
    exception_of =
        (*env)->GetStaticMethodID(env, exceptions, "of", "(I[BIZJI[B[B)Lquell/blob/BlobException;");
    if (exception_of == NULL)
        return JNI_ERR;
    pending_finish = (*env)->GetMethodID(env, pendings, "finish", "(J[B)V");
    if (pending_finish == NULL)
        return JNI_ERR;
    pending_fail = (*env)->GetMethodID(env, pendings, "fail", "(Ljava/lang/Throwable;)V");
    return pending_fail == NULL ? JNI_ERR : VERSION;
}

void throw_out_of_memory(JNIEnv *env, const char *message) {
    (*env)->ThrowNew(env, out_of_memory, message);
}

static bool allocate(JNIEnv *env, jint length, struct bytes *bytes) {
    bytes->length = (size_t)length;
    bytes->owned = bytes->data = malloc(bytes->length + 1); /* never NULL for 0 bytes */
    if (bytes->data == NULL)
        throw_out_of_memory(env, "no memory for the data of a blob");
    return bytes->data != NULL;
}

static void in_place(JNIEnv *env, jobject direct, jint start, jint length, struct bytes *bytes) {
    bytes->data = (unsigned char *)(*env)->GetDirectBufferAddress(env, direct) + start;
    bytes->length = (size_t)length;
    bytes->owned = NULL;
}

bool data_of(JNIEnv *env, jbyteArray array, jobject direct, jint start, jint length, struct bytes *bytes) {
    if (direct != NULL) {
        in_place(env, direct, start, length, bytes);
        return true;
    }
    if (!allocate(env, length, bytes))
        return false;
    (*env)->GetByteArrayRegion(env, array, start, length, (jbyte *)bytes->data);
    if ((*env)->ExceptionCheck(env)) {
        release(bytes);
        return false;
    }
    return true;
}

bool copy_array(JNIEnv *env, jbyteArray array, struct bytes *bytes) {
    return data_of(env, array, NULL, 0, (*env)->GetArrayLength(env, array), bytes);
}

bool space_for(JNIEnv *env, jobject direct, jint start, jint length, struct bytes *bytes) {
    if (direct == NULL)
        return allocate(env, length, bytes);
    in_place(env, direct, start, length, bytes);
    return true;
}

void release(struct bytes *bytes) {
    free(bytes->owned);
}

bool add_bytes(struct growing *to, const void *data, size_t length) {
    if (length > to->space - to->length) {
        size_t space = 2 * (to->length + length) + 64;
        unsigned char *more = realloc(to->data, space);
        if (more == NULL)
            return false;
        to->data = more;
        to->space = space;
    }
    if (length > 0)
        memcpy(to->data + to->length, data, length);
    to->length += length;
    return true;
}

bool add_u32(struct growing *to, uint32_t number) {
    uint32_t little = htole32(number);
    return add_bytes(to, &little, sizeof little);
}

bool add_u64(struct growing *to, uint64_t number) {
    uint64_t little = htole64(number);
    return add_bytes(to, &little, sizeof little);
}

jbyteArray array_of(JNIEnv *env, const void *data, size_t length) {
    if (length > INT32_MAX) {
        throw_out_of_memory(env, "the result is too large for an array");
        return NULL;
    }
    jbyteArray array = (*env)->NewByteArray(env, (jsize)length);
    if (array != NULL && length > 0)
        (*env)->SetByteArrayRegion(env, array, 0, (jsize)length, data);
    return array;
}

static bool add_part(struct growing *to, const quell_blob_part *part) {
    return add_u32(to, part->kind) && add_u64(to, part->start) && add_u64(to, part->end);
}

/* Packs the conflicts of the last error of this thread as BlobException.of reads them. */
static jbyteArray last_conflicts(JNIEnv *env) {
    const quell_blob_conflict *conflicts = NULL;
    int64_t count = quell_blob_last_conflicts(&conflicts);
    struct growing packed = {NULL, 0, 0};
    jbyteArray array = NULL;
    for (int64_t i = 0; i < count; i++) {
        const quell_blob_conflict *each = &conflicts[i];
        if (!add_part(&packed, &each->read) || !add_part(&packed, &each->changed) ||
            !add_u32(&packed, (uint32_t)each->name_bytes) ||
            !add_bytes(&packed, each->name, each->name_bytes)) {
            throw_out_of_memory(env, "no memory for the conflicts of a transaction");
            free(packed.data);
            return NULL;
        }
    }
    array = array_of(env, packed.data, packed.length);
    free(packed.data);
    return array;
}

int64_t check(JNIEnv *env, int64_t answer) {
    if (answer >= 0)
        return answer;
    quell_blob_failure failure = {.operation = -1};
    quell_blob_last_failure(&failure);
    const char *message = quell_blob_last_error();
    jbyteArray text = array_of(env, message, strlen(message));
    jbyteArray found = text == NULL ? NULL : array_of(env, failure.found, failure.found_bytes);
    jbyteArray conflicts = found == NULL ? NULL : last_conflicts(env);
    if (conflicts == NULL)
        return answer;
    jthrowable error = (*env)->CallStaticObjectMethod(
        env, exceptions, exception_of, (jint)-answer, text, (jint)failure.reason,
        (jboolean)(failure.is_repeatable != 0), (jlong)failure.operation, (jint)failure.cell, found, conflicts);
    if (!(*env)->ExceptionCheck(env))
        (*env)->Throw(env, error);
    return answer;
}

JNIEnv *callback_environment(void) {
    JNIEnv *env = NULL;
    if ((*vm)->GetEnv(vm, (void **)&env, VERSION) == JNI_OK)
        return env;
    /* The virtual machine does not wait for a daemon when it exits, and then stops it at its next
     * call. */
    JavaVMAttachArgs arguments = {VERSION, (char *)"quell blob callbacks", NULL};
    if ((*vm)->AttachCurrentThreadAsDaemon(vm, (void **)&env, &arguments) != JNI_OK) {
        fputs("quell: the virtual machine accepts no thread; a result is not passed to Java\n", stderr);
        return NULL;
    }
    /* The virtual machine would use the stack of a thread that ends while it is attached. */
    if (pthread_setspecific(attached, env) != 0)
        (*env)->FatalError(env, "quell: no memory for a thread");
    return env;
}

void finish(JNIEnv *env, jobject pending, jlong count, jbyteArray data) {
    jthrowable thrown = (*env)->ExceptionOccurred(env);
    if (thrown != NULL) {
        (*env)->ExceptionClear(env);
        (*env)->CallVoidMethod(env, pending, pending_fail, thrown);
    } else {
        (*env)->CallVoidMethod(env, pending, pending_finish, count, data);
    }
    if ((*env)->ExceptionCheck(env))
        (*env)->ExceptionDescribe(env); /* and clears it; there is no caller */
    (*env)->DeleteGlobalRef(env, pending);
}
