"""Measures batches: creates by the library (services/batch/benches/creates.rs), and creates and
stats of a program in mounts, beside the local disk, a FUSE pass-through (bindfs) and a MooseFS.
$QUELL_CREATES names another build of the benchmark of the library than the one of `cargo bench`."""
import os
import re
import shutil
import sys
import time
from pathlib import Path

import batch_requests
from batch_programs import BatchPrograms
from measure import Failed, Testbed, median, run, seconds_of, text_of

TOP = Path(__file__).resolve().parent.parent.parent
REPEATS = 3
CREATES = 1_000_000
MANY = 10_000_000
FILES = 20_000
# Target rates of the library with the commit, in creates per second: the rates of IndexFS 0.4 for
# bulk insertion, without a verification.
LIBRARY = {1: 204_000, 2: 371_000}
SYNCHRONOUS = 18  # times the rate of the synchronous mode
VERIFICATION = 0.2  # of the processor time of the synchronous mode
PRIMARY = 0.02
PROOF_BYTES = 8
SNAPSHOT_MS, SNAPSHOT_MB = 50, 1
MEMORY_MB = 200
CONFLICTS = 1.2
MOOSEFS_CREATES, MOOSEFS_STATS = 30, 3
CEPHFS_CREATES, CEPHFS_FILES = 100, 5_000
PRELOAD = 3  # times the rate of ext4
NO_BINDFS = "SKIPPED: bindfs is not installed: apt-get install bindfs"
NO_LIBRARY = "SKIPPED: there is no libquell_preload.so beside the binary: make build"

# Creates empty files as mdtest does, or calls stat in random order. Prints operations per second.
PROGRAM = """
import os, random, sys, time
step, directory, files = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.makedirs(directory, exist_ok=True)
names = [f"{directory}/file.{number}" for number in range(files)]
if step == "stat":
    random.Random(1).shuffle(names)
start = time.perf_counter()
for name in names:
    if step == "create":
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    else:
        os.stat(name)
print(files / (time.perf_counter() - start))
"""


def of_library(text):
    """Return the results that the benchmark of the library has printed, by the title of the step:
    seconds, operations per second, and microseconds of processor time for each operation."""
    lines = re.findall(r"^(.*?): ([\d.]+) s, (\d+)/s, ([\d.]+) us", text, re.MULTILINE)
    return {title: (float(seconds), float(rate), float(us)) for title, seconds, rate, us in lines}


class Batch:
    def __init__(self, bench, local):
        self.quell, self.add, self.testbed, self.local = bench.quell, bench.add, bench.testbed, Path(local)
        self.scratch, self.quick = bench.scratch, bench.options.quick
        self.creates, self.many, self.files, self.repeats = (20_000, 40_000, 500, 1) if self.quick else (CREATES, MANY, FILES, REPEATS)

    def rows(self):
        library = self.library()
        self.large()
        self.mounts()
        self.on_cephfs(library)
        BatchPrograms(self, self.scratch, self.quick).rows()

    def library_output(self, creates, rounds, proof="certificate"):
        command = [os.environ["QUELL_CREATES"]] if "QUELL_CREATES" in os.environ else \
            ["cargo", "bench", "--quiet", "-p", "quell-batch-service", "--bench", "creates", "--"]
        return text_of([*command, creates, self.local, rounds, proof], cwd=TOP)

    @staticmethod
    def proof_bytes(text):
        return float(re.search(r"^proof: ([\d.]+) bytes a create", text, re.MULTILINE)[1])

    def library(self):
        """Add the rows of the library. Return the creates per second of one client, with the commit."""
        texts = [self.library_output(self.creates, self.repeats) for _ in range(self.repeats)]
        runs = [of_library(text) for text in texts]

        def middle(title, column):
            return median(found[title][column] for found in runs)

        note = f"{self.creates:,} files a client, create to end of commit; median of {self.repeats}"
        synchronous = middle("create synchronously", 1)
        for clients, least in LIBRARY.items():
            rate = middle(f"create and commit, {clients} clients", 1)
            self.add(f"batch, library, {clients} client{'s' * (clients > 1)}: create, verification included", "ops/s", None, rate,
                     f"at least {least:,}/s", rate >= least, note=f"{note}; bar: IndexFS 0.4 without verification")
        rate = middle("create and commit, 1 clients", 1)
        self.add("batch, library: create, beside the synchronous mode", "ops/s", synchronous, rate,
                 f"at least {SYNCHRONOUS} times", rate >= SYNCHRONOUS * synchronous, note="direct: synchronous mode in one process")
        synchronous_us = middle("create synchronously", 2)
        pattern = re.compile(r"^verify by an auxiliary server and commit: .* s, ([\d.]+) us .*, ([\d.]+) us ", re.MULTILINE)
        measured = [[float(number) for number in pattern.search(text).groups()] for text in texts]
        for index, (process, most) in enumerate((("auxiliary server", VERIFICATION), ("primary server, verification by an auxiliary server", PRIMARY))):
            each_us = median(numbers[index] for numbers in measured)
            self.add(f"batch, library: processor time of the {process}, for each create", "us", synchronous_us, each_us,
                     f"at most {most} of synchronous", each_us <= most * synchronous_us, note="direct: a create in the synchronous mode")
        tables = median(self.proof_bytes(text) for text in texts)
        log = self.library_output(self.creates, 0, "log")
        each, log_us = self.proof_bytes(log), of_library(log)["verify and commit"][2]
        self.add("batch, library: bytes of the operation log, for each create", "B", None, each, f"at most {PROOF_BYTES} B", each <= PROOF_BYTES,
                 note=f"with the certificate; {tables:.1f} bytes with --proof certificate; verification and commit of the log: {log_us} us of processor time")
        medians = [[float(found) for found in re.findall(r"(\d+) conflicts, median of \d+: ([\d.]+) s", text)[index][1:]][0]
                   for text in texts for index in (0, 1)]
        without, conflicts = median(medians[::2]), median(medians[1::2])
        self.add("batch, library: commit with 1 % conflicts, beside none", "s", without, conflicts, f"at most {CONFLICTS} times",
                 conflicts <= CONFLICTS * without, note=f"{self.repeats} series of {self.repeats} rounds, in turn")
        return rate

    def large(self):
        """Measure one batch with many files: the memory of its process, and the next snapshot."""
        text = self.library_output(self.many, 0)
        snapshot = of_library(text)["begin with a snapshot of these files"][0] * 1000
        memory, description = (int(re.search(rf"^{title}: (\d+) ", text, re.MULTILINE).group(1)) for title in ("peak memory", "copy of the description"))
        self.add(f"batch, library: memory at {self.many:,} creates", "MB", None, memory, f"at most {MEMORY_MB} MB", memory <= MEMORY_MB,
                 note="the private name space and the primary server in one process")
        self.add(f"batch, library: snapshot of {self.many:,} entries", "ms", None, snapshot, f"at most {SNAPSHOT_MS} ms", snapshot <= SNAPSHOT_MS)
        self.add("  size of the description with this snapshot", "MB", None, description / 1e6, f"at most {SNAPSHOT_MB} MB",
                 description <= SNAPSHOT_MB * 1e6)

    def work(self, step, directory, files=None):
        return float(text_of([sys.executable, "-c", PROGRAM, step, directory, files or self.files]))

    def mounts(self):
        plain, moosefs = self.local / "batch-plain", self.testbed.path(1, "batch-plain")
        rates = {name: [] for name in ("ext4", "bindfs", "batch", "with commit", "sync", "moosefs", "stat", "moosefs stat", "preload", "preload alone",
                                        "preload stat", "served")}
        for number in range(self.repeats):
            rates["ext4"].append(self.work("create", plain / str(number)))
            self.bindfs(rates["bindfs"], plain, number)
            rates["moosefs"].append(self.work("create", moosefs / str(number)))
            rates["moosefs stat"].append(self.work("stat", moosefs / str(number)))
            self.batch(rates, number)
            self.preload(rates, self.testbed.path(1, f"batch-preload-{number}"), number)
        shutil.rmtree(plain)
        found = {name: median(values) if values else None for name, values in rates.items()}
        note = f"{self.files:,} files, create to end of `quell umount`; median of {self.repeats}, in turn"
        passed = found["bindfs"]
        self.add("batch, FUSE: create, commit included, beside a FUSE pass-through", "ops/s", passed, found["with commit"],
                 "at least the pass-through", found["with commit"] >= passed if passed else None,
                 note=f"direct: bindfs on ext4; {note}" if passed else NO_BINDFS)
        self.add("batch, FUSE: create, commit included, beside ext4", "ops/s", found["ext4"], found["with commit"],
                 note=f"create alone: {found['batch']:,.0f}/s")
        self.add("batch, FUSE: create, commit included, beside the synchronous mode in a mount", "ops/s", found["sync"], found["with commit"],
                 note="the store is on MooseFS; the paper's 18 times are those of the library")
        self.add("batch, FUSE: create, commit included, beside MooseFS", "ops/s", found["moosefs"], found["with commit"],
                 f"at least {MOOSEFS_CREATES} times", found["with commit"] >= MOOSEFS_CREATES * found["moosefs"],
                 note="the store is on the same MooseFS")
        self.add("batch, FUSE: stat in random order after the commit, beside MooseFS", "ops/s", found["moosefs stat"], found["stat"],
                 f"at least {MOOSEFS_STATS} times", found["stat"] >= MOOSEFS_STATS * found["moosefs stat"],
                 note="one mount in the synchronous mode; the client of MooseFS has just created the files")
        self.preload_rows(found)

    def preload_rows(self, found):
        """Add the rows of programs under the preload library."""
        rate, served = found["preload"], found["served"]
        if not rate:
            self.add("batch, preload: create, commit included", "ops/s", found["ext4"], None, note=NO_LIBRARY)
            return
        note = f"{self.files:,} files by one process, create to end of `quell run`"
        self.add("batch, preload: create, commit included, beside ext4", "ops/s", found["ext4"], rate, f"at least {PRELOAD} times",
                 rate >= PRELOAD * found["ext4"], note=f"{note}; create alone: {found['preload alone']:,.0f}/s")
        self.add("batch, preload: create, commit included, beside MooseFS", "ops/s", found["moosefs"], rate,
                 f"at least {MOOSEFS_CREATES} times", rate >= MOOSEFS_CREATES * found["moosefs"], note="the store is on the same MooseFS")
        self.add("batch, preload: create, commit included, beside the synchronous mode of a server", "ops/s", served, rate,
                 f"at least {SYNCHRONOUS} times", rate >= SYNCHRONOUS * served,
                 note="direct: the same program with `--mode sync`, and `quell batch serve` on the same node")
        self.add("batch, preload: stat in random order after the commit, beside MooseFS", "ops/s", found["moosefs stat"],
                 found["preload stat"], f"at least {MOOSEFS_STATS} times", found["preload stat"] >= MOOSEFS_STATS * found["moosefs stat"],
                 note="`--mode sync`; the client of MooseFS has just created the files")

    def on_cephfs(self, library):
        """Compare creates with those in a directory of a CephFS, by one node."""
        if self.quick:
            return
        note = f"{CEPHFS_FILES:,} files in a directory"
        try:
            with Testbed(self.scratch / "cephfs", 1, "cephfs").up() as cephfs:
                plain = self.work("create", cephfs.path(1, "batch-plain"), CEPHFS_FILES)
                rates = {"preload": [], "preload alone": []}
                self.preload(rates, cephfs.path(1, "batch-store"), "cephfs")
        except Failed as error:
            self.add("batch: create beside CephFS", "ops/s", None, None, note=f"SKIPPED: {error}")
            return
        for way, rate in (("library", library), ("preload", median(rates["preload"]) if rates["preload"] else None)):
            self.add(f"batch, {way}: create, commit included, beside CephFS", "ops/s", plain, rate, f"at least {CEPHFS_CREATES} times",
                     rate and rate >= CEPHFS_CREATES * plain, note=note if rate else NO_LIBRARY)

    def bindfs(self, rates, plain, number):
        if not shutil.which("bindfs"):
            return
        mirror = self.local / "batch-bindfs"
        mirror.mkdir(exist_ok=True)
        run(["bindfs", plain, mirror])
        try:
            rates.append(self.work("create", mirror / f"bindfs-{number}"))
        finally:
            run(["fusermount3", "-u", mirror])

    def batch(self, rates, number):
        """Create files in a batch whose store is on MooseFS, commit it, call stat for each, and
        create others in the synchronous mode."""
        store, mount = self.testbed.path(1, f"batch-store-{number}"), self.local / "batch-mount"
        mount.mkdir(exist_ok=True)
        run([self.quell, "batch", "init", store])
        run([self.quell, "mount", "--quiet", "--batch", store, "--mode", "batch", mount])
        rate = self.work("create", mount / "dir")
        rates["batch"].append(rate)
        commit = seconds_of([self.quell, "umount", "--quiet", mount])
        rates["with commit"].append(self.files / (self.files / rate + commit))
        run([self.quell, "mount", "--quiet", "--batch", store, mount])
        try:
            rates["stat"].append(self.work("stat", mount / "dir"))
            rates["sync"].append(self.work("create", mount / "synchronous"))
        finally:
            run([self.quell, "umount", "--quiet", mount])

    def preload(self, rates, store, name):
        """Create files in a batch under the preload library, and commit it. The time of the commit
        is the time of `quell run` minus the time of the program. If `rates` has their names, also
        call stat for each file, and create others in the synchronous mode of a server."""
        if not Path(self.quell).resolve().with_name("libquell_preload.so").exists():
            return
        directory = self.local / f"batch-preload-{name}"
        directory.mkdir()
        run([self.quell, "batch", "init", store])
        command = [self.quell, "run", "--quiet", "--via", "preload", "--batch", f"{store}={directory}"]
        clock = "import time; print(time.monotonic())"
        program = f"{PROGRAM}{clock}"
        rate, ended = text_of([*command, "--", sys.executable, "-c", program, "create", directory / "dir", self.files]).split()
        commit = time.monotonic() - float(ended)
        rates["preload alone"].append(float(rate))
        rates["preload"].append(self.files / (self.files / float(rate) + commit))
        if "served" not in rates:
            return
        synchronous = [*command, "--mode", "sync", "--", sys.executable, "-c", PROGRAM]
        rates["preload stat"].append(float(text_of([*synchronous, "stat", directory / "dir", self.files])))
        with batch_requests.server(self.quell, store):
            rates["served"].append(float(text_of([*synchronous, "create", directory / "served", self.files])))
