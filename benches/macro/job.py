"""One reader for a job (`quell run --job`), measured for bench.py.

The nodes are network namespaces with a MooseFS mount each, which all have at the same path, in a
mount namespace of the command. They find one another through `quell job run`. Each measurement
begins with empty caches and without a runtime directory of Quell. The clients keep names and
attributes for an hour, not for a second as by default. Otherwise the counts would depend on the
duration of the program: it looks up the directories above its tree again whenever their names have
expired, directly as well as covered. The client counts its requests, as in boot.py; the
requests of the mount(8) with which a node gets its path are measured before, and subtracted. The
nodes make no later samples (`--recheck 0`). The imports are made one by one, because this machine
has fewer processors than nodes; at the same time they cause more operations (docs/decisions/0047,
known limits). The limit of metadata operations has room for a sample whose entries need more
lookups than the entries of the sample of one node.

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
from measure import Failed, machine_processor_s, median, run

NODES = 16
COUNTS = (1, 4, NODES)
SUPERVISORS = 64
CACHES = "mfsattrcacheto=3600,mfsentrycacheto=3600,mfsdirentrycacheto=3600"
# All nodes share the processors of this machine, so that no node is taken for a failed one.
JOB_TIMEOUT_S = 60
REPEATS = 3
OPERATIONS_OF_A_NODE = 2
SAMPLE_MAX = 8  # entries in the random sample of the reader, of which each may need a lookup
DOUBLING_S = 0.010
# Runs a command in a mount namespace in which the node's mount is at the path that is the same for
# all nodes.
AT_PATH = 'mount --bind "$0" "$1" && shift && exec "$@"'
# Waits for the end of its input, because the files are served as long as the programs run.
UNTIL_END = '"$@" && echo && read -r end'


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
        return [self.bench.quell, "run", "--strict", "--check", check, "--recheck", "0", "--share", "bench", "--job", "--job-interface", "eth0",
                "--job-timeout", str(JOB_TIMEOUT_S), *files, "--"]

    def counters_before(self, node):
        """Return the counters twice: the second time they contain the requests of one reading."""
        self.testbed.counters(node)  # from the second reading on, attributes are requested
        return self.testbed.counters(node), self.testbed.counters(node)

    def requests(self, node, before):
        """Return the requests for metadata and data since `counters_before`."""
        first, second = before
        after = self.testbed.counters(node)
        changed = {name: after[name] - second[name] - (second[name] - first.get(name, 0)) for name in second}
        return sum(metadata_of(changed).values()), changed.get("fuse_ops.read", 0)

    def requests_of_mount(self):
        """Return the metadata requests with which a node gets its path."""
        self.testbed.drop(1)
        before = self.counters_before(1)
        self.call(1, "true")
        return self.requests(1, before)[0]

    def measure(self, starts, nodes, command, is_one_by_one=False):
        """Start `command` `starts` times, on `nodes` cold nodes in turn: at once, or each after the
        one before has printed its line, while those before still run. Return the seconds,
        processor seconds of the machine, and requests for metadata and data of all nodes. Those of
        each node are kept in `self.counts`."""
        used_nodes = range(1, nodes + 1)
        for node in used_nodes:
            self.testbed.drop(node)
        bridge = "ql" + Path(self.testbed.directory, "number").read_text().strip()
        words = [self.bench.quell, "job", "run", "--interface", bridge, "--", "sh", "-c", 'echo "$QUELL_JOB" && exec cat']
        meeting = subprocess.Popen([str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        text = meeting.stdout.readline().strip()
        before = {node: self.counters_before(node) for node in used_nodes}
        environments = [self.environment(number, QUELL_JOB=text) for number in range(starts)]
        running, lines, busy, begun = [], [], machine_processor_s(), time.monotonic()
        try:
            for number, environment in enumerate(environments):
                words = self.on_node(number % nodes + 1, *command)
                running.append(subprocess.Popen([str(word) for word in words], env=environment, stdin=subprocess.PIPE,
                                                stdout=subprocess.PIPE, text=True))
                if is_one_by_one:
                    lines.append(running[-1].stdout.readline())
            if not is_one_by_one:
                lines = [process.stdout.readline() for process in running]
            ended, used = time.monotonic(), machine_processor_s() - busy
            counts = [self.requests(node, before[node]) for node in used_nodes]
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
        self.counts = sorted(((metadata - self.own, data) for metadata, data in counts), reverse=True)
        metadata, data = (sum(values) for values in zip(*self.counts))
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
        self.own = self.requests_of_mount()
        self.imports()
        self.starts()

    def imports(self):
        direct = ["sh", "-c", UNTIL_END, "sh", self.shared / "env/bin/python", self.program]
        one = None
        for nodes in COUNTS:
            direct_s, _, direct_metadata, direct_data = self.measure(nodes, nodes, direct, True)
            seconds, _, metadata, data = self.measure(nodes, nodes, [*self.covered("env", "sample"), *direct], True)
            one = one or (metadata, data)
            further = OPERATIONS_OF_A_NODE * (nodes - 1)
            limits = [one[0] + further + SAMPLE_MAX, one[1] + further]
            note = f"the nodes: {', '.join(f'{metadata}+{data}' for metadata, data in self.counts)} (metadata + data)"
            title = f"import of six packages, job of {nodes} cold node{'s' if nodes > 1 else ''}"
            rows = (("metadata operations of all", direct_metadata, metadata, limits[0]), ("data operations of all", direct_data, data, limits[1]))
            for kind, left, right, limit in rows:
                bar = (f"those of one node + {OPERATIONS_OF_A_NODE} a node ({limit:,})", right <= limit) if nodes > 1 else ()
                self.bench.add(f"{title}: {kind}", "ops", left, right, *bar, note=note)
            self.bench.add(f"{title}: wall of all, one by one", "s", direct_s, seconds)

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
