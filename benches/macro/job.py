"""One reader for a job (`quell run --job`), measured for bench.py.

The nodes are network namespaces with a MooseFS mount each, which all have at the same path, in a
mount namespace of the command. They find one another through `quell job run`. Each measurement
begins with empty caches and without a runtime directory of Quell. The client counts its requests,
as in boot.py; those of the mount(8) with which a node gets its path are measured before, and
subtracted.

A start is the time from the first command to the last program that executes its first instruction.
All nodes share the processors of this machine, which on a cluster work at the same time. Therefore
the processor time that the machine used for the further nodes, divided by its processors, is
subtracted, and stated in the row.
"""
import math
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from boot import metadata_of
from measure import Failed, median, run

NODES = 16
COUNTS = (1, 4, NODES)
SUPERVISORS = 64
REPEATS = 3
OPERATIONS_OF_A_NODE = 2
DOUBLING_S = 0.010
AT_PATH = 'mount --bind "$0" "$1" && shift && exec "$@"'
# Waits for the end of its input, because the files are served as long as the programs run.
UNTIL_END = '"$@" && echo && read -r end'


def busy_s():
    """Return the processor time that the machine has used so far, in seconds."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


class Job:
    """Measures jobs and adds their rows to a benchmark."""

    def __init__(self, bench, local, program, paths):
        self.bench, self.testbed, self.program, self.paths = bench, bench.testbed, program, paths
        self.shared = Path(local, "shared")
        self.shared.mkdir()
        self.scratch = Path(tempfile.mkdtemp(prefix="job.", dir=bench.scratch))

    def on_node(self, node, *command):
        script = Path(__file__).resolve().parents[2] / "testbed/moosefs"
        return [script, "exec", node, "unshare", "--mount", "sh", "-c", AT_PATH, self.testbed.path(node), self.shared, *command]

    def environment(self, name, **more):
        runtime = self.scratch / f"runtime-{name}"
        shutil.rmtree(runtime, ignore_errors=True)
        runtime.mkdir(mode=0o700)
        state = str(self.shared / "state")
        return {**os.environ, "TESTBED": str(self.testbed.directory), "QUELL_RUNTIME_DIR": str(runtime), "XDG_STATE_HOME": state, **more}

    def call(self, node, *command):
        run(self.on_node(node, *command), env=self.environment("tool"))

    def covered(self, name, check):
        files = ["-i", self.shared / f"{name}.quell", "-b", self.shared / f"{name}.boot"]
        return [self.bench.quell, "run", "--strict", "--check", check, "--share", "bench", "--job", "--job-interface", "eth0",
                *files, "--"]

    def measure(self, starts, nodes, command):
        """Start `command` `starts` times at once, on `nodes` cold nodes in turn. Return its seconds,
        processor seconds of the machine, and requests for metadata and data of all nodes."""
        own = {}
        for node in range(1, nodes + 1):
            self.testbed.drop(node)
            changed = self.testbed.measured(node, lambda: run(self.on_node(node, "true"), env=self.environment("tool")))[2]
            own[node] = sum(metadata_of(changed).values())
            self.testbed.drop(node)
        bridge = "ql" + Path(self.testbed.directory, "number").read_text().strip()
        words = [self.bench.quell, "job", "run", "--interface", bridge, "--", "sh", "-c", 'echo "$QUELL_JOB" && exec cat']
        meeting = subprocess.Popen([str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        text = meeting.stdout.readline().strip()
        before = {node: (self.testbed.counters(node), self.testbed.counters(node)) for node in own}
        environments = [self.environment(number, QUELL_JOB=text) for number in range(starts)]
        running, busy, begun = [], busy_s(), time.monotonic()
        try:
            for number, environment in enumerate(environments):
                words = self.on_node(number % nodes + 1, *command)
                running.append(subprocess.Popen([str(word) for word in words], env=environment, stdin=subprocess.PIPE,
                                                stdout=subprocess.PIPE, text=True))
            lines = [process.stdout.readline() for process in running]
            ended, used = time.monotonic(), busy_s() - busy
            after = {node: self.testbed.counters(node) for node in own}
        finally:
            for process in [*running, meeting]:
                process.stdin.close()
                process.wait(120)
        if not all(line.strip() for line in lines):
            raise Failed(f"a node printed nothing: {lines}")
        try:
            ended = max(map(int, lines)) / 1e9  # the program is `paths now`
        except ValueError:
            pass
        metadata = data = 0
        for node, (first, second) in before.items():
            changed = {name: after[node][name] - second[name] - (second[name] - first.get(name, 0)) for name in second}
            metadata += sum(metadata_of(changed).values()) - own[node]
            data += changed.get("fuse_ops.read", 0)
        return ended - begun, used, metadata, data

    def median_of(self, *arguments):
        return [median(values) for values in zip(*(self.measure(*arguments) for _ in range(REPEATS)))]

    def make(self):
        """Create the small tree, and the indexes and boot images, on node 1."""
        testbed, quell = self.testbed, self.bench.quell
        small = testbed.path(1, "small")
        small.mkdir()
        for number in range(200):
            (small / f"f{number}").write_bytes(os.urandom(4096))
        testbed.path(1, "state").mkdir(mode=0o700)
        programs = {"env": [self.shared / "env/bin/python", self.program], "small": ["sh", "-c", f"cat {self.shared}/small/*"]}
        for name, program in programs.items():
            self.call(1, quell, "index", "--quiet", self.shared / name)
            self.call(1, *(program if name == "env" else ["true"]))  # creates matplotlib's font list once
            files = ["-i", self.shared / f"{name}.quell", "-o", self.shared / f"{name}.boot"]
            self.call(1, quell, "record", "--quiet", *files, "--", *program)

    def rows(self):
        self.make()
        self.imports()
        self.starts()

    def imports(self):
        direct = ["sh", "-c", UNTIL_END, "sh", self.shared / "env/bin/python", self.program]
        one = None
        for nodes in COUNTS:
            direct_s, _, direct_metadata, direct_data = self.measure(nodes, nodes, direct)
            seconds, _, metadata, data = self.measure(nodes, nodes, [*self.covered("env", "sample"), *direct])
            one = one or (metadata, data)
            limits = [count + OPERATIONS_OF_A_NODE * (nodes - 1) for count in one]
            title = f"import of six packages, job of {nodes} cold node{'s' if nodes > 1 else ''}"
            rows = (("metadata operations of all", direct_metadata, metadata, limits[0]), ("data operations of all", direct_data, data, limits[1]))
            for kind, left, right, limit in rows:
                bar = (f"those of one node + {OPERATIONS_OF_A_NODE} a node ({limit:,})", right <= limit) if nodes > 1 else ()
                self.bench.add(f"{title}: {kind}", "ops", left, right, *bar)
            self.bench.add(f"{title}: wall, until the last has ended", "s", direct_s, seconds)

    def starts(self):
        now = ["sh", "-c", '"$0" now && read -r end', self.paths]
        processors = os.cpu_count()
        plain = self.median_of(1, 1, now)
        kinds = (("env", "six packages", COUNTS, "node"), ("small", "a small image", (1, SUPERVISORS), "supervisor"))
        for name, what, counts, unit in kinds:
            one = None
            for count in counts:
                seconds, used, metadata, data = self.median_of(count, min(count, NODES), [*self.covered(name, "sample"), *now])
                one = one or (seconds, used)
                copying = max(used - one[1], 0) / processors
                limit = one[0] + DOUBLING_S * math.log2(count)
                bar = (f"{one[0]:.3f} + {DOUBLING_S * 1000:.0f} ms a doubling + {copying:.3f} s", seconds - copying <= limit) if count > 1 else ()
                self.bench.add(f"job of {what}: the last of {count} {unit}{'s' if count > 1 else ''} executes its program", "s",
                               plain[0], seconds, *bar,
                               note=f"median of {REPEATS}; {used:.2f} s of processor time; {metadata:.0f} metadata, {data:.0f} data operations")
