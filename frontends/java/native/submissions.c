/* SPDX-License-Identifier: Apache-2.0
 *
 * The native functions of quell.blob.Native that commit, and those whose results a thread of the
 * library passes to Java. */
#include <stdlib.h>

#include "jvm.h"
#include "quell_blob_Native.h"

#define TRANSACTION ((quell_blob_transaction *)(intptr_t)transaction)

/* The results that a commit asks for: see quell.blob.Native.commit. */
struct wanted {
    jint *results;
    size_t count;
};

static bool copy_wanted(JNIEnv *env, jintArray array, struct wanted *wanted) {
    jsize count = (*env)->GetArrayLength(env, array);
    wanted->count = (size_t)count;
    wanted->results = calloc(wanted->count + 1, sizeof *wanted->results);
    if (wanted->results == NULL) {
        throw_out_of_memory(env, "no memory for the results of a transaction");
        return false;
    }
    (*env)->GetIntArrayRegion(env, array, 0, count, wanted->results);
    if ((*env)->ExceptionCheck(env)) {
        free(wanted->results);
        return false;
    }
    return true;
}

/* Returns the results as quell.blob.Native.commit describes them. */
static jbyteArray packed_results(JNIEnv *env, const quell_blob_result *result, const struct wanted *wanted) {
    struct growing packed = {NULL, 0, 0};
    int64_t version = check(env, quell_blob_result_version(result));
    if (version < 0)
        return NULL;
    bool has_memory = add_u64(&packed, (uint64_t)version);
    jbyteArray array = NULL;
    for (size_t i = 0; has_memory && i < wanted->count; i++) {
        jint each = wanted->results[i];
        if (each == quell_blob_Native_APPENDED) {
            int64_t offset = check(env, quell_blob_result_appended(result, i));
            if (offset < 0)
                goto done;
            has_memory = add_u64(&packed, (uint64_t)offset);
        } else if (each > 0) {
            void *before = malloc((size_t)each);
            int64_t found = before == NULL ? 0 : check(env, quell_blob_result_before(result, i, before, (size_t)each));
            has_memory = before != NULL && (found < 0 || add_bytes(&packed, before, (size_t)found));
            free(before);
            if (found < 0)
                goto done;
        }
    }
    if (has_memory)
        array = array_of(env, packed.data, packed.length);
    else
        throw_out_of_memory(env, "no memory for the results of a transaction");
done:
    free(packed.data);
    return array;
}

JNIEXPORT jbyteArray JNICALL Java_quell_blob_Native_commit(JNIEnv *env, jclass class, jlong transaction,
                                                           jintArray array) {
    struct wanted wanted;
    quell_blob_result *result = NULL;
    jbyteArray packed = NULL;
    if (!copy_wanted(env, array, &wanted))
        return NULL;
    if (check(env, quell_blob_commit(TRANSACTION, &result)) == 0)
        packed = packed_results(env, result, &wanted);
    quell_blob_result_close(result);
    free(wanted.results);
    return packed;
}

/* A submitted commit. */
struct commit {
    jobject pending;
    struct wanted wanted;
};

/* A submitted read. If `into.owned` is not NULL, the bytes are passed to Java as an array. */
struct submitted_read {
    jobject pending; /* it also keeps a direct buffer */
    struct bytes into;
};

/* The number of local references of a callback: a thread of the library never returns to Java,
 * which would delete them. */
#define LOCAL_REFERENCES 16

static void was_committed(void *context, int status, const quell_blob_result *result) {
    struct commit *own = context;
    JNIEnv *env = callback_environment();
    if (env != NULL) {
        bool has_frame = (*env)->PushLocalFrame(env, LOCAL_REFERENCES) == 0;
        jbyteArray packed = NULL;
        if (has_frame && check(env, status) == 0)
            packed = packed_results(env, result, &own->wanted);
        finish(env, own->pending, 0, packed);
        if (has_frame)
            (*env)->PopLocalFrame(env, NULL);
    }
    free(own->wanted.results);
    free(own);
}

static void was_read(void *context, int64_t count) {
    struct submitted_read *own = context;
    JNIEnv *env = callback_environment();
    if (env != NULL) {
        bool has_frame = (*env)->PushLocalFrame(env, LOCAL_REFERENCES) == 0;
        jbyteArray data = NULL;
        if (has_frame && check(env, count) >= 0 && own->into.owned != NULL)
            data = array_of(env, own->into.data, (size_t)count);
        finish(env, own->pending, count, data);
        if (has_frame)
            (*env)->PopLocalFrame(env, NULL);
    }
    release(&own->into);
    free(own);
}

JNIEXPORT void JNICALL Java_quell_blob_Native_submit(JNIEnv *env, jclass class, jlong transaction, jintArray array,
                                                     jobject pending) {
    struct commit *own = calloc(1, sizeof *own);
    if (own == NULL) {
        throw_out_of_memory(env, "no memory for a commit");
        return;
    }
    if (!copy_wanted(env, array, &own->wanted)) {
        free(own);
        return;
    }
    own->pending = (*env)->NewGlobalRef(env, pending);
    if (own->pending == NULL)
        throw_out_of_memory(env, "no memory for a commit");
    else if (check(env, quell_blob_submit(TRANSACTION, was_committed, own)) == 0)
        return; /* the callback frees it */
    else
        (*env)->DeleteGlobalRef(env, own->pending);
    free(own->wanted.results);
    free(own);
}

JNIEXPORT void JNICALL Java_quell_blob_Native_submitRead(JNIEnv *env, jclass class, jlong store, jbyteArray name,
                                                         jlong offset, jobject direct, jint start, jint length,
                                                         jobject pending) {
    struct bytes named;
    struct submitted_read *own = calloc(1, sizeof *own);
    if (own == NULL) {
        throw_out_of_memory(env, "no memory for a read");
        return;
    }
    bool is_submitted = false;
    if (copy_array(env, name, &named)) {
        if (space_for(env, direct, start, length, &own->into)) {
            own->pending = (*env)->NewGlobalRef(env, pending);
            if (own->pending == NULL)
                throw_out_of_memory(env, "no memory for a read");
            else
                is_submitted = check(env, quell_blob_submit_read((quell_blob_store *)(intptr_t)store, named.data,
                                                                 named.length, (uint64_t)offset, own->into.data,
                                                                 own->into.length, was_read, own)) == 0;
        }
        release(&named);
    }
    if (is_submitted)
        return; /* the callback frees it */
    (*env)->DeleteGlobalRef(env, own->pending);
    release(&own->into);
    free(own);
}
