"""Measures pools: names as mdtest does, data as IOR does (pool_work.c), beside the local disk and a
MooseFS. The reference values were measured with GekkoFS 0.9.3 on a machine with 2 processors, which
its daemon and the ranks shared, with the faster one of its two transports."""
import json
from pathlib import Path

from measure import median, processor_s, run, text_of

HERE = Path(__file__).resolve().parent
RANKS = 4
REPEATS = 3
# The rates of names vary by a factor of two, because the kernel moves the ranks and the daemon
# between the processors.
NAME_REPEATS = 9
FILES = 5000
DATA_MIB = 256
STEPS = ("create", "stat", "remove")
# Ranks and daemons, the rates of GekkoFS, and the targets, in operations per second.
NAMES = (
    (1, 1, (4300, 12000, 9800), (21000, 60000, 49000)),
    (4, 1, (9300, 20500, 15500), (46000, 100000, 75000)),
    (4, 2, (3200, 7300, 7500), (16000, 36000, 37000)),
)
PROCESSOR_US = (147, 29.4)  # the smallest value of GekkoFS, and a fifth of it
# Bytes of a transfer, the rates of GekkoFS in MiB/s (write, read), and the targets.
DATA = ((8 << 10, (27, 57), (270, 570)), (64 << 10, (179, 331), (895, 1655)), (1 << 20, (730, 1800), (1460, 3600)))
SMALL_BYTES = 4096
# Ranks and daemons.
SMALL = ((1, 1), (4, 2))
NO_LIBRARY = "SKIPPED: there is no libquell_preload.so beside the binary: make build"


def up(quell, name, directory, daemons):
    """Start a pool on this machine. Return the process ids of its daemons."""
    run([quell, "pool", "up", name, "--quiet", "--local", daemons, "--dir", directory])
    status = json.loads(text_of([quell, "pool", "status", name, "--json"]))
    return [daemon["pid"] for daemon in status["daemons"]]


def down(quell, name):
    run([quell, "pool", "down", name, "--discard", "--quiet"])


class Pool:
    def __init__(self, bench):
        self.quell, self.add, self.testbed = bench.quell, bench.add, bench.testbed
        self.program = bench.scratch / "pool_work"
        self.files, self.mib = (500, 16) if bench.options.quick else (FILES, DATA_MIB)

    def rows(self, local):
        if not (Path(self.quell).resolve().parent / "libquell_preload.so").exists():
            self.add("pool", "ops/s", None, None, note=NO_LIBRARY)
            return
        run(["cc", "-O2", "-Wall", "-o", self.program, HERE / "pool_work.c"])
        self.roundtrip()
        for ranks, daemons, reference, targets in NAMES:
            self.names(Path(local), ranks, daemons, reference, targets)
        for ranks, daemons in SMALL:
            self.small_files(Path(local), ranks, daemons)
        self.moosefs()
        self.data(Path(local))

    def work(self, *arguments, before=()):
        return json.loads(text_of([*before, self.program, *arguments]))

    def roundtrip(self):
        found = self.work("roundtrip")
        self.add("calibration: exchange of 64 bytes, one processor", "us", None, found["one_us"], note="6 us on the reference machine")
        if "across_us" in found:
            self.add("calibration: exchange of 64 bytes, two processors", "us", None, found["across_us"], note="51 us on the reference machine")

    def up(self, local, daemons):
        return up(self.quell, "bench", local, daemons)

    def down(self):
        down(self.quell, "bench")

    def processor_s(self, daemons):
        """Return the processor time of the daemons so far."""
        return sum(map(processor_s, daemons))

    def names(self, local, ranks, daemons, reference, targets):
        mount, plain = local / "pool-run", local / "pool-plain"
        mount.mkdir(exist_ok=True)
        plain.mkdir(exist_ok=True)
        pool = (self.quell, "run", "--quiet", "--pool", f"bench={mount}", "--")
        direct, covered, processor = [], [], []
        started = self.up(local, daemons)
        try:
            run([*pool, "mkdir", mount / "dir"])
            for repeat in range(NAME_REPEATS):
                # The local disk takes ten times as long.
                if repeat % (NAME_REPEATS // REPEATS) == 0:
                    direct.append(self.work("names", self.files, *[plain] * ranks)["rates"])
                before = self.processor_s(started)
                found = self.work("names", self.files, *[mount / "dir"] * ranks, before=pool)
                used = found["processor_s"] + self.processor_s(started) - before
                covered.append(found["rates"])
                processor.append(used / (3 * ranks * self.files) * 1e6)
        finally:
            self.down()
        shape = f"{ranks} rank{'s' * (ranks > 1)}, {daemons} daemon{'s' * (daemons > 1)}"
        for step, name in enumerate(STEPS):
            rates = [run[step] for run in covered]
            rate = median(rates)
            self.add(f"pool, {shape}: {name}", "ops/s", median(run[step] for run in direct), rate,
                     f"at least {targets[step]:,}/s", rate >= targets[step],
                     note=f"{min(rates):,.0f} to {max(rates):,.0f}/s; direct: the local disk; GekkoFS {reference[step]:,}/s")
        used, (gekkofs, limit) = median(processor), PROCESSOR_US
        self.add(f"pool, {shape}: processor time of an operation", "us", None, used, f"at most {limit} us", used <= limit,
                 note=f"daemons and ranks, mean of the three operations; GekkoFS {gekkofs} us at best")

    def small_files(self, local, ranks, daemons):
        """Measure files with content beside empty ones, whose difference is the cost of the
        content."""
        mount, plain = local / "pool-run", local / "pool-plain"
        mount.mkdir(exist_ok=True)
        plain.mkdir(exist_ok=True)
        pool = (self.quell, "run", "--quiet", "--pool", f"bench={mount}", "--")
        direct, covered, empty = [], [], []
        self.up(local, daemons)
        try:
            for _ in range(REPEATS):
                small = ("small", self.files, SMALL_BYTES)
                direct.append(self.work(*small, *[plain] * ranks)["rates"])
                covered.append(self.work(*small, *[mount] * ranks, before=pool)["rates"])
                empty.append(self.work("names", self.files, *[mount] * ranks, before=pool)["rates"])
        finally:
            self.down()
        shape = f"{ranks} rank{'s' * (ranks > 1)}, {daemons} daemon{'s' * (daemons > 1)}"
        names = (("create and write", "create"), ("open and read", "stat"), ("remove", "remove"))
        for step, (name, other) in enumerate(names):
            rates = [median(run[step] for run in runs) for runs in (direct, covered, empty)]
            self.add(f"pool, {shape}, files of {SMALL_BYTES >> 10} KiB: {name}", "ops/s", rates[0], rates[1],
                     note=f"direct: the local disk; {other} of empty files: {rates[2]:,.0f}/s")

    def moosefs(self):
        paths = [self.testbed.path(node, "names") for node in range(1, RANKS + 1)]
        paths[0].mkdir()
        found = [self.work("names", self.files // 5, *paths)["rates"] for _ in range(REPEATS)]
        for step, name in enumerate(STEPS):
            self.add(f"MooseFS, {RANKS} clients: {name}", "ops/s", median(run[step] for run in found), None,
                     note="for comparison; each rank on a node of its own")

    def data(self, local):
        mount, plain = local / "pool-run", local / "pool-plain"
        pool = (self.quell, "run", "--quiet", "--pool", f"bench={mount}", "--")
        self.up(local, 1)
        try:
            for size, reference, targets in DATA:
                own = [0, 0]
                for is_shared in (0, 1):
                    arguments = ("data", size, self.mib, is_shared)
                    direct, covered = [], []
                    for _ in range(REPEATS):
                        direct.append(self.work(*arguments, *[plain] * RANKS)["rates"])
                        covered.append(self.work(*arguments, *[mount] * RANKS, before=pool)["rates"])
                    title = f"pool, {RANKS} ranks, {size >> 10} KiB, " + ("one file" if is_shared else "a file each")
                    for step, name in enumerate(("write", "read")):
                        disk, rate = (median(run[step] for run in runs) for runs in (direct, covered))
                        if is_shared:
                            target, met = "within 20 % of a file each", rate >= 0.8 * own[step]
                        else:
                            own[step] = rate
                            target = f"at least {targets[step]:,} MiB/s and 0.6 of the disk"
                            met = rate >= targets[step] and rate >= 0.6 * disk
                        self.add(f"{title}: {name}", "MiB/s", disk, rate, target, met,
                                 note=f"direct: the local disk, unsynced; GekkoFS {reference[step]} MiB/s")
        finally:
            self.down()
