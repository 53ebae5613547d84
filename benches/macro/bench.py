#!/usr/bin/env python3
"""Compare direct with covered access on a MooseFS with 4 nodes, and on a CephFS for log mounts.

Both are measured side by side in one run. Every row has a direct number, a covered number, their
ratio, and Quell's target. The test beds (testbed/moosefs, testbed/cephfs) are created for the run
and removed at its end, also on Ctrl-C. Results are written to docs/benchmarks/latest.txt,
latest.json and latest.svg, and the results of log mounts also to log.*. Needs root; $QUELL is the
quell binary.
"""
import argparse
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
sys.dont_write_bytecode = True  # leaves the checkout unchanged
sys.path.insert(0, str(TOP / "testbed"))
from batch import Batch
from blob import Blob
from boot import OF_THE_SERVER, BootImages
from job import CACHES as JOB_CACHES, NODES as JOB_NODES, Job
from log import Logs
from machines import Machines
from measure import Failed, Testbed, alternate, count_calls, machine, median, run, seconds_of, stop_on_signals, text_of, view_of
from mpi import Mpi
from one_writer import OneWriter
from pool import Pool
from preload import Preload
from programs import Programs

NODES = 4
LOG_MOUNTS = "none, log mounts"
# The parts that need no view, with the titles of their tables.
WITHOUT_VIEWS = {"batch": "none, batches", "blob": "none, blobs", "blob-transfers": "none, blobs", "job": "none, jobs", "log": LOG_MOUNTS, "mpi": "none, MPI-IO", "one-writer": LOG_MOUNTS, "pool": "none, pools", "preload": "none, preload", "programs": "automatic, programs"}
FIND_FORMAT = "%p %y %m %s %T@ %l %n\\n"
PROGRAM = TOP / "demo/program.py"


class Row:
    """One row of the result: the operation, the two numbers, and the target that decides met or not
    met."""

    def __init__(self, work, unit, direct, covered, bar=None, met=None, note=""):
        self.work, self.unit, self.direct, self.covered = work, unit, direct, covered
        self.bar, self.met, self.note = bar, met, note

    def ratio(self):
        return self.covered / self.direct if self.direct and self.covered is not None else None

    def cost(self):
        """Return the ratio of costs; for rates it is inverted."""
        ratio = self.ratio()
        return 1 / ratio if ratio and self.unit.endswith("/s") else ratio

    def as_dict(self):
        return {**vars(self), "ratio": self.ratio()}


def number(value, unit):
    if value is None:
        return "-"
    if unit == "s":
        return f"{value:.3f} s"
    if unit == "ops/s":
        return f"{value:,.0f}/s"
    if unit in ("ops", "entries"):
        return f"{value:,.0f}"
    return f"{value:,.1f} {unit}"


def at_most(limit, value):
    return None if value is None else value <= limit


class Bench:
    def __init__(self, testbed, quell, scratch, view, options):
        self.testbed, self.quell, self.scratch, self.view, self.options = testbed, quell, scratch, view, options
        self.rows = []

    def add(self, *row, **more):
        self.rows.append(Row(*row, **more))
        print("  " + line_of(self.rows[-1]), flush=True)

    def covered(self, node, name, *command, check="sample"):
        """Return the command as every node of a job runs it except the first, which also makes a
        full check."""
        view = ["--view", self.view] if self.view else []
        source = ["--source", self.testbed.path(node, name)]
        options = ["--quiet", "--strict", "--check", check, *view]
        return [self.quell, "run", *options, "-i", self.testbed.path(node, f"{name}.quell"), *source, "--", *command]

    def cold(self, node, command, **options):
        """Run a command on a node with empty caches. Return (seconds, messages to the master,
        changed counters)."""
        self.testbed.drop(node)
        return self.testbed.measured(node, lambda: run(command, **options))

    def cold_pair(self, node, name, command, repeats):
        """Run cold, direct and covered in turn. Return the medians ((s, ops), (s, ops))."""
        got = {"direct": [], "covered": []}
        for _ in range(repeats):
            got["direct"].append(self.cold(node, command)[:2])
            got["covered"].append(self.cold(node, self.covered(node, name, *command))[:2])
        return [tuple(median(run[i] for run in runs) for i in (0, 1)) for runs in got.values()]

    # --- the index ---------------------------------------------------------------------------------
    def build_indexes(self):
        testbed = self.testbed
        find, build = [], []
        for _ in range(3):
            find.append(self.cold(1, ["find", testbed.path(1, "tree"), "-printf", FIND_FORMAT])[0])
            testbed.path(1, "tree.quell").unlink(missing_ok=True)
            build.append(self.cold(1, [self.quell, "index", testbed.path(1, "tree"), "-o", testbed.path(1, "tree.quell")])[0])
        build_s, find_s = median(build), median(find)
        self.add("index the synthetic tree, cold node, against find -printf", "s", find_s, build_s,
                 "at most 0.7 of direct", build_s <= 0.7 * find_s)
        run([self.quell, "index", testbed.path(1, "env"), "-o", testbed.path(1, "env.quell")])
        for name, limit, title in (("tree", 24, "synthetic tree"), ("env", 48, "Python environment")):
            entries = self.options.entries[name]
            each = testbed.path(1, f"{name}.quell").stat().st_size / entries
            self.add(f"index size, {title}", "bytes/entry", None, each, f"at most {limit} bytes an entry", each <= limit,
                     note=f"{entries:,} entries")

    # --- a program's start ------------------------------------------------------------------------
    def program_start(self):
        testbed = self.testbed
        calls = count_calls([testbed.path(1, "env/bin/python"), PROGRAM], testbed.path(1, "env"))
        got = {"direct": [], "covered": []}
        worst_counts = {"negative lookups": 0, "listings": 0}
        for node in range(1, NODES + 1):
            command = [testbed.path(node, "env/bin/python"), PROGRAM]
            got["direct"].append(self.cold(node, command)[:2])
            seconds, operations, changed = self.cold(node, self.covered(node, "env", *command))
            got["covered"].append((seconds, operations))
            worst_counts["negative lookups"] = max(worst_counts["negative lookups"], changed.get("fuse_ops.lookup.master.negative", 0))
            worst_counts["listings"] = max(worst_counts["listings"], changed.get("fuse_ops.readdir", 0) + changed.get("fuse_ops.readdirplus", 0))
        middle = {method: [median(run[i] for run in runs) for i in (0, 1)] for method, runs in got.items()}
        limit = 2.2 * calls["open"]
        self.add("import of six packages, cold node: operations", "ops", middle["direct"][1], middle["covered"][1],
                 f"at most 2.2 per file opened ({limit:,.0f})", at_most(limit, middle["covered"][1]),
                 note=f"{calls['open']:,} files opened; median of {NODES} nodes")
        for kind, worst in worst_counts.items():
            # The sample may look up a few names; the program's start looks up hundreds.
            self.add(f"  of these, covered: {kind}", "ops", None, worst, "at most the 8 of the check", worst <= 8,
                     note="worst node")
        self.add("import of six packages, cold node: wall", "s", middle["direct"][0], middle["covered"][0],
                 note=f"median of {NODES} nodes")
        command = [testbed.path(1, "env/bin/python"), PROGRAM]
        covered = self.covered(1, "env", *command)
        alternate([command, covered], 1)  # warms the caches
        direct_s, covered_s = alternate([command, covered], 5)
        self.add("import of six packages, warm client: wall", "s", direct_s, covered_s, "at most 0.85 of direct",
                 covered_s <= 0.85 * direct_s, note="median of 5, in turn")
        before = text_of(command)
        same = before == text_of(covered)
        self.add("output of the program", "", None, None, "identical", same)
        got = [self.cold(1, self.covered(1, "env", "true", check=check))[:2] for check in ("sample", "auto")]
        self.add("check of the whole environment by the first node of a job, cold: operations", "ops", None, got[1][1] - got[0][1],
                 note="beyond those of a sample")
        self.add("check of the whole environment by the first node of a job, cold: wall", "s", None, got[1][0] - got[0][0])
        self.all_nodes_at_once()

    def all_nodes_at_once(self):
        """Start the program on all nodes at the same moment."""
        result = {}
        for method in ("direct", "covered"):
            commands = {}
            for node in range(1, NODES + 1):
                self.testbed.drop(node)
                command = [self.testbed.path(node, "env/bin/python"), PROGRAM]
                commands[node] = command if method == "direct" else self.covered(node, "env", *command)
            before = sum(self.testbed.counters(n)["master.packets_sent"] for n in commands)
            started = time.monotonic()
            with ThreadPoolExecutor(NODES) as pool:
                list(pool.map(run, commands.values()))
            seconds = time.monotonic() - started
            result[method] = (seconds, sum(self.testbed.counters(n)["master.packets_sent"] for n in commands) - before)
        self.add(f"the same, {NODES} cold nodes at once: operations of all", "ops", result["direct"][1], result["covered"][1])
        self.add(f"the same, {NODES} cold nodes at once: wall", "s", result["direct"][0], result["covered"][0])

    # --- walking a tree -----------------------------------------------------------------------------
    def walks(self):
        tree = self.testbed.path(2, "tree")
        for title, command in (("ls -lR", ["ls", "-lR", tree]), ("find -printf", ["find", tree, "-printf", FIND_FORMAT])):
            direct, covered = self.cold_pair(2, "tree", command, 3)
            self.add(f"{title} of the synthetic tree, cold node: operations", "ops", direct[1], covered[1], "at most 16",
                     covered[1] <= 16, note="index and check included; median of 3")
            self.add(f"{title} of the synthetic tree, cold node: wall", "s", direct[0], covered[0], "at most 0.15 of direct",
                     covered[0] <= 0.15 * direct[0], note="median of 3")

    def identity(self):
        for name, title in (("env", "Python environment"), ("tree", "synthetic tree")):
            tree = self.testbed.path(3, name)
            find = ["find", tree, "-printf", FIND_FORMAT]
            direct = self.found(find)
            covered = self.found(self.covered(3, name, *find))
            self.add(f"find -printf of the {title}, sorted", "entries", len(direct), len(covered), "identical",
                     direct == covered, note=first_difference(direct, covered))
            if direct != covered:
                # Only the difference that docs/semantics.md documents for the overlay view.
                self.add("  the same, but for the sizes of directories", "entries", len(direct), len(covered), "identical",
                         without_directory_sizes(direct) == without_directory_sizes(covered))
                by_fuse = [*self.covered(3, name), *find]
                by_fuse[2:2] = ["--view", "fuse"]
                seen = self.found(by_fuse)
                self.add("  the same, all of it, with --view fuse", "entries", len(direct), len(seen), "identical", direct == seen)
            digest = [sys.executable, __file__, "--digest", tree]
            sums = [text_of(words) for words in (digest, self.covered(3, name, *digest))]
            self.add(f"every byte of the {title} (SHA-256)", "", None, None, "identical", sums[0] == sums[1])

    def found(self, words):
        return sorted(run(words, output=subprocess.PIPE).stdout.splitlines())

    # --- starting a command -----------------------------------------------------------------------
    def launch(self, index, source, paths, repeats=5, own=None, share=(), check="sample"):
        """Return the median of the seconds from spawning `quell run` to the first instruction of
        its command."""
        view = ["--view", self.view] if self.view else []
        command = own or [self.quell, "run", "--quiet", "--strict", "--check", check, *view, *share, "-i", index, "--source", source, "--", paths, "now"]
        times = []
        for _ in range(repeats + 1):
            started = time.monotonic_ns()
            times.append((int(text_of(command)) - started) / 1e9)
        return median(times[1:])

    def launches(self, paths):
        plain = self.launch(None, None, paths, own=[paths, "now"])
        self.add("start of a command without quell", "s", plain, None)
        cases = [("env", self.testbed.path(1, "env"), self.testbed.path(1, "env.quell"), 0.3), ("tree", self.testbed.path(1, "tree"),
                 self.testbed.path(1, "tree.quell"), 0.8)]
        for name, source, index, limit in cases:
            seconds = self.launch(index, source, paths)
            self.add(f"quell run to the command's first instruction, {self.options.entries[name]:,} entries", "s", None, seconds,
                     f"at most {limit} s", seconds <= limit, note="median of 5, warm")
            seconds = self.launch(index, source, paths, check="auto")
            self.add(f"the same on the first node of a job, which checks all {self.options.entries[name]:,} entries", "s", None, seconds,
                     note="median of 5, warm")
        # Another process on this node has already covered the tree, so its holder is joined.
        share = ("--share", "bench")
        with self.holder(cases[0][2], cases[0][1], share):
            seconds = self.launch(cases[0][2], cases[0][1], paths, share=share)
        self.add("the same, joining a view that is in use", "s", None, seconds, "at most 0.03 s", seconds <= 0.03,
                 note="median of 5")

    def holder(self, index, source, share=(), check="sample"):
        view = ["--view", self.view] if self.view else []
        return Running([self.quell, "run", "--quiet", "--strict", "--check", check, *view, *share, "-i", index, "--source", source, "--",
                        "sh", "-c", "echo ready; exec sleep 600"])

    def million(self, paths):
        tree = Path(self.options.million)
        index = self.scratch / "million.quell"
        run([self.quell, "index", tree, "-o", index])
        entries = self.options.entries["million"]
        self.add("index size, a million entries", "bytes/entry", None, index.stat().st_size / entries, note=f"{entries:,} entries")
        seconds = self.launch(index, tree, paths, repeats=3)
        self.add(f"quell run to the command's first instruction, {entries:,} entries", "s", None, seconds, "at most 2 s",
                 seconds <= 2, note="median of 3, warm; tree on local memory")
        used = []
        for _ in range(3):
            before = memory_in_use_mb()
            with self.holder(index, tree):
                used.append(memory_in_use_mb() - before)
            time.sleep(0.5)
        self.add("memory of the view, a million entries", "MB", None, median(used), "at most 200 MB", median(used) <= 200,
                 note="growth of slab, tmpfs and process memory of the machine; median of 3")

    # --- profiling ----------------------------------------------------------------------------------
    def profile_report(self, *arguments):
        """Return the report of `quell profile`."""
        output = self.scratch / "profile"
        run([self.quell, "profile", "--quiet", "-o", output, *arguments])
        report = json.loads((output / "report.json").read_text())
        shutil.rmtree(output)
        return report

    def machines(self):
        try:
            Machines(self.testbed, self.quell, self.scratch, 1 if self.options.quick else 3, self.add).measure()
        except Exception as error:
            # Last, so that a failure does not lose earlier results.
            self.add("boots of virtual machines", "s", None, None, "measured to the end", False, note=" ".join(f"FAILED: {error}".split())[:300])

    def logs(self, local):
        Logs(self, self.options.stand_in).rows(local)

    def logs_locally(self, local):
        Logs(self).on_local(local)

    def profile(self):
        calls = 20_000 if self.options.quick else 1_000_000
        trace = self.scratch / "synthetic.strace"
        for annotated in ([], ["--annotate"]):
            run([TOP / "testbed/synthetic-trace", trace, "--calls", str(calls), *annotated])
            costs = []
            for number in range(3):
                output = self.scratch / f"report-{number}"
                costs.append(used([self.quell, "profile", "--quiet", "--import", trace, "--shared", "/sw", "-o", output]))
                counted = json.loads((output / "report.json").read_text())["totals"]["calls"]
                if counted != calls:
                    raise Failed(f"quell profile counts {counted} calls in a trace of {calls}")
                shutil.rmtree(output)
            seconds, memory = (median(values) for values in zip(*costs))
            title = f"report of a trace of {calls:,} calls{', with strace -y' if annotated else ''}"
            note = f"200 processes, 300,000 paths, {trace.stat().st_size / 1e6:.0f} MB; median of 3"
            self.add(f"{title}: wall", "s", None, seconds, "at most 20 s", seconds <= 20, note=note)
            self.add(f"{title}: memory", "MB", None, memory, "at most 300 MB", memory <= 300)
            trace.unlink()
        self.profile_slow_down()
        self.profile_estimates()

    def profile_slow_down(self):
        """Time the import under strace and under quell profile, in turn with the import alone."""
        command = [self.testbed.path(1, "env/bin/python"), PROGRAM]
        run(command)  # warms the caches
        alone, plain, traced, stated = [], [], [], []
        for _ in range(5):
            alone.append(seconds_of(command))
            plain.append(seconds_of(["strace", "-f", "-o", "/dev/null", *command], stderr=subprocess.DEVNULL))
            tracing = self.profile_report("--", *command)["tracing"]
            traced.append(tracing["traced_s"])
            stated.append(tracing["slow_down"])
        alone_s, plain_s, traced_s = median(alone), median(plain), median(traced)
        self.add("import of six packages: seconds that strace -f adds, and quell profile", "s", plain_s - alone_s,
                 traced_s - alone_s, "at most half of strace -f", traced_s - alone_s <= 0.5 * (plain_s - alone_s),
                 note=f"alone {alone_s:.2f} s; median of 5, in turn")
        self.add("  slow-down by quell profile: measured, and as its report states it", "x", traced_s / alone_s, median(stated))

    def profile_estimates(self):
        """Compare the operations that the report estimates with the counters of a client with empty
        caches."""
        command = [self.testbed.path(1, "env/bin/python"), PROGRAM]
        report = self.profile_report("--compare", "--", *command)
        for title, scenario, words in (("direct", "direct", command), ("with the index", "index", self.covered(1, "env", *command))):
            runs = []
            for _ in range(3):
                changed = self.cold(1, words)[2]
                runs.append(sum(changed.get(f"fuse_ops.{name}", 0) for name in OF_THE_SERVER))
            measured, estimated = median(runs), report["remaining"][scenario]["metadata"]
            self.add(f"import of six packages, cold node, {title}: operations measured, and estimated", "ops", measured, estimated,
                     "within 5 % of measured", abs(estimated - measured) <= 0.05 * measured, note="median of 3")

    # --- one operation ------------------------------------------------------------------------------
    def operations(self, paths, local):
        """Cover a tree on a local disk, to measure the cost of the view itself."""
        tree = Path(local, "covered")
        for top in range(16):
            here = tree / f"d{top:02}/d00/d00"
            here.mkdir(parents=True, exist_ok=True)
            for name in range(64):
                (here / f"f{name:02}").write_bytes(b"0\n")
        here = tree / "d00/d00/d00"
        index = Path(local, "covered.quell")
        run([self.quell, "index", "--quiet", tree, "-o", index])
        kind = text_of(["findmnt", "-n", "-o", "FSTYPE", "-T", here]).strip()
        view = ["--view", self.view] if self.view else []
        cover = [self.quell, "run", "--quiet", "--strict", *view, "-i", index, "--"]
        for operation, name, limit, title in (("negative", "missing", 1.5, "lookup of a missing name, repeated"),
                                              ("stat", "f00", 1.5, "stat, repeated"), ("open", "f00", 3, "open and close")):
            direct, covered = [], []
            for _ in range(5):
                direct.append(float(text_of([paths, operation, here / name])))
                covered.append(float(text_of([*cover, paths, operation, here / name])))
            d, c = median(direct), median(covered)
            self.add(f"{title}: covered against local {kind}", "ns", d, c, f"at most {limit} of local", c <= limit * d)


class Running:
    """A command that runs during the `with` block. It has started when it has printed a line."""

    def __init__(self, command):
        self.command = [str(word) for word in command]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        if self.process.stdout.readline().strip() != b"ready":
            self.process.kill()
            self.process.wait()
            raise Failed(f"no start of: {' '.join(self.command)}")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def memory_in_use_mb():
    """Return the memory in use by the kernel and by processes in MB, without the page cache."""
    fields = dict(re.findall(r"^(\w+):\s+(\d+)", Path("/proc/meminfo").read_text(), re.M))
    return sum(int(fields[name]) for name in ("Slab", "Shmem", "AnonPages", "PageTables", "KernelStack")) * 1024 / 1e6


def without_directory_sizes(lines):
    """Split FIND_FORMAT's lines into words, without the sizes of directories. Counted from the
    right, because paths may contain blanks."""
    split = [line.split(b" ") for line in lines]
    return [words[:-4] + words[-3:] if words[-6] == b"d" else words for words in split]


def first_difference(left, right):
    """Describe the first difference between two sorted listings."""
    if left == right:
        return ""
    only = sorted(set(left) ^ set(right))
    return f"{len(only)} lines differ, first {only[0].decode(errors='replace')[:120]}" if only else "order differs"


def digest(tree):
    """Print one SHA-256 of the names and bytes of all files and links below `tree`."""
    files = sorted(os.path.join(base, name) for base, dirs, names in os.walk(os.fsencode(tree)) for name in names + dirs)

    def one(path):
        if os.path.islink(path):
            return b"link " + os.readlink(path)
        if not os.path.isfile(path):
            return b"other"
        with open(path, "rb") as file:
            total = hashlib.sha256()
            while block := file.read(1 << 20):
                total.update(block)
            return total.digest()

    total = hashlib.sha256()
    with ThreadPoolExecutor(4) as pool:  # small files are limited by latency
        for path, part in zip(files, pool.map(one, files)):
            total.update(path + b"\0" + part)
    print(len(files), total.hexdigest())


def used(command):
    """Run a command and return its (seconds, maximum memory in MB)."""
    started = time.monotonic()
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Failed(f"exit code {process.returncode} from: {' '.join(map(str, command))}")
    return time.monotonic() - started, usage.ru_maxrss * 1024 / 1e6


# --- the result -----------------------------------------------------------------------------------
def line_of(row):
    ratio = row.ratio()
    verdict = {True: "met", False: "NOT MET", None: ""}[row.met]
    shown = f"{ratio:.3f}" if ratio is not None else "-"
    line = (f"{row.work:72} {number(row.direct, row.unit):>12} {number(row.covered, row.unit):>18} {shown:>7}  "
            f"{row.bar or '':40} {verdict:7}")
    return f"{line} {row.note}".rstrip()


def report(facts, results, made_by):
    lines = [f"Quell, direct against covered on a MooseFS with {facts['nodes']} nodes. Made by: {made_by}", ""]
    lines += [f"{name}: {value}" for name, value in facts.items()]
    for view, rows in results.items():
        lines += ["", f"view: {view}",
                  f"{'work':72} {'direct':>12} {'covered':>18} {'ratio':>7}  {'bar':40} verdict", "-" * 165]
        lines += [line_of(row) for row in rows]
        judged = [row.met for row in rows if row.met is not None]
        lines.append(f"{sum(judged)} of {len(judged)} bars met")
    return "\n".join(lines) + "\n"


def keep(name, made_by, facts, results):
    """Write the results to docs/benchmarks/NAME.txt, .json and .svg."""
    to = TOP / "docs/benchmarks" / name
    to.parent.mkdir(parents=True, exist_ok=True)
    to.with_suffix(".txt").write_text(report(facts, results, made_by))
    to.with_suffix(".json").write_text(json.dumps(
        {"facts": facts, "results": {view: [row.as_dict() for row in rows] for view, rows in results.items()}}, indent=1) + "\n")
    to.with_suffix(".svg").write_text(plot(facts, results))
    print(f"Kept in {to}.txt, .json and .svg")


def plot(facts, results):
    """Plot covered / direct (for rates, direct / covered) as SVG bars on a logarithmic scale, for
    each row that has both."""
    bars = [(view, row) for view, rows in results.items() for row in rows if row.cost() and row.unit != "entries"]
    low, left, width, step = 0.0005, 520, 420, 24
    height = 70 + step * len(bars)

    def across(ratio):
        clipped = min(max(ratio, low), 4)
        return left + width * (math.log10(clipped) - math.log10(low)) / (math.log10(4) - math.log10(low))

    def words(text):
        return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{height}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           '<text x="10" y="20" font-size="15">Covered / direct, for rates direct / covered (left is better; the line is equal; blue: bar met, orange: not met)</text>',
           f'<text x="10" y="38" fill="#666">{words(facts["machine"])}</text>']
    for tick in (0.001, 0.01, 0.1, 1):
        x = across(tick)
        out.append(f'<line x1="{x:.0f}" y1="50" x2="{x:.0f}" y2="{height - 14}" stroke="{"#000" if tick == 1 else "#ddd"}"/>')
        out.append(f'<text x="{x:.0f}" y="{height - 2}" text-anchor="middle" fill="#666">{tick:g}</text>')
    for i, (view, row) in enumerate(bars):
        y = 56 + i * step
        colour = {True: "#0072b2", False: "#d55e00", None: "#999"}[row.met]  # safe for colour-blind people
        title = row.work.strip() + (f" [{view}]" if len(results) > 1 else "")
        out.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{words(title)}</text>')
        out.append(f'<rect x="{left}" y="{y}" width="{max(across(row.cost()) - left, 1):.0f}" height="16" fill="{colour}"/>')
        out.append(f'<text x="{across(row.cost()) + 5:.0f}" y="{y + 12}">{row.cost():.3g}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


# --- the run --------------------------------------------------------------------------------------
def set_up(testbed, options):
    """Create the two trees on MooseFS, concurrently from two nodes, and the million entries in
    local memory."""
    if not options.only:
        print("Making the Python environment, the synthetic tree and a million entries (about two minutes) ...", flush=True)
    shape, many = (["4", "3", "17"],) * 2 if options.quick else (["16", "3", "17"], ["16", "3", "228"])
    synthetic = TOP / "testbed/synthetic-tree"
    environment = ('"$0" -m venv "$1" && exec "$1/bin/pip" install --quiet --disable-pip-version-check --no-deps '
                   '--only-binary :all: -r "$2"')
    commands = [["sh", "-c", environment, sys.executable, testbed.path(1, "env"), TOP / "demo/requirements.txt"],
                [synthetic, testbed.path(2, "tree"), *shape], [synthetic, options.million, *many, "--empty"]]
    directories = {"env": testbed.path(1, "env"), "tree": testbed.path(1, "tree"), "million": options.million}
    if options.only:
        kept = {"batch": 0, "blob": 0, "blob-transfers": 0, "boot": 1, "job": 1, "log": 0, "mpi": 0, "one-writer": 0, "pool": 0, "preload": 0, "programs": 0, "start": 1}[options.only]
        commands, directories = commands[:kept], dict(list(directories.items())[:kept])
    running = []
    try:
        # Each in a session of its own, so that a signal to this program's group does not reach it:
        # it is ended before the test bed.
        for command in commands:
            running.append(subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, start_new_session=True))
        for command, process in zip(commands, running):
            if process.wait() != 0:
                raise Failed(f"exit code {process.returncode} from: {' '.join(map(str, command))}")
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    options.entries = {name: 1 + sum(len(d) + len(f) for _, d, f in os.walk(directory)) for name, directory in directories.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--view", action="append", metavar="VIEW",
                        help="force a view; may be given several times to compare them (default: the automatic one)")
    parser.add_argument("--quick", action="store_true", help="small trees, to try the benchmark itself; results are not kept")
    parser.add_argument("--only", choices=["batch", "blob", "blob-transfers", "boot", "job", "log", "mpi", "one-writer", "pool", "preload", "programs", "start"], help="these rows alone; results are not kept")
    parser.add_argument("--keep", action="store_true", help="with --only PART: results are kept as docs/benchmarks/PART.*")
    parser.add_argument("--program", action="append", choices=["node", "java", "r", "compiler", "python", "mpi", "six_packages"],
                        help="with --only programs: this program alone; may be given several times")
    parser.add_argument("--stand-in", action="store_true",
                        help="with --only log: plain directories in place of log mounts, to try the benchmark itself")
    parser.add_argument("--digest", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.digest:
        return digest(options.digest)
    quell = os.environ.get("QUELL") or str(TOP / "target/dist/quell")
    if not os.access(quell, os.X_OK):
        raise Failed(f"there is no program {quell}; build it or name another one in $QUELL")

    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="quell-bench.") as scratch, \
            tempfile.TemporaryDirectory(prefix="quell-bench.", dir=memory) as in_memory, \
            tempfile.TemporaryDirectory(prefix="quell-bench.", dir="/var/tmp") as local:
        scratch = Path(scratch)
        options.million = str(Path(in_memory, "million"))
        os.environ["MPLCONFIGDIR"] = str(scratch / "matplotlib")
        paths = scratch / "paths"
        run(["cc", "-O2", "-Wall", "-o", paths, TOP / "benches/micro/paths.c"])
        nodes = NODES
        if options.only == "job":
            nodes, os.environ["TESTBED_MOUNT_OPTIONS"] = JOB_NODES, JOB_CACHES
        with Testbed(scratch / "moosefs", nodes).up() as testbed:
            set_up(testbed, options)
            if options.only not in WITHOUT_VIEWS:
                run([testbed.path(1, "env/bin/python"), PROGRAM])  # creates matplotlib's font list once
            trees = "; ".join(f"{name} {entries:,} entries" for name, entries in options.entries.items())
            facts = {
                "machine": machine(),
                "nodes": nodes,
                "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
                "quell": text_of([quell, "--version"]).strip(),
                "load before the run": f"{os.getloadavg()[0]:.1f} (other work on the machine makes times longer)",
                "idle node": f"{testbed.idle_rate(1):.1f} messages/s to the master to stay registered; they are part of all counts",
                "trees": trees or "none",
                "options of the mounts": os.environ.get("TESTBED_MOUNT_OPTIONS") or "none",
            }
            print("\n".join(f"{name}: {value}" for name, value in facts.items()))
            results = {}
            for view in [] if options.only in WITHOUT_VIEWS else options.view or [None]:
                bench = Bench(testbed, quell, scratch, view, options)
                print(f"\nview: {view or 'automatic'}", flush=True)
                if options.only:
                    run([quell, "index", "--quiet", testbed.path(1, "env"), "-o", testbed.path(1, "env.quell")])
                else:
                    bench.build_indexes()
                taken = view_of(bench.covered(1, "env"), testbed.path(1, "env")) or "NONE: the tree was not covered"
                results[f"{view or 'automatic'} ({taken})"] = bench.rows
                if options.only == "start":
                    bench.program_start()
                    continue
                BootImages(bench, PROGRAM).rows(paths, local, [sys.executable, __file__, "--digest", testbed.path(3, "env")])
                if options.only:
                    continue
                bench.program_start()
                bench.walks()
                bench.identity()
                bench.launches(paths)
                bench.operations(paths, local)
                bench.million(paths)
                bench.profile()
            if not options.only:  # benches/macro/machines.py measures these alone; they have one view
                bench.machines()
            if options.only in WITHOUT_VIEWS:
                bench = Bench(testbed, quell, scratch, None, options)
                results[WITHOUT_VIEWS[options.only]] = bench.rows
            if options.only in (None, "preload"):
                Preload(bench).rows(local)
            if options.only == "preload":
                bench.logs_locally(local)
            if options.only in (None, "programs"):
                Programs(bench, local).rows()
            if options.only in (None, "mpi"):
                Mpi(bench).rows(local)
            if options.only in (None, "pool"):
                Pool(bench).rows(local)
            if options.only in (None, "batch"):
                Batch(bench, local).rows()
            if options.only in (None, "blob"):
                Blob(bench, local).rows()
            if options.only == "job":
                Job(bench, local, PROGRAM, paths).rows()
            if options.only == "blob-transfers":
                Blob(bench, local).transfers()
            first_log_row = len(bench.rows)
            if options.only in (None, "log"):
                bench.logs(local)
            if options.only in (None, "log", "one-writer"):
                OneWriter(Logs(bench, options.stand_in)).rows()
    made_by = f"scripts/bench --only {options.only}" if options.only else "make bench"
    print("\n" + report(facts, results, made_by))
    if options.quick or options.only and not options.keep:
        print("A part alone: docs/benchmarks was not touched.")
    else:
        keep(options.only or "latest", made_by, facts, results)
        if not options.only:
            keep("log", made_by, facts, {LOG_MOUNTS: bench.rows[first_log_row:]})
        with tempfile.TemporaryDirectory(prefix="quell-bench.") as fonts:
            run([sys.executable, HERE / "headline.py"], env={**os.environ, "MPLCONFIGDIR": fonts})
    return 0 if all(row.met is not False for rows in results.values() for row in rows) else 1


if __name__ == "__main__":
    stop_on_signals()
    try:
        sys.exit(main())
    except Failed as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(3)
    except KeyboardInterrupt:
        sys.exit(130)
