"""Stores of blobs, measured for bench.py: a store in RADOS beside RADOS with locks of ZooKeeper, and
a store in a directory beside databases on the same disk.

`quell blob bench` does the work; blob_zookeeper.c does the same work on plain RADOS objects, and
blob_local.c commits to SQLite and LMDB. The test bed runs Ceph, with three OSDs and two copies. All
servers and clients share the machine.
"""
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from base64 import b64encode
from contextlib import contextmanager
from pathlib import Path

from measure import Failed, Testbed, median, run, text_of

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
POOL = "blob"
NAMESPACE = "bench"
# Clients, and the smallest ratio to the baseline.
CLIENTS = ((1, None), (8, 2), (32, None), (128, 5))
READERS = 32
READ_BYTES = 800
# The largest number of operations of each client in a second, so that two processors suffice for
# all readers.
RATE = 100
# The numbers of clients that read and of clients that write, 40 in total.
SHARES = ((38, 2), (30, 10), (20, 20), (10, 30), (2, 38))
BULK = (1 << 20, 64 << 20)
# The baselines of large writes that do not overwrite.
NEW_OBJECTS = ("each write is a new object, and the one before it is removed", "the same, then a record is appended to one log")
COUNTER_CLIENTS = 16
RECOVERIES = 5
RECOVERY_S = 5
# The largest ratio of the latency of a commit to the latency of a commit of the key-value store
# below, with one thread.
LATENCY = 1.3
KILLS = 200
OVERWRITES = 1_000_000
# The largest ratios of the space on the disk to the live data, and of the memory at the end to the
# memory after half of the writes.
DISK = 3
MEMORY = 1.2


def of_commits(text):
    """Return the median latencies in microseconds that benches/commits.rs has printed, by name and
    threads."""
    found = {}
    for name, threads, latency in re.findall(r"^(.*?) +(\d+) threads +[\d.]+/s +([\d.]+) us$", text, re.MULTILINE):
        found.setdefault((name, int(threads)), []).append(float(latency))
    return {key: median(latencies) for key, latencies in found.items()}


def of_overwrites(text):
    """Return the memory in KiB and the largest space on the disk, in parts of the live data, that
    benches/overwrites.rs has printed after each tenth."""
    lines = re.findall(r"(\d+) KiB of memory, .* at most ([\d.]+)$", text, re.MULTILINE)
    return [int(memory) for memory, _ in lines], max(float(disk) for _, disk in lines)


def seconds(text):
    """Return a duration as Rust prints it, in seconds."""
    value, unit = re.fullmatch(r"([\d.]+)(s|ms|µs)", text).groups()
    return float(value) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit]


def lines_of(command, **options):
    """Return the JSON objects that a command prints, a line each."""
    return [json.loads(line) for line in text_of(command, **options).splitlines()]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def process(command, is_ready, **options):
    """Run a server while the body runs, which begins when `is_ready` returns true."""
    server = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, start_new_session=True, **options)
    try:
        for _ in range(600):
            if is_ready():
                break
            if server.poll() is not None:
                raise Failed(f"exit code {server.returncode} from: {command[0]}")
            time.sleep(0.05)
        else:
            raise Failed(f"{command[0]} did not start within 30 s")
        yield server
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def answers(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Blob:
    def __init__(self, bench, local):
        self.quell, self.add, self.scratch = bench.quell, bench.add, bench.scratch
        self.local = Path(local, "blob")
        self.local.mkdir()
        self.seconds = 2 if bench.options.quick else 5
        self.repeats = 1 if bench.options.quick else 3

    def rows(self):
        self.compile("blob_local", "-llmdb", "-lsqlite3", "-lpthread")
        self.embedded()
        self.below()
        self.overwrites()
        self.kills()
        self.counters()
        self.rados((self.transactions, self.reads, self.isolation, self.bulk), self.recovery)

    def transfers(self):
        """Measure only the large reads and writes, in RADOS."""
        self.rados((self.bulk,))

    def compile(self, program, *libraries):
        run(["cc", "-O2", "-Wall", "-DTHREADED", "-o", self.scratch / program, HERE / f"{program}.c", *libraries])

    def rados(self, measurements, last=None):
        self.compile("blob_zookeeper", "-lrados", "-lzookeeper_mt", "-lpthread", "-lm")
        with Testbed(self.scratch / "cephfs", 1, "cephfs").up() as ceph:
            self.in_rados(ceph, measurements, last)

    def bench(self, store, *words):
        return lines_of([self.quell, "blob", "bench", store, "--json", "--quiet", "--seconds", self.seconds, *words])

    # --- in a directory ----------------------------------------------------------------------------
    def embedded(self):
        rates = {}
        for threads in (1, 16):
            for name in ("sqlite", "lmdb"):
                command = [self.scratch / "blob_local", name, self.local, threads, self.seconds]
                rates[name, threads] = median(float(text_of(command)) for _ in range(self.repeats))
            words = ("--work", "write", "--size", 100, "--clients", threads)
            rates["quell", threads] = median(
                self.bench(self.local / "store", *words)[0]["operations_per_second"] for _ in range(self.repeats))
            best = max(rates[name, threads] for name in ("sqlite", "lmdb"))
            own = rates["quell", threads]
            bar = ("at least the best of the others", own >= best) if threads == 16 else (None, None)
            self.add(f"blob in a directory, {threads} threads: durable commits of 100 bytes", "ops/s", best, own, *bar,
                     note=f"direct: the faster of SQLite ({rates['sqlite', threads]:,.0f}/s) and LMDB ({rates['lmdb', threads]:,.0f}/s)")

    def cargo(self, *words, **variables):
        """Return the output of a benchmark or test of a crate, which uses the measured disk."""
        return text_of(["cargo", *words], cwd=TOP, env={**os.environ, "TMPDIR": str(self.local), **variables})

    def below(self):
        found = of_commits(self.cargo("bench", "--quiet", "-p", "quell-blob", "--bench", "commits"))
        for threads in (1, 16):
            store, own = (found[name, threads] for name in ("key-value store, 100 bytes", "blob, write of 100 bytes"))
            bar = (f"at most {LATENCY} times", own <= LATENCY * store) if threads == 1 else (None, None)
            self.add(f"blob in a directory, {threads} threads: latency of a durable commit of 100 bytes", "us", store, own, *bar,
                     note="direct: the key-value store of Quell, with fdatasync")

    def overwrites(self):
        writes = OVERWRITES if self.repeats > 1 else OVERWRITES // 20
        memory, disk = of_overwrites(self.cargo("bench", "--quiet", "-p", "quell-blob", "--bench", "overwrites", "--", writes))
        work = f"blob in a directory: {writes:,} overwrites of one range, a reader each second"
        self.add(f"{work}: disk to live data", "times", None, disk, f"at most {DISK} times", disk <= DISK)
        # The cache of the key-value store is filled during the first half. The note has all
        # samples, so it also shows the growth until then.
        half, last = memory[len(memory) // 2 - 1], memory[-1]
        samples = ", ".join(f"{kib / 1024:.0f}" for kib in memory)
        self.add(f"{work}: memory, after a half and at the end", "MiB", half / 1024, last / 1024, f"at most {MEMORY} times",
                 last <= MEMORY * half, note=f"MiB after each tenth: {samples}; the cache is filled first")

    def kills(self):
        kills = KILLS if self.repeats > 1 else 5
        words = ("test", "--quiet", "--release", "-p", "quell-blob-server", "--test", "kills", "--", "--nocapture")
        # The test fails if a commit is lost.
        printed = re.search(r"longest time to a server \S+, to its commits (\S+)", self.cargo(*words, QUELL_KILLS=str(kills)))
        slowest = seconds(printed[1])
        self.add(f"blob server in a directory, {kills} kills under load: until 4 more commits, slowest", "s", None, slowest,
                 f"at most {RECOVERY_S} s", slowest <= RECOVERY_S, note="no acknowledged commit is lost, none is performed twice")

    # --- one number --------------------------------------------------------------------------------
    def counters(self):
        etcd = self.etcd()
        for policy in ("always", "everysec"):
            self.add(f"Redis, appendfsync {policy}, {COUNTER_CLIENTS} clients: INCR of one number", "ops/s", self.redis(policy), None,
                     note="for comparison")
        store = self.local / "store"
        with self.serve([self.quell, "blob", "serve", store, "--json"], store):
            words = ("--work", "add", "--clients", COUNTER_CLIENTS)
            own = median(self.bench(store, *words)[0]["operations_per_second"] for _ in range(self.repeats))
        self.add(f"blob server, {COUNTER_CLIENTS} clients: additions to one number", "ops/s", etcd, own,
                 "at least 10 times etcd", own >= 10 * etcd, note="direct: etcd, read and compare-and-put; one member")

    def redis(self, policy):
        # In Debian, redis-check-rdb is the same program as redis-server, which acts by its argv[0].
        directory, port = self.local / f"redis-{policy}", free_port()
        directory.mkdir()
        command = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", directory, "--save", "", "--appendonly", "yes",
                   "--appendfsync", policy]
        with process(command, lambda: answers(port), executable=shutil.which("redis-check-rdb"), stdout=subprocess.DEVNULL):
            command = ["redis-benchmark", "-p", port, "-c", COUNTER_CLIENTS, "-n", 20000 * self.seconds, "-t", "incr", "--csv"]
            last = text_of(command).splitlines()[-1]
        return float(last.split(",")[1].strip('"'))

    def etcd(self):
        # The package starts a service, so its program is taken out of the package.
        directory = self.local / "etcd"
        directory.mkdir()
        run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", "etcd-server"], cwd=directory)
        run(["dpkg-deb", "-x", *directory.glob("*.deb"), directory])
        port, peer = free_port(), free_port()
        at, peer_at = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
        command = [directory / "usr/bin/etcd", "--data-dir", directory / "data", "--listen-client-urls", at, "--advertise-client-urls", at,
                   "--listen-peer-urls", peer_at, "--initial-advertise-peer-urls", peer_at, "--initial-cluster", f"default={peer_at}",
                   "--logger", "zap", "--log-level", "error"]
        with process(command, lambda: answers(port), stderr=subprocess.DEVNULL):
            time.sleep(2)  # until the only member is the leader
            done, end = [0] * COUNTER_CLIENTS, time.monotonic() + self.seconds

            def work(client):
                connection = http.client.HTTPConnection("127.0.0.1", port)

                def ask(call, body):
                    connection.request("POST", f"/v3/kv/{call}", json.dumps(body))
                    return json.loads(connection.getresponse().read())

                key = b64encode(b"number").decode()
                while time.monotonic() < end:
                    entry = ask("range", {"key": key}).get("kvs", [{}])[0]
                    value = b64encode(str(done[client]).encode()).decode()
                    compare = {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": entry.get("mod_revision", "0")}
                    put = {"request_put": {"key": key, "value": value}}
                    done[client] += bool(ask("txn", {"compare": [compare], "success": [put]}).get("succeeded"))

            threads = [threading.Thread(target=work, args=(client,)) for client in range(COUNTER_CLIENTS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return sum(done) / self.seconds

    # --- in RADOS ----------------------------------------------------------------------------------
    @contextmanager
    def serve(self, command, store):
        with process(command, (store / "socket").exists, stdout=subprocess.DEVNULL) as server:
            yield server

    def in_rados(self, ceph, measurements, last):
        """Perform measurements beside the baseline, and `last` with the command of the server."""
        network = ["nsenter", f"--net=/run/netns/qlc{(ceph.directory / 'number').read_text().strip()}"]
        os.environ["CEPH_CONF"] = str(ceph.directory / "ceph.conf")
        run([*network, "ceph", "osd", "pool", "create", POOL, "32"], stderr=subprocess.DEVNULL)
        data = self.local / "zookeeper"
        data.mkdir()
        (data / "zoo.cfg").write_text(f"dataDir={data}\nclientPort=2181\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
                                      "maxClientCnxns=0\ntickTime=2000\n")
        command = [*network, "java", "-Dzookeeper.jmx.log4j.disable=true", "-cp", f"{data}:/usr/share/java/zookeeper.jar",
                   "org.apache.zookeeper.server.quorum.QuorumPeerMain", data / "zoo.cfg"]
        listens = [*network, "ss", "-Hltn", "sport = :2181"]
        with process(command, lambda: text_of(listens), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            baseline = [*network, self.scratch / "blob_zookeeper", POOL, "baseline", "127.0.0.1:2181"]
            run([*baseline, "fill", 1, 1, 1])
            store = self.local / "rados"
            server = [*network, self.quell, "blob", "serve", store, "--rados", f"rados://{POOL}/{NAMESPACE}", "--json"]
            with self.serve(server, store):
                for measure in measurements:
                    measure(baseline, store)
            if last:
                last(server, store)

    def in_turn(self, baseline, store, work, clients, size=READ_BYTES, others=()):
        """Return the median rates of the baseline, of other works of the baseline, and of the store,
        measured in turn."""
        found = [[] for _ in range(2 + len(others))]
        for _ in range(self.repeats):
            for lines, of_baseline in zip(found, (work, *others)):
                lines += lines_of([*baseline, of_baseline, clients, self.seconds, size])
            found[-1] += self.bench(store, "--work", work, "--clients", clients, "--size", size)
        return [median(line["operations_per_second"] for line in lines) for lines in found]

    def transactions(self, baseline, store):
        rates = {}
        for clients, factor in CLIENTS:
            direct, covered = self.in_turn(baseline, store, "events", clients)
            rates[clients] = covered
            bar = (f"at least {factor} times", covered >= factor * direct) if factor else (None, None)
            self.add(f"blob in RADOS, {clients} clients: transactions of events", "ops/s", direct, covered, *bar,
                     note="direct: RADOS with locks of ZooKeeper")
        self.add("blob in RADOS: 128 clients against 32", "ops/s", rates[32], rates[128], "at least 0.9", rates[128] >= 0.9 * rates[32])
        words = ("--clients", 32, "--work")
        update, transform = (median(self.bench(store, *words, work)[0]["operations_per_second"] for _ in range(self.repeats))
                             for work in ("events-by-update", "events"))
        self.add("blob in RADOS, 32 clients: transforms against read-update-write", "ops/s", update, transform, "at least 1.5 times",
                 transform >= 1.5 * update, note="direct: aggregates that are read and written")

    def reads(self, baseline, store):
        direct, covered = self.in_turn(baseline, store, "read", READERS)
        self.add(f"blob in RADOS, {READERS} clients: reads of {READ_BYTES} bytes by a power law", "ops/s", direct, covered, "at least 0.95",
                 covered >= 0.95 * direct, note="direct: RADOS alone")

    def isolation(self, baseline, store):
        found = {"direct": [], "covered": []}
        for readers, writers in SHARES:
            beside = ("events", writers)
            command = [*baseline, "read", readers, self.seconds, READ_BYTES, *beside, RATE]
            words = ("--work", "read", "--clients", readers, "--beside", beside[0], "--beside-clients", beside[1], "--rate", RATE)
            for name, measure in (("direct", lambda: lines_of(command)), ("covered", lambda: self.bench(store, *words))):
                found[name].append(median(measure()[0]["operations_per_second"] for _ in range(self.repeats)) / readers)
        for (readers, writers), direct, covered in zip(SHARES, found["direct"], found["covered"]):
            self.add(f"blob in RADOS, {readers} readers beside {writers} writers: reads of a reader", "ops/s", direct, covered,
                     note=f"at most {RATE}/s of each client; direct: RADOS, its writers with locks of ZooKeeper")
        spread = [100 * (max(rates) - min(rates)) / max(rates) for rates in (found["direct"], found["covered"])]
        self.add("blob in RADOS: variation of the reads of a reader", "%", *spread, "at most 10 %", spread[1] <= 10)

    def bulk(self, baseline, store):
        for size in BULK:
            for work, others in (("write", ("replace", "log")), ("read", ())):
                direct, *of_others, covered = (rate * size / 2**20 for rate in self.in_turn(baseline, store, work, 8, size, others))
                name = f"blob in RADOS, 8 clients, {size >> 20} MiB: {work}"
                self.add(name, "MiB/s", direct, covered, "at least 0.9", covered >= 0.9 * direct, note="direct: RADOS alone")
                # The least work of the writes of a store: the old bytes stay until the commit.
                for beside, note, rate in zip(("new objects", "new objects and a log"), NEW_OBJECTS, of_others):
                    self.add(f"{name}, beside {beside}", "MiB/s", rate, covered, note=f"direct: RADOS alone, {note}")

    def recovery(self, server, store):
        """Kill servers under load, and measure the time from the start of the next one to its first
        commit."""
        times = []
        for _ in range(RECOVERIES if self.repeats > 1 else 1):
            with self.serve(server, store) as running:
                load = subprocess.Popen([self.quell, "blob", "bench", store, "--quiet", "--work", "events", "--clients", "8", "--seconds", "60"],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(3)
                running.kill()
                running.wait()
                (store / "socket").unlink()
                begun = time.monotonic()
                with self.serve(server, store):
                    run([self.quell, "blob", "add", store, "recovered", 0, 1])
                    times.append(time.monotonic() - begun)
                    load.kill()
                    load.wait()
        self.add("blob in RADOS: from the start of a new server to its first commit, slowest", "s", None, max(times),
                 f"at most {RECOVERY_S} s", max(times) <= RECOVERY_S, note=f"{len(times)} servers killed under load")
