/* Durable commits of 100 bytes in a database on a local disk, to compare them with durable
 * commits of a store of blobs.
 *
 *   blob_local sqlite|lmdb DIRECTORY THREADS SECONDS
 *
 * Each thread writes rows of its own, one in each transaction: SQLite with its write-ahead log and
 * synchronous=FULL and a connection for each thread, LMDB with its defaults, which sync each
 * commit. Prints the commits per second. */
#define _GNU_SOURCE
#include <lmdb.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { VALUE_BYTES = 100, KEYS = 1000, THREADS_MAX = 1024 };

static char path[4096];
static bool is_sqlite;
static MDB_env *environment;
static MDB_dbi table;
static double end_s;

static void fail(const char *call, const char *reason) {
    fprintf(stderr, "blob_local: %s: %s\n", call, reason);
    exit(1);
}

static void must(int result, const char *call) {
    if (result)
        fail(call, mdb_strerror(result));
}

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static sqlite3 *open_sqlite(void) {
    sqlite3 *database;
    if (sqlite3_open(path, &database))
        fail("open", sqlite3_errmsg(database));
    sqlite3_busy_timeout(database, 60000);
    const char *statements = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
                             "CREATE TABLE IF NOT EXISTS data (key INTEGER PRIMARY KEY, value BLOB);";
    if (sqlite3_exec(database, statements, NULL, NULL, NULL))
        fail("create", sqlite3_errmsg(database));
    return database;
}

static uint64_t put_by_sqlite(uint64_t thread, const char *value) {
    sqlite3 *database = open_sqlite();
    sqlite3_stmt *statement;
    if (sqlite3_prepare_v2(database, "REPLACE INTO data VALUES (?, ?)", -1, &statement, NULL))
        fail("prepare", sqlite3_errmsg(database));
    uint64_t count = 0;
    for (; now_s() < end_s; count++) {
        sqlite3_bind_int64(statement, 1, (sqlite3_int64)(thread * KEYS + count % KEYS));
        sqlite3_bind_blob(statement, 2, value, VALUE_BYTES, SQLITE_STATIC);
        if (sqlite3_step(statement) != SQLITE_DONE)
            fail("replace", sqlite3_errmsg(database));
        sqlite3_reset(statement);
    }
    sqlite3_finalize(statement);
    sqlite3_close(database);
    return count;
}

static uint64_t put_by_lmdb(uint64_t thread, char *bytes) {
    uint64_t count = 0;
    for (; now_s() < end_s; count++) {
        MDB_txn *transaction;
        uint64_t number = thread * KEYS + count % KEYS;
        MDB_val key = {sizeof number, &number}, value = {VALUE_BYTES, bytes};
        must(mdb_txn_begin(environment, NULL, 0, &transaction), "begin");
        must(mdb_put(transaction, table, &key, &value, 0), "put");
        must(mdb_txn_commit(transaction), "commit");
    }
    return count;
}

static void *run_thread(void *argument) {
    char value[VALUE_BYTES];
    memset(value, 7, sizeof value);
    uint64_t thread = (uint64_t)(uintptr_t)argument;
    uint64_t count = is_sqlite ? put_by_sqlite(thread, value) : put_by_lmdb(thread, value);
    return (void *)(uintptr_t)count;
}

int main(int argc, char **argv) {
    static pthread_t threads[THREADS_MAX];
    int count = argc == 5 ? atoi(argv[3]) : 0, seconds = argc == 5 ? atoi(argv[4]) : 0;
    if (count < 1 || count > THREADS_MAX || seconds < 1)
        fail("usage", "blob_local sqlite|lmdb DIRECTORY THREADS SECONDS");
    is_sqlite = !strcmp(argv[1], "sqlite");
    snprintf(path, sizeof path, "%s/%s", argv[2], argv[1]);
    if (is_sqlite) {
        sqlite3_close(open_sqlite());
    } else {
        MDB_txn *transaction;
        must(mdb_env_create(&environment), "create");
        must(mdb_env_set_mapsize(environment, 1 << 30), "map size");
        must(mdb_env_open(environment, path, MDB_NOSUBDIR, 0600), "open");
        must(mdb_txn_begin(environment, NULL, 0, &transaction), "begin");
        must(mdb_dbi_open(transaction, NULL, 0, &table), "table");
        must(mdb_txn_commit(transaction), "commit");
    }
    double begin_s = now_s();
    end_s = begin_s + seconds;
    uint64_t all = 0;
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, run_thread, (void *)(uintptr_t)i))
            fail("thread", "cannot be started");
    for (int i = 0; i < count; i++) {
        void *own;
        pthread_join(threads[i], &own);
        all += (uint64_t)(uintptr_t)own;
    }
    printf("%.1f\n", (double)all / (now_s() - begin_s));
    return 0;
}
