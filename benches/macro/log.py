"""Files that many processes write at the same time, measured for bench.py.

They are written and read directly, and through `quell mount --log`.

Four processes on four nodes write and read records of 47,008 bytes, as one file in two patterns and
as one file per process, on MooseFS, CephFS and a local disk; benches/macro/records.c does this and
measures the time. A rate is the number of all bytes divided by the time from the common start to
the last process's close; data on a parallel file system is synced before. Readers are on other
nodes than the writers and have empty caches. Every byte is compared once, outside of the measured
time.

A virtual machine gets memory from its host when it first touches it. This takes several times as
long as the measured work, and delays the process that touches the memory. Therefore as much memory
as a measurement may use is touched and freed before it.

On the local disk nothing is synced within the measured time. Data that earlier measurements have
left in the page cache counts towards the limit at which the kernel makes writers wait for the disk
(vm.dirty_background_ratio), so before each measurement everything is written back, and the files of
the previous one are removed. The methods take turns, and begin with another one in each round.
"""
import functools
import json
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from measure import Failed, Testbed, median, run, text_of
from preload import environment, library_of

HERE = Path(__file__).resolve().parent
NODES = 4
RECORD = 47_008
RECORDS = 2_000  # of each process: 376 MB in total
# Of each process. The segments of all lie in one chunk of MooseFS (64 MiB), where writers wait for
# each other.
RECORDS_OF_A_CHUNK = 350
LOCAL_RECORDS = 5_700  # of each process: 1 GiB in total
ROUNDS = 7  # on the local disk, where a round takes seconds
DIRTY_MB_MAX = 32  # other programs write, too
WRITE_BACK_S_MAX = 120
MEMORY_TOUCHED = 3 << 30  # an upper bound for caches of clients and servers, and buffers
SMALL = 100  # size of a record in bytes where only the number of records matters
# Rates in MiB/s of a local ext4 and of the original PLFS on it, on an idle machine. The rows here
# are compared with its share of ext4, because a busy machine slows both.
ORIGINAL = {"ext4": {"write": 3_107, "read": 6_635}, "FUSE": {"write": 239, "read": 305}, "library": {"write": 3_060, "read": 5_077}}
PATTERNS = ("private", "strided", "segmented")
BY_PRELOAD = (("write", "FUSE", "log", 3.0), ("write", "library", "library", 0.8), ("read", "library", "library", 0.8))
NO_LIBRARY = "SKIPPED: there is no libquell beside the binary: make build"


class Mount:
    """A `quell mount --log` at a mount point of its own."""

    def __init__(self, quell, store, directory):
        self.quell, self.store = quell, store
        self.point, self.runtime = Path(directory, "mount"), Path(directory, "runtime")

    def start(self):
        self.point.mkdir(parents=True, exist_ok=True)
        self.runtime.mkdir(mode=0o700, exist_ok=True)
        run([self.quell, "mount", "--quiet", "--log", self.store, self.point], env=self.environment())

    def environment(self):
        return {**os.environ, "QUELL_RUNTIME_DIR": str(self.runtime)}

    def stop(self):
        if os.path.ismount(self.point):
            run([self.quell, "umount", self.point], env=self.environment())

    def memory_mb(self):
        """Return the peak memory of the holder so far. Its runtime directory identifies it."""
        mark = f"QUELL_RUNTIME_DIR={self.runtime}\0".encode()
        for process in Path("/proc").iterdir():
            try:
                if process.name.isdigit() and mark in (process / "environ").read_bytes():
                    status = (process / "status").read_text()
                    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6
            except (OSError, IndexError):
                continue  # it has just ended, or belongs to another user
        raise Failed(f"no process serves {self.point}")


class Rates(dict):
    """Measured rates in MB/s by the name of the operation; `median_of` returns the median."""

    def note(self, name, result):
        self.setdefault(name, []).append(result["bytes"] / result["seconds"] / 1e6)

    def median_of(self, name):
        return median(self[name]) if name in self else None

    def spread_of(self, name, factor=1.0):
        """Return the smallest and the largest rate as text."""
        rates = [rate * factor for rate in self.get(name, ())]
        return f"{min(rates):,.0f} to {max(rates):,.0f}" if rates else "none"


class Logs:
    """Measures log mounts and adds their rows to a benchmark."""

    def __init__(self, bench, stand_in=False):
        self.quell, self.testbed, self.add = bench.quell, bench.testbed, bench.add
        self.scratch = Path(tempfile.mkdtemp(prefix="log.", dir=bench.scratch))
        quick = bench.options.quick
        self.repeats, self.records = (1, 100) if quick else (3, RECORDS)
        self.rounds, self.quick = 1 if quick else ROUNDS, quick
        self.few = 40 if quick else RECORDS_OF_A_CHUNK
        self.local_records = 500 if quick else LOCAL_RECORDS
        self.writes = 20_000 if quick else 1_000_000
        self.stand_in = stand_in
        self.program = self.scratch / "records"
        run(["cc", "-O2", "-Wall", "-o", self.program, HERE / "records.c"])
        # nto1 does the same work without the mount, directly and through libquell, and measures its
        # time as records.c does.
        self.library = Path(self.quell).resolve().parent / "libquell.so"
        self.nto1 = self.scratch / "nto1"
        if self.library.exists():
            capi = HERE.parents[1] / "frontends/capi"
            run(["cc", "-O2", "-Wall", "-pthread", "-I", capi / "include", "-o", self.nto1, capi / "examples/nto1.c",
                 "-L", self.library.parent, "-lquell"])
        self.why_not = None
        if not stand_in and "--log" not in text_of([self.quell, "mount", "--help"]):
            self.why_not = "SKIPPED: this quell has no mount --log"

    def row(self, work, unit, direct, log, bar, met, note):
        """Add a row. A stand-in cannot meet a target."""
        if self.stand_in and log is not None:
            met, note = None, f"A STAND-IN; {note}"
        self.add(work, unit, direct, log, bar, met, note=note)

    # --- operations --------------------------------------------------------------------------------
    @staticmethod
    def touch_memory():
        half_kb = int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) // 2
        size = min(MEMORY_TOUCHED, half_kb << 10)
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()

    @staticmethod
    def write_back():
        """Write all data of the page cache to the disks."""
        deadline = time.monotonic() + WRITE_BACK_S_MAX
        while time.monotonic() < deadline:
            os.sync()
            text = Path("/proc/meminfo").read_text()
            kb = sum(int(text.split(f"\n{name}:")[1].split()[0]) for name in ("Dirty", "Writeback"))
            if kb <= DIRTY_MB_MAX << 10:
                return
            time.sleep(0.1)
        raise Failed("the disk is busy: other programs write more than it takes")

    def run_records(self, work, pattern, count, paths, size=RECORD):
        if work in ("write", "write-only", "read"):
            self.touch_memory()
        return json.loads(text_of([self.program, work, pattern, count, size, *paths]))

    @contextmanager
    def mounted(self, stores):
        """Mount the same store once for each of the paths that lead to it; yields the mounts."""
        if self.stand_in:
            point = self.scratch / "stand-in" / str(stores[0]).replace("/", "-")
            point.mkdir(parents=True, exist_ok=True)
            yield [StandIn(point) for _ in stores]
            return
        mounts = [Mount(self.quell, store, self.scratch / f"mount-{i}") for i, store in enumerate(stores)]
        try:
            for mount in mounts:
                mount.start()
            yield mounts
        finally:
            for mount in mounts:
                mount.stop()

    @staticmethod
    def paths(roots, name, pattern, reading=False):
        """Return one path for each rank. A private file is read by the next rank's node; in a
        shared file each rank reads the next rank's records."""
        if pattern != "private":
            return [root / name for root in roots]
        return [roots[(rank - reading) % len(roots)] / f"{name}-{rank}" for rank in range(len(roots))]

    def write(self, rates, method, roots, pattern, count, name, work="write"):
        rates.note((method, pattern, "write", count), self.run_records(work, pattern, count, self.paths(roots, name, pattern)))

    def read(self, rates, method, roots, pattern, count, name):
        """Measure the read, then read again and compare every byte."""
        paths = self.paths(roots, name, pattern, reading=True)
        rates.note((method, pattern, "read", count), self.run_records("read", pattern, count, paths))
        self.run_records("verify", pattern, count, paths)

    # --- parallel file systems --------------------------------------------------------------------
    def measured(self, testbed, slow):
        """Measure all rates on a test bed. If writing one file is `slow`, it is done once, and once
        more in one chunk."""
        rates = Rates()
        direct, stores = ([testbed.path(node, name) for node in range(1, NODES + 1)] for name in ("direct", "store"))
        for directory in (direct[0], stores[0]):
            directory.mkdir()
        for turn in range(self.repeats):
            self.write(rates, "direct", direct, "private", self.records, f"private-{turn}")
            for pattern in ("strided", "segmented"):
                if turn == 0 or not slow:
                    self.write(rates, "direct", direct, pattern, self.records, f"{pattern}-{turn}")
                # The file to read is complete and in order on the servers, however it was written.
                self.run_records("fill", pattern, self.records, self.paths(direct, f"{pattern}-filled-{turn}", pattern))
            if slow and turn == 0:
                self.write(rates, "direct", direct, "segmented", self.few, "segmented-few")
                self.run_records("verify", "segmented", self.few, self.paths(direct, "segmented-few", "segmented"))
            if not self.why_not:
                with self.mounted(stores) as mounts:
                    points = [mount.point for mount in mounts]
                    for pattern in PATTERNS:
                        self.write(rates, "log", points, pattern, self.records, f"{pattern}-{turn}")
                    if slow:
                        self.write(rates, "log", points, "segmented", self.few, f"segmented-few-{turn}")
            self.drop_all(testbed)
            for pattern in PATTERNS:
                name = f"private-{turn}" if pattern == "private" else f"{pattern}-filled-{turn}"
                self.read(rates, "direct", direct, pattern, self.records, name)
            if not self.why_not:
                self.drop_all(testbed)
                with self.mounted(stores) as mounts:
                    for pattern in PATTERNS:
                        self.read(rates, "log", [mount.point for mount in mounts], pattern, self.records, f"{pattern}-{turn}")
        return rates

    @staticmethod
    def drop_all(testbed):
        for node in range(1, NODES + 1):
            testbed.drop(node)

    def measure_on(self, testbed, name, slow, read_bars):
        rates = self.measured(testbed, slow)
        note = f"median of {self.repeats}"
        private = rates.median_of(("direct", "private", "write", self.records))

        def compared(title, work, count, least, reference, why, note):
            direct, log = (rates.median_of((method, *work, count)) for method in ("direct", "log"))
            note = f"{self.why_not}; {note}" if self.why_not else note
            bar, met = (None, None) if least is None else (f"at least {least} {'of' if least <= 1 else 'times'} {why}", log is not None and log >= least * reference)
            self.row(f"{name}, {title}", "MB/s", direct, log, bar, None if self.why_not else met, note)

        of_private = f"private files ({private:,.0f} MB/s)"
        once = f"direct once, log median of {self.repeats}" if slow and self.repeats > 1 else note
        compared("one file, strided: write", ("strided", "write"), self.records, 0.8, private, of_private, once)
        compared("one file, segmented: write", ("segmented", "write"), self.records, 0.8, private, of_private, once)
        if slow:
            mb = self.few * NODES * RECORD / 1e6
            compared(f"one file of {mb:.0f} MB, segmented: write", ("segmented", "write"), self.few, 0.8, private, of_private, once)
        for pattern in ("strided", "segmented"):
            work = (pattern, "read")
            reference = rates.median_of(("direct", *work, self.records))
            compared(f"one file, {pattern}: read by other nodes", work, self.records, read_bars.get(pattern), reference, "direct", note)
        for work in ("write", "read"):
            reference = rates.median_of(("direct", "private", work, self.records))
            compared(f"a file for each process: {work}", ("private", work), self.records, 0.8, reference, "direct", note)

    # --- a local disk ------------------------------------------------------------------------------
    def on_local(self, local):
        """Measure the cost of the layer and of the kernel's FUSE, without network and sync."""
        rates = Rates()
        direct, store = Path(local, "log/direct"), Path(local, "log/store")
        for directory in (direct, store):
            directory.mkdir(parents=True)
        roots = [direct] * NODES
        kind = text_of(["findmnt", "-n", "-o", "FSTYPE", "-T", direct]).strip()

        def directly():
            self.write(rates, "direct", roots, "strided", self.local_records, "file", "write-only")
            self.read(rates, "direct", roots, "strided", self.local_records, "file")

        def by_mount():
            # One mount, because it is one node.
            with self.mounted([store]) as (mount,):
                self.write(rates, "log", [mount.point] * NODES, "strided", self.local_records, "file", "write-only")
            with self.mounted([store]) as (mount,):
                self.read(rates, "log", [mount.point] * NODES, "strided", self.local_records, "file")

        methods = [directly] if self.why_not else [directly, by_mount]
        if self.library.exists():
            methods += self.by_library(rates, direct, store)
        for turn in range(self.rounds):
            first = turn % len(methods)
            for method in methods[first:] + methods[:first]:
                self.write_back()
                method()
                for directory in (direct, store):
                    shutil.rmtree(directory)
                    directory.mkdir()
        for method, factor in (("FUSE", 3), ("library", 1)):
            for work in ("write", "read"):
                original, original_ext4 = ORIGINAL[method][work], ORIGINAL["ext4"][work]
                least = factor * original / original_ext4
                methods = ("plain beside the library", "library") if method == "library" else ("direct", "log")
                direct, log = (rates.median_of((each, "strided", work, self.local_records)) for each in methods)
                spreads = [rates.spread_of((each, "strided", work, self.local_records), 1e6 / (1 << 20)) for each in methods]
                title = f"local {kind}, one file, strided, by {method}: {work}"
                bar = f"at least {least:.2f} of direct ({f'{factor} times' if factor > 1 else 'as'} the original)"
                why_not = self.why_not
                if method == "library":
                    why_not = None if self.library.exists() else NO_LIBRARY
                direct, log = (rate and rate * 1e6 / (1 << 20) for rate in (direct, None if why_not else log))
                self.row(title, "MiB/s", direct, log, bar, None if why_not else log >= least * direct,
                         why_not or f"median of {self.rounds}, {spreads[0]} and {spreads[1]}; the original PLFS {original:,} of {original_ext4:,}")
        self.preload_rows(rates, kind)

    def preload_rows(self, rates, kind):
        """Compare the preload library with the C library and with a mount."""
        for work, other, name, least in BY_PRELOAD:
            reference, preload = (rates.median_of((each, "strided", work, self.local_records)) for each in (name, "preload"))
            spreads = [rates.spread_of((each, "strided", work, self.local_records), 1e6 / (1 << 20)) for each in (name, "preload")]
            title = f"local {kind}, one file, strided, by preload against {other}: {work}"
            why_not = None if reference and preload else "SKIPPED: see the rows above"
            reference, preload = (rate and rate * 1e6 / (1 << 20) for rate in (reference, preload))
            self.row(title, "MiB/s", reference, preload, f"at least {least:.1f} of {other}",
                     None if why_not else preload >= least * reference, why_not or f"median of {self.rounds}, {spreads[0]} and {spreads[1]}")

    def by_library(self, rates, direct, store):
        """Return functions that write and read with the same processes, without the mount."""
        size = ["--processes", NODES, "--record", RECORD, "--mib", self.local_records * NODES * RECORD >> 20]
        virtual = Path(store.parent, "preload")
        virtual.mkdir(exist_ok=True)
        environments = {"LD_LIBRARY_PATH": str(self.library.parent)}
        view = {"log": [{"path": str(virtual), "stores": [str(store)]}]}
        methods = {"plain beside the library": (("--posix", direct), os.environ), "library": (("--quell", store), os.environ)}
        if library_of(self.quell).exists():
            methods["preload"] = (("--posix", virtual), environment(self.quell, **view))

        def measure(method, arguments, inherited):
            self.touch_memory()
            line = text_of([self.nto1, *arguments, *size], env={**inherited, **environments})
            results = dict(word.split("=") for word in line.split())
            for work in ("write", "read"):
                mib_s = float(results[f"{work}_mib_s"])
                rates.note((method, "strided", work, self.local_records), {"bytes": mib_s * (1 << 20), "seconds": 1})

        return [functools.partial(measure, method, *how) for method, how in methods.items()]

    # --- the index ---------------------------------------------------------------------------------
    def index_size(self, local):
        """Measure the size of the logs without the data, for many small writes by 8 processes."""
        writers = 8
        for pattern, limit in (("strided", 0.1), ("random", 24)):
            title = f"index bytes for {self.writes:,} {pattern} writes by {writers} processes"
            bar = f"{'under' if pattern == 'strided' else 'at most'} {limit} a write"
            if self.why_not or self.stand_in:
                self.row(title, "bytes/write", None, None, bar, None, self.why_not or "SKIPPED: a stand-in has no index")
                continue
            store = Path(local, f"index-{pattern}")
            store.mkdir()
            with self.mounted([store]) as (mount,):
                self.run_records("write", pattern, self.writes // writers, [mount.point / "file"] * writers, SMALL)
            files = [path for path in (store / "file.container").rglob("*") if path.is_file()]
            index = sum(path.stat().st_size for path in files if path.suffix == ".index") / self.writes
            beside = sum(path.stat().st_size for path in files) / self.writes - SMALL
            self.row(title, "bytes/write", None, index, bar, index < limit if pattern == "strided" else index <= limit,
                     f"48 in the original PLFS; all that the container has beside the data: {beside:.2f}")

    # --- opening -----------------------------------------------------------------------------------
    def opening(self, local):
        """Measure the time from open to the first record, with a mount that has not read the file
        before."""
        cases = (("1,024 logs of 1,000 random records each", 1_024, 1_000, 1.0, 200, 0.05),
                 ("200,000 random records in 8 logs", 8, 25_000, 0.1, None, 0.01))
        for title, writers, records, limit_s, limit_mb, flat_s in cases:
            title, note = f"open of {title}", f"median of {self.repeats}, each in a new mount; warm page cache"
            if self.why_not or self.stand_in:
                note = self.why_not or "SKIPPED: a stand-in has no logs"
                self.row(f"{title}: wall", "s", None, None, f"at most {limit_s:g} s", None, note)
                if limit_mb:
                    self.row(f"{title}: memory", "MB", None, None, f"under {limit_mb} MB", None, note)
                self.row(f"{title}, flattened: wall", "s", None, None, f"at most {flat_s:g} s", None, note)
                continue
            store = Path(local, f"open-{writers}")
            store.mkdir()
            with self.mounted([store]) as (mount,):
                self.run_records("write", "random", records, [mount.point / "file"] * writers, SMALL)
            seconds, memory = self.opened(store, writers, records)
            self.row(f"{title}: wall", "s", None, seconds, f"at most {limit_s:g} s", seconds <= limit_s, note)
            if limit_mb:
                self.row(f"{title}: memory", "MB", None, memory, f"under {limit_mb} MB", memory < limit_mb,
                         "the most that the serving process had")
            run([self.quell, "log", "flatten", store, "file"])
            seconds, memory = self.opened(store, writers, records)
            self.row(f"{title}, flattened: wall", "s", None, seconds, f"at most {flat_s:g} s", seconds <= flat_s,
                     f"{note}; {memory:.0f} MB")

    def opened(self, store, writers, records):
        """Return (seconds, MB of memory)."""
        got = []
        for _ in range(self.repeats):
            with self.mounted([store]) as (mount,):
                result = self.run_records("first", "random", records, [mount.point / "file"] * writers, SMALL)
                got.append((result["seconds"], mount.memory_mb()))
        return [median(values) for values in zip(*got)]

    # --- all rows ----------------------------------------------------------------------------------
    def rows(self, local):
        def on_cephfs():
            with Testbed(self.scratch / "cephfs", NODES, "cephfs").up() as testbed:
                self.measure_on(testbed, "CephFS", False, {"strided": 3})

        parts = {"MooseFS": lambda: self.measure_on(self.testbed, "MooseFS", True, {"strided": 0.9, "segmented": 0.9}), "CephFS": on_cephfs,
                 "a local disk": lambda: self.on_local(local), "index": lambda: self.index_size(local), "opening": lambda: self.opening(local)}
        self.measure_parts(parts)

    def measure_parts(self, parts):
        for name, part in parts.items():
            try:
                part()
            except (Failed, OSError, subprocess.SubprocessError) as error:
                # A failure does not lose the earlier results, and the other parts are measured.
                self.row(f"log mounts: {name}", "s", None, None, "measured to the end", False, " ".join(f"FAILED: {error}".split())[:300])


class StandIn:
    """A local directory in place of a log mount, to test the benchmark itself."""

    def __init__(self, point):
        self.point = point
