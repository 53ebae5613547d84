/* SPDX-License-Identifier: Apache-2.0
 *
 * The native functions of quell.blob.Native: each translates its arguments, calls a function of
 * quell_blob.h, and translates the answer. Java guarantees that handles are open. */
#include <stdlib.h>

#include "jvm.h"
#include "quell_blob_Native.h"

#define NATIVE(result, name) JNIEXPORT result JNICALL Java_quell_blob_Native_##name
#define STORE ((quell_blob_store *)(intptr_t)store)
#define SNAPSHOT ((quell_blob_snapshot *)(intptr_t)snapshot)
#define TRANSACTION ((quell_blob_transaction *)(intptr_t)transaction)

static jlong handle(const void *pointer) {
    return (jlong)(intptr_t)pointer;
}

NATIVE(jlong, open)(JNIEnv *env, jclass class, jbyteArray location, jint in_flight_max, jboolean must_exist) {
    struct growing text = {NULL, 0, 0};
    struct bytes bytes;
    quell_blob_store *store = NULL;
    quell_blob_options options = {.in_flight_max = (uint32_t)in_flight_max, .must_exist = must_exist};
    if (!copy_array(env, location, &bytes))
        return 0;
    if (add_bytes(&text, bytes.data, bytes.length) && add_bytes(&text, "", 1))
        check(env, quell_blob_open((const char *)text.data, &options, &store));
    else
        throw_out_of_memory(env, "no memory for a location");
    free(text.data);
    release(&bytes);
    return handle(store);
}

NATIVE(void, close)(JNIEnv *env, jclass class, jlong store) {
    check(env, quell_blob_close(STORE));
}

NATIVE(void, drain)(JNIEnv *env, jclass class, jlong store) {
    check(env, quell_blob_drain(STORE));
}

NATIVE(void, collect)(JNIEnv *env, jclass class, jlong store) {
    check(env, quell_blob_collect(STORE));
}

NATIVE(void, create)(JNIEnv *env, jclass class, jlong store, jbyteArray name) {
    struct bytes named;
    if (!copy_array(env, name, &named))
        return;
    check(env, quell_blob_create(STORE, named.data, named.length));
    release(&named);
}

NATIVE(void, delete)(JNIEnv *env, jclass class, jlong store, jbyteArray name) {
    struct bytes named;
    if (!copy_array(env, name, &named))
        return;
    check(env, quell_blob_delete(STORE, named.data, named.length));
    release(&named);
}

NATIVE(void, rename)(JNIEnv *env, jclass class, jlong store, jbyteArray name, jbyteArray to) {
    struct bytes named, target;
    if (!copy_array(env, name, &named))
        return;
    if (copy_array(env, to, &target)) {
        check(env, quell_blob_rename(STORE, named.data, named.length, target.data, target.length));
        release(&target);
    }
    release(&named);
}

NATIVE(void, resize)(JNIEnv *env, jclass class, jlong store, jbyteArray name, jlong size) {
    struct bytes named;
    if (!copy_array(env, name, &named))
        return;
    check(env, quell_blob_resize(STORE, named.data, named.length, (uint64_t)size));
    release(&named);
}

NATIVE(void, write)
(JNIEnv *env, jclass class, jlong store, jbyteArray name, jlong offset, jbyteArray array, jobject direct,
 jint start, jint length) {
    struct bytes named, data;
    if (!copy_array(env, name, &named))
        return;
    if (data_of(env, array, direct, start, length, &data)) {
        check(env, quell_blob_write(STORE, named.data, named.length, (uint64_t)offset, data.data, data.length));
        release(&data);
    }
    release(&named);
}

NATIVE(jlong, append)
(JNIEnv *env, jclass class, jlong store, jbyteArray name, jbyteArray array, jobject direct, jint start,
 jint length) {
    struct bytes named, data;
    int64_t offset = 0;
    if (!copy_array(env, name, &named))
        return 0;
    if (data_of(env, array, direct, start, length, &data)) {
        offset = check(env, quell_blob_append(STORE, named.data, named.length, data.data, data.length));
        release(&data);
    }
    release(&named);
    return offset;
}

/* A transform, and the arrays that it points to. */
struct given {
    struct bytes operands, expected;
    quell_blob_transform transform;
};

static bool given_transform(
    JNIEnv *env, jint kind, jint type, jint overflow, jint count, jbyteArray operands, jbyteArray expected,
    jboolean returns_before, struct given *given) {
    if (!copy_array(env, operands, &given->operands))
        return false;
    if (!copy_array(env, expected, &given->expected)) {
        release(&given->operands);
        return false;
    }
    given->transform = (quell_blob_transform){
        .kind = (uint32_t)kind,
        .cell = (uint32_t)type,
        .overflow = (uint32_t)overflow,
        .count = (uint32_t)count,
        .operands = given->operands.data,
        .operands_bytes = given->operands.length,
        .expected = given->expected.length == 0 ? NULL : given->expected.data,
        .expected_bytes = given->expected.length,
        .returns_before = returns_before,
    };
    return true;
}

static void release_transform(struct given *given) {
    release(&given->operands);
    release(&given->expected);
}

NATIVE(jbyteArray, apply)
(JNIEnv *env, jclass class, jlong store, jbyteArray name, jlong offset, jint kind, jint type, jint overflow,
 jint count, jbyteArray operands, jbyteArray expected, jboolean returns_before, jint before_bytes) {
    struct bytes named, before;
    struct given given;
    jbyteArray numbers = NULL;
    if (!copy_array(env, name, &named))
        return NULL;
    if (space_for(env, NULL, 0, before_bytes, &before)) {
        if (given_transform(env, kind, type, overflow, count, operands, expected, returns_before, &given)) {
            int64_t found = check(env, quell_blob_apply(STORE, named.data, named.length, (uint64_t)offset,
                                                        &given.transform, before.data, before.length));
            if (found >= 0 && returns_before)
                numbers = array_of(env, before.data, (size_t)found);
            release_transform(&given);
        }
        release(&before);
    }
    release(&named);
    return numbers;
}

/* The kinds of handles that can be read. */
enum { OF_STORE = quell_blob_Native_STORE, OF_SNAPSHOT = quell_blob_Native_SNAPSHOT };

NATIVE(jint, read)
(JNIEnv *env, jclass class, jint kind, jlong from, jbyteArray name, jlong offset, jbyteArray array,
 jobject direct, jint start, jint length) {
    struct bytes named, into;
    const void *state = (const void *)(intptr_t)from;
    uint64_t at = (uint64_t)offset;
    int64_t count = 0;
    if (!copy_array(env, name, &named))
        return 0;
    if (space_for(env, direct, start, length, &into)) {
        if (kind == OF_STORE)
            count = quell_blob_read(state, named.data, named.length, at, into.data, into.length);
        else if (kind == OF_SNAPSHOT)
            count = quell_blob_snapshot_read(state, named.data, named.length, at, into.data, into.length);
        else
            count = quell_blob_transaction_read(state, named.data, named.length, at, into.data, into.length);
        if (check(env, count) > 0 && direct == NULL)
            (*env)->SetByteArrayRegion(env, array, start, (jsize)count, (const jbyte *)into.data);
        release(&into);
    }
    release(&named);
    return (jint)count; /* at most `length`; the number of an error is not used */
}

NATIVE(jlongArray, stat)(JNIEnv *env, jclass class, jint kind, jlong from, jbyteArray name) {
    struct bytes named;
    const void *state = (const void *)(intptr_t)from;
    quell_blob_attributes found;
    int status;
    if (!copy_array(env, name, &named))
        return NULL;
    if (kind == OF_STORE)
        status = quell_blob_stat(state, named.data, named.length, &found);
    else if (kind == OF_SNAPSHOT)
        status = quell_blob_snapshot_stat(state, named.data, named.length, &found);
    else
        status = quell_blob_transaction_stat(state, named.data, named.length, &found);
    release(&named);
    if (check(env, status) < 0)
        return NULL;
    jlong numbers[] = {(jlong)found.size_bytes, (jlong)found.modified_ns};
    jlongArray array = (*env)->NewLongArray(env, 2);
    if (array != NULL)
        (*env)->SetLongArrayRegion(env, array, 0, 2, numbers);
    return array;
}

static jbyteArray packed_names(JNIEnv *env, quell_blob_names *names) {
    struct growing packed = {NULL, 0, 0};
    quell_blob_name name;
    jbyteArray array = NULL;
    bool has_space = true;
    int more;
    while (has_space && (more = quell_blob_names_next(names, &name)) > 0)
        has_space = packed.length < INT32_MAX && add_u32(&packed, (uint32_t)name.name_bytes) &&
                    add_u64(&packed, name.attributes.size_bytes) && add_u64(&packed, name.attributes.modified_ns) &&
                    add_bytes(&packed, name.name, name.name_bytes);
    if (!has_space)
        throw_out_of_memory(env, "the list of names is too long; list fewer at a time");
    else if (check(env, more) == 0)
        array = array_of(env, packed.data, packed.length);
    free(packed.data);
    return array;
}

NATIVE(jbyteArray, list)
(JNIEnv *env, jclass class, jint kind, jlong from, jbyteArray prefix, jbyteArray after, jlong count_max) {
    struct bytes first, behind;
    const void *state = (const void *)(intptr_t)from;
    quell_blob_names *names = NULL;
    jbyteArray packed = NULL;
    int status;
    if (!copy_array(env, prefix, &first))
        return NULL;
    if (copy_array(env, after, &behind)) {
        if (kind == OF_SNAPSHOT)
            status = quell_blob_snapshot_list(state, first.data, first.length, behind.data, behind.length,
                                              (size_t)count_max, &names);
        else
            status = quell_blob_transaction_list(state, first.data, first.length, behind.data, behind.length,
                                                 (size_t)count_max, &names);
        if (check(env, status) == 0)
            packed = packed_names(env, names);
        quell_blob_names_close(names);
        release(&behind);
    }
    release(&first);
    return packed;
}

NATIVE(jlong, version)(JNIEnv *env, jclass class, jint kind, jlong from) {
    const void *state = (const void *)(intptr_t)from;
    return check(env, kind == OF_SNAPSHOT ? quell_blob_snapshot_version(state) : quell_blob_transaction_version(state));
}

NATIVE(jlong, beginSnapshot)(JNIEnv *env, jclass class, jlong store) {
    quell_blob_snapshot *snapshot = NULL;
    check(env, quell_blob_snapshot_begin(STORE, &snapshot));
    return handle(snapshot);
}

NATIVE(jlong, nextData)(JNIEnv *env, jclass class, jlong snapshot, jbyteArray name, jlong offset) {
    struct bytes named;
    uint64_t position = 0;
    if (!copy_array(env, name, &named))
        return -1;
    int64_t found =
        check(env, quell_blob_snapshot_next_data(SNAPSHOT, named.data, named.length, (uint64_t)offset, &position));
    release(&named);
    return found > 0 ? (jlong)position : -1;
}

NATIVE(void, closeSnapshot)(JNIEnv *env, jclass class, jlong snapshot) {
    check(env, quell_blob_snapshot_close(SNAPSHOT));
}

NATIVE(jlong, begin)(JNIEnv *env, jclass class, jlong store, jboolean is_batch) {
    quell_blob_transaction *transaction = NULL;
    check(env, is_batch ? quell_blob_batch(STORE, &transaction) : quell_blob_begin(STORE, &transaction));
    return handle(transaction);
}

NATIVE(void, addCreate)(JNIEnv *env, jclass class, jlong transaction, jbyteArray name, jboolean may_exist) {
    struct bytes named;
    if (!copy_array(env, name, &named))
        return;
    check(env, quell_blob_transaction_create(TRANSACTION, named.data, named.length, may_exist));
    release(&named);
}

NATIVE(void, addDelete)(JNIEnv *env, jclass class, jlong transaction, jbyteArray name) {
    struct bytes named;
    if (!copy_array(env, name, &named))
        return;
    check(env, quell_blob_transaction_delete(TRANSACTION, named.data, named.length));
    release(&named);
}

NATIVE(void, addRename)(JNIEnv *env, jclass class, jlong transaction, jbyteArray name, jbyteArray to) {
    struct bytes named, target;
    if (!copy_array(env, name, &named))
        return;
    if (copy_array(env, to, &target)) {
        check(env, quell_blob_transaction_rename(TRANSACTION, named.data, named.length, target.data, target.length));
        release(&target);
    }
    release(&named);
}

NATIVE(void, addAttributes)
(JNIEnv *env, jclass class, jlong transaction, jbyteArray name, jint mode, jint uid, jint gid) {
    struct bytes named;
    if (!copy_array(env, name, &named))
        return;
    quell_blob_file_attributes file = {.mode = (uint32_t)mode, .uid = (uint32_t)uid, .gid = (uint32_t)gid};
    check(env, quell_blob_transaction_set_attributes(TRANSACTION, named.data, named.length, &file, NULL));
    release(&named);
}

NATIVE(void, addModified)(JNIEnv *env, jclass class, jlong transaction, jbyteArray name, jlong modified_ns) {
    struct bytes named;
    if (!copy_array(env, name, &named))
        return;
    uint64_t time = (uint64_t)modified_ns;
    check(env, quell_blob_transaction_set_attributes(TRANSACTION, named.data, named.length, NULL, &time));
    release(&named);
}

NATIVE(void, addResize)(JNIEnv *env, jclass class, jlong transaction, jbyteArray name, jlong size) {
    struct bytes named;
    if (!copy_array(env, name, &named))
        return;
    check(env, quell_blob_transaction_resize(TRANSACTION, named.data, named.length, (uint64_t)size));
    release(&named);
}

NATIVE(void, addWrite)
(JNIEnv *env, jclass class, jlong transaction, jbyteArray name, jlong offset, jbyteArray array, jobject direct,
 jint start, jint length) {
    struct bytes named, data;
    if (!copy_array(env, name, &named))
        return;
    if (data_of(env, array, direct, start, length, &data)) {
        check(env, quell_blob_transaction_write(TRANSACTION, named.data, named.length, (uint64_t)offset, data.data,
                                                data.length));
        release(&data);
    }
    release(&named);
}

NATIVE(void, addAppend)
(JNIEnv *env, jclass class, jlong transaction, jbyteArray name, jbyteArray array, jobject direct, jint start,
 jint length) {
    struct bytes named, data;
    if (!copy_array(env, name, &named))
        return;
    if (data_of(env, array, direct, start, length, &data)) {
        check(env, quell_blob_transaction_append(TRANSACTION, named.data, named.length, data.data, data.length));
        release(&data);
    }
    release(&named);
}

NATIVE(void, addApply)
(JNIEnv *env, jclass class, jlong transaction, jbyteArray name, jlong offset, jint kind, jint type,
 jint overflow, jint count, jbyteArray operands, jbyteArray expected, jboolean returns_before) {
    struct bytes named;
    struct given given;
    if (!copy_array(env, name, &named))
        return;
    if (given_transform(env, kind, type, overflow, count, operands, expected, returns_before, &given)) {
        check(env, quell_blob_transaction_apply(TRANSACTION, named.data, named.length, (uint64_t)offset,
                                                &given.transform));
        release_transform(&given);
    }
    release(&named);
}

NATIVE(void, closeTransaction)(JNIEnv *env, jclass class, jlong transaction) {
    check(env, quell_blob_transaction_close(TRANSACTION));
}
