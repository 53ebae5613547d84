"""Boot images of seven programs, measured for bench.py.

Each program lies on MooseFS three directories below the mount point and is started on a node with
empty caches: directly, and with its index and boot image on a quiet node and with busy loops beside
it. Operations are counted as in boot.py. With `--above copy` the directories above the tree are
copies, so that no lookup is repeated (docs/semantics.md). Further rows: the program with the
commands that `quell profile` prints; with a latency of the network, beside a squashfs image and a
local disk; and, for Python, after the upgrade of a package.
"""
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from boot import IMAGES, MOUNTED, NODE, READ_BYTES, BootImages, read_at_start, why_not
from measure import Failed, median, run, seconds_of, text_of

REPEATS = 3
BUSY_REPEATS = 2  # of which the worst counts
BUSY_LOOPS = 6
METADATA_MAX = 20
LATENCIES_US = (200, 500, 2000)
LATENCY_OF_BARS_US = 500
SQUASHFS_MAX, LOCAL_MAX = 1.0, 1.3
ABSORBED_MIN = 0.9
PACKAGES = ["pillow", "pandas"]  # that are upgraded, one after the other
DEBIAN_MODULES = Path("/usr/lib/python3/dist-packages")
NODE_PROGRAM = """
const babel = require('@babel/core');
const preset = require.resolve('@babel/preset-env');
const code = babel.transformSync('const f = async (x) => x ?? 1', {presets: [preset], configFile: false, babelrc: false}).code;
const {ESLint} = require('eslint');
new ESLint({cwd: '/', overrideConfigFile: true}).lintText('let a = 1').then((found) =>
  console.log(code.length, found.length, typeof require('webpack')));
"""
JAVA_PROGRAM = "public class Main { public static void main(String[] a) { System.out.println(a.length); } }"
DEMO = Path(__file__).resolve().parent.parent.parent / "demo"
PYTHON_PROGRAM = "import numpy, scipy.stats, pandas, matplotlib.pyplot; print(numpy.arange(9).sum())"
MPI_PROGRAM = """
from mpi4py import MPI
import numpy
total = MPI.COMM_WORLD.allreduce(numpy.arange(4).sum())
if MPI.COMM_WORLD.rank == 0:
    print(total)
"""


@contextmanager
def busy(loops):
    """Keep the processors busy with endless loops."""
    running = []
    try:
        for _ in range(loops):
            running.append(subprocess.Popen(["sh", "-c", "while :; do :; done"]))
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def reclaimed_mb():
    """Return the memory that the kernel has taken from its page cache for other uses, in MB."""
    counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return sum(int(counts[name]) for name in ("pgsteal_kswapd", "pgsteal_direct")) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Programs:
    """Measures the programs and adds their rows to a benchmark."""

    def __init__(self, bench, local):
        self.bench, self.testbed, self.local = bench, bench.testbed, Path(local)
        # For its counts and for the environments of new nodes; its own program is not used.
        self.images = BootImages(bench, None)
        self.site = self.testbed.path(NODE, "apps/site")
        self.site.mkdir(parents=True)
        self.repeats = 1 if bench.options.quick else REPEATS
        # The directory in which printed commands find the program.
        self.bin = Path(bench.scratch, "bin")
        self.bin.mkdir()
        (self.bin / "quell").symlink_to(Path(bench.quell).resolve())

    # --- the programs ----------------------------------------------------------------------------
    # Each method creates the tree of a program, and returns a function that returns the command for
    # a location of the tree, or the reason why the program cannot be measured here.
    def node(self, tree):
        if not shutil.which("npm"):
            return "npm is not installed"
        tree.mkdir()
        local = Path(self.bench.scratch, "npm")
        local.mkdir(exist_ok=True)
        run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", local, "eslint", "webpack", "@babel/core", "@babel/preset-env"])
        run(["cp", "-a", local / "node_modules", tree])
        (tree / "main.js").write_text(NODE_PROGRAM)
        return lambda at: ["node", at / "main.js"]

    def java(self, tree):
        java, javac = shutil.which("java"), shutil.which("javac")
        if not java or not javac:
            return "there is no JDK"
        run(["cp", "-a", Path(java).resolve().parents[1], tree])
        (tree / "Main.java").write_text(JAVA_PROGRAM)
        # Compiled at each start.
        return lambda at: [at / "bin/java", at / "Main.java"]

    def r(self, tree):
        packages = Path("/usr/lib/R/site-library")
        if not (packages / "dplyr").exists():
            return "r-cran-dplyr is not installed"
        run(["cp", "-a", packages, tree])
        return lambda at: ["env", f"R_LIBS={at}", "Rscript", "-e",
                           f"suppressMessages(library(dplyr, lib.loc='{at}')); cat(nrow(filter(tibble(a=1:9), a > 3)))"]

    def compiler(self, tree):
        headers = Path("/usr/include/c++")
        if not shutil.which("g++") or not headers.exists():
            return "g++ is not installed"
        run(["cp", "-a", headers, tree])
        version = text_of(["g++", "-dumpversion"]).strip()
        machine = text_of(["g++", "-dumpmachine"]).strip()
        run(["cp", "-a", f"/usr/include/{machine}/c++/{version}/bits/.", tree / version / "bits"])
        for directory in Path(f"/usr/include/{machine}/c++/{version}").iterdir():
            if directory.name != "bits":
                run(["cp", "-a", directory, tree / version])
        (tree / "main.cpp").write_text("#include <bits/stdc++.h>\nint main() {}\n")
        return lambda at: ["g++", "-nostdinc++", "-isystem", at / version, "-fsyntax-only", at / "main.cpp"]

    def pip(self, tree, *arguments):
        run([tree / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:", *arguments])

    def version_of(self, tree, package):
        return text_of([tree / "bin/python", "-c", f"from importlib.metadata import version; print(version('{package}'))"]).strip()

    def python(self, tree):
        run([sys.executable, "-m", "venv", tree])
        self.pip(tree, "numpy", "scipy", "pandas", "matplotlib")
        self.new_versions = {package: self.version_of(tree, package) for package in PACKAGES}
        self.pip(tree, "--no-deps", *(f"{package}<{version}" for package, version in self.new_versions.items()))
        return lambda at: [at / "bin/python", "-c", PYTHON_PROGRAM]

    def six_packages(self, tree):
        """Return the program of `make demo`."""
        run([sys.executable, "-m", "venv", tree])
        self.pip(tree, "--no-deps", "-r", DEMO / "requirements.txt")
        return lambda at: [at / "bin/python", DEMO / "program.py"]

    def mpi(self, tree):
        needed = [DEBIAN_MODULES / name for name in ("mpi4py", "numpy")]
        if not shutil.which("mpirun") or not all(path.exists() for path in needed):
            return "Open MPI, mpi4py or numpy of the distribution is not installed"
        tree.mkdir()
        for path in needed:
            run(["cp", "-a", path, tree])
        # One mpirun in the view: its ranks share it.
        return lambda at: ["env", f"PYTHONPATH={at}", "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
                           "/usr/bin/python3", "-c", MPI_PROGRAM]

    # --- the measurement -------------------------------------------------------------------------
    def cold(self, command, loops=0, repeats=None, middle=median, **options):
        """Return the medians, or other values, of (seconds, metadata, data), the outputs, and the
        last counts by name."""
        got, outputs, names = [], set(), {}
        for _ in range(repeats or self.repeats):
            environment = {**self.images.fresh(), **options}
            self.testbed.drop(NODE)
            with busy(loops):
                numbers, names, output = self.images.measured(command, environment)
            got.append(numbers)
            outputs.add(output)
        return [middle(values) for values in zip(*got)], outputs, ", ".join(f"{name} {count}" for name, count in names.items())

    def rows_of(self, title, make):
        add = self.bench.add
        tree = self.site / make.__name__
        index, image = (self.site / f"{make.__name__}.{suffix}" for suffix in ("quell", "boot"))
        try:
            command_at = make(tree)
            if isinstance(command_at, str):
                add(f"{title}, boot image", "ops", None, None, note=f"SKIPPED: {command_at}")
                return
            self.measure(title, tree, index, image, command_at)
        except (Failed, OSError, subprocess.SubprocessError) as error:
            # The other programs are measured all the same.
            add(f"{title}", "", None, None, "measured to the end", False, note=" ".join(f"FAILED: {error}".split())[:300])
        finally:
            self.remove(tree, index, image)

    def remove(self, *paths):
        """Remove files and directories: with --above copy, an entry beside the tree of the next
        program may take a lookup."""
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def measure(self, title, tree, index, image, command_at):
        quell = self.bench.quell
        command = command_at(tree)
        for _ in range(2):  # writes caches beside the tree or in it
            run(command)
        run([quell, "index", "--quiet", tree, "-o", index])
        # Threads and timers read other blocks in each run, most of all on a busy node.
        for options, loops in (([], 0), (["--merge"], BUSY_LOOPS)):
            with busy(loops):
                run([quell, "record", "--quiet", *options, "-i", index, "-o", image, "--", *command])
        covered = [quell, "run", "--quiet", "--strict", "--check", "sample", "--above", "copy", "-i", index, "-b", image, "--", *command]
        direct, outputs, _ = self.cold(command, repeats=1)
        by_hand = self.boot_rows(title, image, covered, direct, outputs)
        self.advice_row(title, command, direct, by_hand, outputs)
        self.latency_rows(title, tree, command_at, covered, outputs)
        self.bench.add(f"{title}: output, all ways", "", None, None, "identical", len(outputs) == 1)
        if title == "Python stack":
            for package in PACKAGES:
                self.upgrade_row(title, tree, index, package, command, covered)

    def boot_rows(self, title, image, covered, direct, outputs):
        """Return the medians on a quiet node."""
        add, quiet = self.bench.add, None
        limit, start = (size // READ_BYTES + 20 for size in (image.stat().st_size, read_at_start(self.bench.quell, image)))
        busy_repeats = min(self.repeats, BUSY_REPEATS)
        for place, loops, repeats, middle, of in (("quiet node", 0, self.repeats, median, f"median of {self.repeats}"),
                                                  (f"{BUSY_LOOPS} busy loops", BUSY_LOOPS, busy_repeats, max, f"worst of {busy_repeats}")):
            before = reclaimed_mb()
            found, lines, names = self.cold(covered, loops, repeats, middle)
            (seconds, metadata, data), quiet = found, quiet or found
            outputs |= lines
            work = f"{title}, boot image, {place}"
            # Recorded blocks that the kernel takes from its page cache are requested again.
            add(f"{work}: metadata operations", "ops", direct[1], metadata, f"at most {METADATA_MAX}", metadata <= METADATA_MAX,
                note=f"{of}; page cache reclaimed meanwhile: {reclaimed_mb() - before:,.0f} MB; the last: {names}")
            add(f"{work}: data operations", "ops", direct[2], data, f"at most size / 128 KiB + 20 ({limit})", data <= limit,
                note=f"without the unread blocks of the image, the limit would be {start}")
            add(f"{work}: wall", "s", direct[0], seconds, note="direct is on a quiet node, once")
        return quiet

    def advice_row(self, title, command, direct, by_hand, outputs):
        """Follow the commands that `quell profile` prints, in their order, and compare the run with
        the fewest operations with the boot image of the whole tree."""
        report = self.site / "profile"
        try:
            environment = {**self.images.fresh(), "PATH": f"{self.bin}:{os.environ['PATH']}"}
            run([self.bench.quell, "profile", "--quiet", "-o", report, "--", *command], env=environment)
            steps = [step["command"] for step in json.loads((report / "report.json").read_text())["next"]]
            best = None
            for step in steps:
                words = ["sh", "-c", step]
                if step.startswith("quell run "):
                    middle, lines, _ = self.cold(words, repeats=1, PATH=environment["PATH"])
                    outputs |= lines
                    best = min(best or middle, middle, key=lambda run: sum(run[1:]))
                elif step.startswith(("quell index ", "quell record ", "quell verify ")):
                    run(words, env=environment)
            if best is None:
                raise Failed(f"quell profile prints no command that runs the program: {steps}")
            left, at_best, all_of_them = (sum(run[1:]) for run in (best, by_hand, direct))
            absorbed = (all_of_them - left) / (all_of_them - at_best)
            self.bench.add(f"{title}: operations by hand, and with the commands that quell profile prints", "ops", at_best, left,
                           f"at least {ABSORBED_MIN} of by hand absorbed", absorbed >= ABSORBED_MIN,
                           note=f"{absorbed:.3f} of by hand; {all_of_them:,.0f} directly; wall {by_hand[0]:.2f} and {best[0]:.2f} s")
        finally:
            self.remove(report)

    def latency_rows(self, title, tree, command_at, covered, outputs):
        """Compare the wall times with latencies of the network: directly, with the index, with index
        and boot image, from a squashfs image, and from a local disk."""
        kind = "squashfs"
        squashed, copy, point = self.site / f"tree.{kind}", self.local / "tree", self.images.point
        run(["cp", "-a", tree, copy])
        command = command_at(tree)
        at = covered.index("-b")
        ways = {"direct": command, "index": [*covered[:at], *covered[at + 2:]], "local": command_at(copy), "boot": covered}
        if not why_not(kind):
            run([word.format(tree=tree, image=squashed) for word in IMAGES[kind]])
            ways[kind] = ["unshare", "--mount", "sh", "-c", MOUNTED, kind, squashed, point, *command_at(point)]
        try:
            run(ways["local"])  # into the page cache
            for latency_us in LATENCIES_US:
                self.testbed.delay(NODE, latency_us)
                self.add_latency_rows(f"{title}, {latency_us / 1000} ms of latency", self.in_turn(ways, outputs), latency_us == LATENCY_OF_BARS_US, kind)
        finally:
            self.testbed.delay(NODE, 0)
            self.remove(squashed, copy)

    def in_turn(self, ways, outputs):
        """Return the median of the wall times for each way. The two slow ones are run once."""
        got = {way: [] for way in ways}
        for repeat in range(self.repeats):
            for way, command in ways.items():
                if way == "local":
                    got[way].append(seconds_of(command))
                elif repeat == 0 or way not in ("direct", "index"):
                    (seconds, *_), lines, _ = self.cold(command, repeats=1)
                    got[way].append(seconds)
                    outputs |= lines
        return {way: median(values) for way, values in got.items()}

    def add_latency_rows(self, work, seconds, has_bars, kind):
        """Add rows that compare the boot image with each other way."""
        boot, note = seconds["boot"], f"median of {self.repeats}, in turn"
        once = "direct and index were run once"
        self.bench.add(f"{work}: directly, and boot image: wall", "s", seconds["direct"], boot, note=f"{note}; {once}")
        self.bench.add(f"{work}: index alone, and boot image: wall", "s", seconds["index"], boot, note=f"{note}; {once}")
        for way, limit, place in ((kind, SQUASHFS_MAX, "squashfs mounted by root"), ("local", LOCAL_MAX, "local disk, warm")):
            title = f"{work}: {place}, and boot image: wall"
            if way not in seconds:
                self.bench.add(title, "s", None, boot, note=f"SKIPPED: {why_not(kind)}")
                continue
            bar = (f"at most {limit} of it", boot <= limit * seconds[way]) if has_bars else ()
            self.bench.add(title, "s", seconds[way], boot, *bar, note=note)

    def upgrade_row(self, title, tree, index, package, command, covered):
        old, new = self.version_of(tree, package), self.new_versions[package]
        self.pip(tree, "--no-deps", f"{package}=={new}")
        run(command)
        run([self.bench.quell, "index", "--quiet", "--update", index])
        run([self.bench.quell, "record", "--quiet", "--update", "--changed", "-i", index, "-o", index.with_suffix(".boot")])
        direct, left = (sum(self.cold(words, repeats=repeats)[0][1:]) for words, repeats in ((command, 1), (covered, self.repeats)))
        absorbed = 1 - left / direct
        self.bench.add(f"{title} after an upgrade of {package}, updated index, changed files read again: operations", "ops", direct, left,
                       f"at least {ABSORBED_MIN} absorbed", absorbed >= ABSORBED_MIN,
                       note=f"{absorbed:.3f} absorbed; {package} {old}, then {new}; median of {self.repeats}")

    def rows(self):
        programs = (("node application", self.node), ("Java", self.java), ("R with dplyr", self.r), ("C++ headers", self.compiler),
                    ("Python stack", self.python), ("MPI program", self.mpi), ("six packages", self.six_packages))
        chosen = self.bench.options.program or [make.__name__ for _, make in programs]
        for title, make in programs:
            if make.__name__ in chosen:
                self.rows_of(title, make)
