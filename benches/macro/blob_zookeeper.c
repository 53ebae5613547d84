/* The work of `quell blob bench` on plain RADOS objects, with locks of ZooKeeper: the baseline of
 * section 3.3 of the paper of Tyr.
 *
 *   blob_zookeeper POOL NAMESPACE SERVER WORK CLIENTS SECONDS SIZE [BESIDE CLIENTS RATE]
 *
 * SERVER is HOST:PORT of a ZooKeeper. WORK is events, read, write, replace, log, or fill, which
 * only writes the data that read needs. write overwrites a range of an object of the client.
 * replace writes a new object and removes the one that the client wrote before; log does the same,
 * and then appends a record to a log that all clients share. RATE is the largest number of
 * operations of a client in a second. Prints a line of JSON for each group of clients. $CEPH_CONF
 * names the cluster.
 *
 * Where there is a choice, the baseline gets the faster one: one lock of a site covers its events,
 * its index and its aggregate; requests that do not depend on each other are in flight together;
 * eight clients share a connection to ZooKeeper. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <rados/librados.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zookeeper/zookeeper.h>

enum { SITES = 64, EVENT_BYTES = 200, ENTRY_BYTES = 16, READ_BYTES = 1 << 20, WRITE_BYTES = 64 << 20, CLIENTS_MAX = 1024, RECORD_BYTES = 256, PATH_BYTES = 128 };

static rados_ioctx_t objects;
static zhandle_t *connections[CLIENTS_MAX / 8 + 1];
static uint64_t begin_us, end_us, interval_us;
static size_t size;

struct client {
    pthread_t thread;
    int number;
    const char *work;
    uint64_t random;
    uint32_t *latencies_us;
    size_t count, capacity;
};

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "blob_zookeeper: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    exit(1);
}

static void must(int result, const char *call) {
    if (result < 0)
        fail("%s: %s", call, strerror(-result));
}

static uint64_t now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
}

/* --- locks -------------------------------------------------------------------------------------- */

struct lock {
    char own[PATH_BYTES];
};

static void on_change(zhandle_t *handle, int type, int state, const char *path, void *context) {
    (void)handle, (void)state, (void)path;
    if (type != ZOO_SESSION_EVENT)
        sem_post(context);
}

static void ensure(zhandle_t *zookeeper, const char *path) {
    int result = zoo_create(zookeeper, path, "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);
    if (result != ZOK && result != ZNODEEXISTS)
        fail("create %s: %s", path, zerror(result));
}

/* The lock of ZooKeeper's documentation: the client with the lowest number has the lock, and each
 * other one waits for the client before it. */
static void acquire(zhandle_t *zookeeper, const char *name, struct lock *lock) {
    char directory[PATH_BYTES / 2], path[PATH_BYTES];
    snprintf(directory, sizeof directory, "/locks/%s", name);
    snprintf(path, sizeof path, "%s/n-", directory);
    int result = zoo_create(zookeeper, path, "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL | ZOO_SEQUENCE, lock->own,
                            sizeof lock->own);
    if (result != ZOK)
        fail("create %s: %s", path, zerror(result));
    const char *own = strrchr(lock->own, '/') + 1;
    for (;;) {
        struct String_vector children;
        const char *before = NULL;
        result = zoo_get_children(zookeeper, directory, 0, &children);
        if (result != ZOK)
            fail("list %s: %s", directory, zerror(result));
        for (int i = 0; i < children.count; i++)
            if (strcmp(children.data[i], own) < 0 && (!before || strcmp(children.data[i], before) > 0))
                before = children.data[i];
        if (!before) {
            deallocate_String_vector(&children);
            return;
        }
        sem_t changed;
        char value[1];
        int length = sizeof value;
        snprintf(path, sizeof path, "%s/%s", directory, before);
        deallocate_String_vector(&children);
        sem_init(&changed, 0, 0);
        /* Unlike zoo_wexists, this leaves no watch if the node is gone. */
        result = zoo_wget(zookeeper, path, on_change, &changed, value, &length, NULL);
        if (result == ZOK)
            while (sem_wait(&changed) && errno == EINTR)
                ;
        else if (result != ZNONODE)
            fail("watch %s: %s", path, zerror(result));
        sem_destroy(&changed);
    }
}

static void release(zhandle_t *zookeeper, struct lock *lock) {
    int result = zoo_delete(zookeeper, lock->own, -1);
    if (result != ZOK)
        fail("delete %s: %s", lock->own, zerror(result));
}

/* --- work --------------------------------------------------------------------------------------- */

static uint64_t random_number(struct client *client) {
    client->random ^= client->random << 13;
    client->random ^= client->random >> 7;
    client->random ^= client->random << 17;
    return client->random;
}

/* Returns a site by a power law, as `quell blob bench` does. */
static int random_site(struct client *client) {
    double uniform = (double)(random_number(client) >> 11) / (double)(1ull << 53);
    int site = (int)pow(SITES + 1, uniform);
    return (site > SITES ? SITES : site) - 1;
}

static rados_completion_t started(void) {
    rados_completion_t completion;
    must(rados_aio_create_completion2(NULL, NULL, &completion), "rados_aio_create_completion2");
    return completion;
}

static void finish(rados_completion_t completion, const char *call) {
    rados_aio_wait_for_complete(completion);
    must(rados_aio_get_return_value(completion), call);
    rados_aio_release(completion);
}

static void add_event(struct client *client) {
    char event[EVENT_BYTES], entry[ENTRY_BYTES] = {0}, name[32], sum[32], index[32];
    int site = random_site(client);
    uint64_t number = random_number(client), length = EVENT_BYTES;
    memset(event, 'e', sizeof event);
    memcpy(event, &number, 8);
    memcpy(entry, &number, 8);
    memcpy(entry + 8, &length, 8);
    snprintf(name, sizeof name, "events.%d", site);
    snprintf(index, sizeof index, "index.%d", site);
    snprintf(sum, sizeof sum, "sum.%d", site);
    zhandle_t *zookeeper = connections[client->number / 8];
    struct lock of_site, of_total;
    acquire(zookeeper, name, &of_site);
    acquire(zookeeper, "total", &of_total);
    rados_completion_t first[4] = {started(), started(), started(), started()}, second[2] = {started(), started()};
    int64_t sums[2] = {0};
    must(rados_aio_append(objects, name, first[0], event, sizeof event), "append");
    must(rados_aio_append(objects, index, first[1], entry, sizeof entry), "append");
    must(rados_aio_read(objects, sum, first[2], (char *)&sums[0], 8, 0), "read");
    must(rados_aio_read(objects, "sum.all", first[3], (char *)&sums[1], 8, 0), "read");
    finish(first[2], "read");
    finish(first[3], "read");
    sums[0]++, sums[1]++;
    must(rados_aio_write(objects, sum, second[0], (char *)&sums[0], 8, 0), "write");
    must(rados_aio_write(objects, "sum.all", second[1], (char *)&sums[1], 8, 0), "write");
    finish(second[0], "write");
    finish(second[1], "write");
    finish(first[0], "append");
    finish(first[1], "append");
    release(zookeeper, &of_total);
    release(zookeeper, &of_site);
}

static void read_range(struct client *client, char *into) {
    char name[32];
    uint64_t offset = 0;
    /* The client has written its object before. */
    snprintf(name, sizeof name, "client.%d", client->number);
    if (size <= READ_BYTES) {
        snprintf(name, sizeof name, "events.%d", random_site(client));
        offset = random_number(client) % (READ_BYTES - size + 1);
    }
    int length = rados_read(objects, name, into, size, offset);
    must(length, "read");
    if ((size_t)length != size)
        fail("%s: read %d of %zu bytes", name, length, size);
}

static void write_range(struct client *client, const char *from) {
    char name[32];
    snprintf(name, sizeof name, "client.%d", client->number);
    uint64_t offset = client->count % 1024 * ((size + 511) / 512 * 512);
    /* RADOS refuses objects larger than 128 MiB by default. */
    must(rados_write(objects, name, from, size, offset % WRITE_BYTES), "write");
}

/* Writes a new object and starts the removal of the previous one, as a store does that keeps the
 * old bytes until the new ones are complete. Returns the removal, which is in progress. */
static rados_completion_t replace_object(struct client *client, const char *from, rados_completion_t removal) {
    char name[32];
    snprintf(name, sizeof name, "new.%d.%zu", client->number, client->count);
    must(rados_write_full(objects, name, from, size), "write");
    if (!client->count)
        return NULL;
    if (removal)
        finish(removal, "remove");
    removal = started();
    snprintf(name, sizeof name, "new.%d.%zu", client->number, client->count - 1);
    must(rados_aio_remove(objects, name, removal), "remove");
    return removal;
}

/* Appends a record to the log. Appends that arrive while one is in progress wait; the next append
 * writes the records of all of them. */
static void append_record(void) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
    static uint64_t last, appended;
    static bool is_appending;
    static const char records[CLIENTS_MAX * RECORD_BYTES];
    pthread_mutex_lock(&mutex);
    for (uint64_t own = ++last; appended < own;) {
        if (is_appending) {
            pthread_cond_wait(&changed, &mutex);
            continue;
        }
        uint64_t first = appended, until = last;
        is_appending = true;
        pthread_mutex_unlock(&mutex);
        must(rados_append(objects, "log", records, (size_t)(until - first) * RECORD_BYTES), "append");
        pthread_mutex_lock(&mutex);
        is_appending = false;
        appended = until;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&mutex);
}

static void *run_client(void *argument) {
    struct client *client = argument;
    char *buffer = malloc(size);
    memset(buffer, 7, size);
    rados_completion_t removal = NULL;
    for (uint64_t next = 0, begun;; next = begun + interval_us) {
        begun = now_us();
        if (begun < next) {
            usleep((useconds_t)(next - begun));
            begun = now_us();
        }
        if (begun >= end_us)
            break;
        if (!strcmp(client->work, "events"))
            add_event(client);
        else if (!strcmp(client->work, "read"))
            read_range(client, buffer);
        else if (!strcmp(client->work, "replace") || !strcmp(client->work, "log")) {
            removal = replace_object(client, buffer, removal);
            if (!strcmp(client->work, "log"))
                append_record();
        } else
            write_range(client, buffer);
        if (client->count == client->capacity) {
            client->capacity = client->capacity ? 2 * client->capacity : 1024;
            client->latencies_us = realloc(client->latencies_us, client->capacity * sizeof *client->latencies_us);
        }
        client->latencies_us[client->count++] = (uint32_t)(now_us() - begun);
    }
    if (removal)
        finish(removal, "remove");
    free(buffer);
    return NULL;
}

/* --- results ------------------------------------------------------------------------------------ */

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void report(const struct client *clients, int count, double seconds) {
    size_t all = 0, next = 0;
    for (int i = 0; i < count; i++)
        all += clients[i].count;
    if (!all)
        fail("%s: no operation was done in time", clients->work);
    uint32_t *latencies_us = malloc(all * sizeof *latencies_us);
    for (int i = 0; i < count; i++) {
        memcpy(latencies_us + next, clients[i].latencies_us, clients[i].count * sizeof *latencies_us);
        next += clients[i].count;
    }
    qsort(latencies_us, all, sizeof *latencies_us, ascending);
    printf("{\"work\":\"%s\",\"clients\":%d,\"operations\":%zu,\"operations_per_second\":%.3f,"
           "\"median_us\":%u,\"percentile_99_us\":%u}\n",
           clients->work, count, all, (double)all / seconds, latencies_us[(all - 1) / 2],
           latencies_us[(all - 1) * 99 / 100]);
    free(latencies_us);
}

static void fill(void) {
    char *data = malloc(READ_BYTES), name[32];
    int64_t zero = 0;
    for (int site = 0; site < SITES; site++) {
        for (int at = 0; at < READ_BYTES; at++)
            data[at] = (char)(at / EVENT_BYTES + site);
        snprintf(name, sizeof name, "events.%d", site);
        must(rados_write_full(objects, name, data, READ_BYTES), "write");
        snprintf(name, sizeof name, "sum.%d", site);
        must(rados_write_full(objects, name, (char *)&zero, 8), "write");
    }
    must(rados_write_full(objects, "sum.all", (char *)&zero, 8), "write");
    free(data);
}

static void connect_zookeeper(const char *server, int clients) {
    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    for (int i = 0; i < (clients + 7) / 8; i++) {
        connections[i] = zookeeper_init(server, NULL, 30000, NULL, NULL, 0);
        for (int wait = 0; connections[i] && zoo_state(connections[i]) != ZOO_CONNECTED_STATE; wait++) {
            if (wait == 3000)
                fail("no connection to %s", server);
            usleep(10000);
        }
        if (!connections[i])
            fail("no connection to %s", server);
    }
    char path[PATH_BYTES];
    ensure(connections[0], "/locks");
    ensure(connections[0], "/locks/total");
    for (int site = 0; site < SITES; site++) {
        snprintf(path, sizeof path, "/locks/events.%d", site);
        ensure(connections[0], path);
    }
}

int main(int argc, char **argv) {
    if (argc != 8 && argc != 11)
        fail("usage: blob_zookeeper POOL NAMESPACE SERVER WORK CLIENTS SECONDS SIZE [BESIDE CLIENTS RATE]");
    int count = atoi(argv[5]), beside = argc == 11 ? atoi(argv[9]) : 0;
    int seconds = atoi(argv[6]);
    size = (size_t)atol(argv[7]);
    interval_us = argc == 11 ? 1000000 / (uint64_t)(atoi(argv[10]) > 0 ? atoi(argv[10]) : 1) : 0;
    if (count < 1 || beside < 0 || count + beside > CLIENTS_MAX || seconds < 1 || size < 1 || size > WRITE_BYTES)
        fail("a number is out of range");
    rados_t cluster;
    must(rados_create(&cluster, NULL), "rados_create");
    must(rados_conf_read_file(cluster, NULL), "rados_conf_read_file");
    must(rados_connect(cluster), "rados_connect");
    must(rados_ioctx_create(cluster, argv[1], &objects), "rados_ioctx_create");
    rados_ioctx_set_namespace(objects, argv[2]);
    if (!strcmp(argv[4], "fill")) {
        fill();
    } else {
        if (!strcmp(argv[4], "events") || beside)
            connect_zookeeper(argv[3], count + beside);
        struct client *clients = calloc((size_t)(count + beside), sizeof *clients);
        begin_us = now_us();
        end_us = begin_us + (uint64_t)seconds * 1000000;
        for (int i = 0; i < count + beside; i++) {
            clients[i].number = i;
            clients[i].work = i < count ? argv[4] : argv[8];
            clients[i].random = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
            if (pthread_create(&clients[i].thread, NULL, run_client, &clients[i]))
                fail("no thread");
        }
        for (int i = 0; i < count + beside; i++)
            pthread_join(clients[i].thread, NULL);
        double elapsed = (double)(now_us() - begin_us) / 1e6;
        report(clients, count, elapsed);
        if (beside)
            report(clients + count, beside, elapsed);
    }
    rados_ioctx_destroy(objects);
    rados_shutdown(cluster);
    return 0;
}
