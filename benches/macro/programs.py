"""Boot images of six programs on a quiet and on a busy node, measured for bench.py.

Each program lies on MooseFS three directories below the mount point and is started on a node with
empty caches: directly, with its index and boot image on a quiet node, and with busy loops beside
it. Operations are counted as in boot.py. With `--above copy` the directories above the tree are
copies, so that no lookup is repeated (docs/semantics.md).
"""
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from boot import NODE, READ_BYTES, BootImages
from measure import median, run, text_of

REPEATS = 3
BUSY_LOOPS = 6
METADATA_MAX = 20
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
PYTHON_PROGRAM = "import numpy, scipy.stats, pandas, matplotlib.pyplot; print(numpy.arange(9).sum())"
MPI_PROGRAM = "from mpi4py import MPI; import numpy; print(MPI.COMM_WORLD.allreduce(numpy.arange(4).sum()))"


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


class Programs:
    """Measures the programs and adds their rows to a benchmark."""

    def __init__(self, bench):
        self.bench, self.testbed = bench, bench.testbed
        # For its counts and for the environments of new nodes; its own program is not used.
        self.images = BootImages(bench, None)
        self.site = self.testbed.path(NODE, "apps/site")
        self.site.mkdir(parents=True)

    # --- the programs ----------------------------------------------------------------------------
    def node(self, tree):
        if not shutil.which("npm"):
            return "npm is not installed"
        tree.mkdir()
        local = Path(self.bench.scratch, "npm")
        local.mkdir()
        run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", local, "eslint", "webpack", "@babel/core", "@babel/preset-env"])
        run(["cp", "-a", local / "node_modules", tree])
        (tree / "main.js").write_text(NODE_PROGRAM)
        return ["node", tree / "main.js"]

    def java(self, tree):
        java, javac = shutil.which("java"), shutil.which("javac")
        if not java or not javac:
            return "there is no JDK"
        run(["cp", "-a", Path(java).resolve().parents[1], tree])
        (tree / "Main.java").write_text(JAVA_PROGRAM)
        # Compiled at each start.
        return [tree / "bin/java", tree / "Main.java"]

    def r(self, tree):
        packages = Path("/usr/lib/R/site-library")
        if not (packages / "dplyr").exists():
            return "r-cran-dplyr is not installed"
        run(["cp", "-a", packages, tree])
        return ["env", f"R_LIBS={tree}", "Rscript", "-e", f"suppressMessages(library(dplyr, lib.loc='{tree}')); cat(nrow(filter(tibble(a=1:9), a > 3)))"]

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
        return ["g++", "-nostdinc++", "-isystem", tree / version, "-fsyntax-only", tree / "main.cpp"]

    def python(self, tree):
        run([sys.executable, "-m", "venv", tree])
        run([tree / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:",
             "numpy", "scipy", "pandas", "matplotlib"])
        return [tree / "bin/python", "-c", PYTHON_PROGRAM]

    def mpi(self, tree):
        needed = [DEBIAN_MODULES / name for name in ("mpi4py", "numpy")]
        if not shutil.which("mpirun") or not all(path.exists() for path in needed):
            return "Open MPI, mpi4py or numpy of the distribution is not installed"
        tree.mkdir()
        for path in needed:
            run(["cp", "-a", path, tree])
        # One mpirun in the view: its ranks share it.
        return ["env", f"PYTHONPATH={tree}", "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
                "/usr/bin/python3", "-c", MPI_PROGRAM]

    # --- the measurement -------------------------------------------------------------------------
    def cold(self, command, loops=0):
        """Return the medians of (seconds, metadata, data), the outputs, and the counts by name."""
        got, outputs, names = [], set(), {}
        for _ in range(REPEATS):
            environment = self.images.fresh()
            self.testbed.drop(NODE)
            with busy(loops):
                numbers, names, output = self.images.measured(command, environment)
            got.append(numbers)
            outputs.add(output)
        return [median(values) for values in zip(*got)], outputs, ", ".join(f"{name} {count}" for name, count in names.items())

    def rows_of(self, title, make):
        quell, add = self.bench.quell, self.bench.add
        tree = self.site / make.__name__
        command = make(tree)
        if isinstance(command, str):
            add(f"{title}, boot image", "ops", None, None, note=f"SKIPPED: {command}")
            return
        run(command)  # writes caches beside the tree or in it
        index, image = self.site / f"{make.__name__}.quell", self.site / f"{make.__name__}.boot"
        run([quell, "index", "--quiet", tree, "-o", index])
        run([quell, "record", "--quiet", "-i", index, "-o", image, "--", *command])
        covered = [quell, "run", "--quiet", "--strict", "--check", "sample", "--above", "copy", "-i", index, "-b", image, "--", *command]
        direct, outputs, _ = self.cold(command)
        limit = image.stat().st_size // READ_BYTES + 20
        for place, loops in (("quiet node", 0), (f"{BUSY_LOOPS} busy loops", BUSY_LOOPS)):
            (seconds, metadata, data), lines, names = self.cold(covered, loops)
            outputs |= lines
            work = f"{title}, boot image, {place}"
            add(f"{work}: metadata operations", "ops", direct[1], metadata, f"at most {METADATA_MAX}", metadata <= METADATA_MAX,
                note=f"median of {REPEATS}; the last: {names}")
            add(f"{work}: data operations", "ops", direct[2], data, f"at most size / 128 KiB + 20 ({limit})", data <= limit)
            add(f"{work}: wall", "s", direct[0], seconds, note="direct is on a quiet node")
        add(f"{title}: output", "", None, None, "identical", len(outputs) == 1)
        shutil.rmtree(tree)
        # With --above copy, each file beside the tree of the next program takes a lookup.
        index.unlink()
        image.unlink()

    def rows(self):
        for title, make in (("node application", self.node), ("Java", self.java), ("R with dplyr", self.r), ("C++ headers", self.compiler),
                            ("Python stack", self.python), ("MPI program", self.mpi)):
            self.rows_of(title, make)
