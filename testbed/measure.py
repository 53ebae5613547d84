"""Test beds, timing, and counting of calls, for the demonstration and the macro benchmarks.

This module only measures; targets and tables belong to its callers. Python 3.9 and the standard
library only.
"""
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Failed(Exception):
    """A failure of the machine or of a measured program; the text names the operation and the
    reason."""


def stop_on_signals():
    """Let TERM and HUP end the program like Ctrl-C, running every `finally`."""

    def stop(number, _frame):
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)


def run(command, output=subprocess.DEVNULL, **options):
    """Run a command to its end, with its standard error on the terminal. Raise Failed if it
    fails."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output, **options)
    if done.returncode != 0:
        raise Failed(f"exit code {done.returncode} from: {' '.join(map(str, command))}")
    return done


def text_of(command, **options):
    """Return the standard output of a command as text."""
    return run(command, output=subprocess.PIPE, text=True, **options).stdout


def seconds_of(command, **options):
    """Return the wall time of a command in seconds."""
    started = time.monotonic()
    run(command, **options)
    return time.monotonic() - started


def processor_s(pid):
    """Return the processor time that a process has used so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_processor_s():
    """Return the processor time that all processes of this machine have used so far, in seconds."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, _steal = fields
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def alternate(commands, repeats):
    """Run several commands in turn, so that a disturbance affects all of them. Return the median
    wall time of each in seconds."""
    rounds = [[seconds_of(command) for command in commands] for _ in range(repeats)]
    return [median(times) for times in zip(*rounds)]


def median(values):
    return statistics.median(values)


class Testbed:
    """A test bed (testbed/moosefs, or another script there) in a directory of its own, which is
    deleted with it."""

    def __init__(self, directory, nodes=4, script="moosefs"):
        self.directory = Path(directory)
        self.nodes = nodes
        self.script = script

    def command(self, *words):
        return text_of([HERE / self.script, *words], env={**os.environ, "TESTBED": str(self.directory)})

    @contextmanager
    def up(self):
        try:
            self.command("up", str(self.nodes))
            yield self
        finally:
            # A second Ctrl-C during `down` would leave a part of it behind.
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            self.command("down")
            signal.signal(signal.SIGINT, before)

    def path(self, node, *below):
        return self.directory.joinpath("nodes", str(node), *below)

    def drop(self, node):
        """Drop the node's caches, as after a reboot."""
        self.command("drop", str(node))

    def delay(self, node, microseconds):
        """Let each request of a node take longer, and drop its caches (MooseFS)."""
        self.command("delay", str(node), str(microseconds))

    def counters(self, node):
        """Return the mount's own counters by name (MooseFS)."""
        lines = self.path(node, ".stats").read_text().splitlines()
        pairs = (line.split(": ", 1) for line in lines if ": " in line)
        return {name: int(value) for name, value in pairs if value.isdigit()}

    def measured(self, node, action):
        """Run `action`. Return (seconds, operations sent to the master, changed counters), without
        the cost of reading the counters."""
        # The first reading looks the file up, and each further one requests its attributes again.
        _, first, before = (self.counters(node) for _ in range(3))
        started = time.monotonic()
        action()
        seconds = time.monotonic() - started
        after = self.counters(node)
        looking = {name: before[name] - first.get(name, 0) for name in before if name.startswith("fuse_ops")}
        changed = {name: value - before.get(name, 0) - looking.get(name, 0) for name, value in after.items()}
        changed = {name: value for name, value in changed.items() if value != 0}
        return seconds, changed.get("master.packets_sent", 0), changed

    def idle_rate(self, node, seconds=10):
        """Return the messages per second that an idle node sends to the master to stay
        registered."""
        return self.measured(node, lambda: time.sleep(seconds))[1] / seconds


# --- counting a program's calls -------------------------------------------------------------------
# Calls with a path. Calls on an open file (fstat, read, mmap) are not counted.
TRACED = (
    "open,openat,openat2,creat,execve,execveat,stat,lstat,newfstatat,statx,access,faccessat,faccessat2,"
    "readlink,readlinkat,getxattr,lgetxattr,listxattr,llistxattr,statfs,chdir"
)
OPENS = {"open", "openat", "openat2", "creat", "execve", "execveat"}
CALL = re.compile(r'^(?:\d+ +)?(\w+)\((?:(?:AT_FDCWD|-?\d+)<((?:[^>\\]|\\.)*)>, )?"((?:[^"\\]|\\.)*)"(.*)$')
RESUMED = re.compile(r"^(?:\d+ +)?<\.\.\. \w+ resumed>(.*)$")


def count_lines(lines, tree, directory, hot=frozenset()):
    """Count the traced calls on names in `tree`, given lines of strace -f -y (a pure function).

    stat: successful or failed queries of a name; negative: names that do not exist; list:
    directories opened; open: files opened, and files_opened the number of different ones; open_hot:
    those opens with a path in `hot`.
    """
    tree = os.path.normpath(tree)
    counts = {"stat": 0, "negative": 0, "list": 0, "open": 0}
    open_hot = 0
    opened = set()
    unfinished = {}
    for line in lines:
        process = line.split(" ", 1)[0]
        resumed = RESUMED.match(line)
        if resumed:
            line = unfinished.pop(process, "") + resumed[1]
        elif "<unfinished ...>" in line:
            unfinished[process] = line.replace("<unfinished ...>", "")
            continue
        call = CALL.match(line)
        if not call:
            continue
        name, base, path, rest = call.groups()
        if not path:
            continue  # a query of an open file
        path = os.path.normpath(os.path.join(directory, base or "", path))
        if path != tree and not path.startswith(tree + "/"):
            continue
        result = rest.rpartition(") = ")[2]
        if result.startswith(("-1 ENOENT", "-1 ENOTDIR")):
            counts["negative"] += 1
        elif name in OPENS and not result.startswith("-1"):
            if "O_DIRECTORY" in rest:
                counts["list"] += 1
            else:
                counts["open"] += 1
                open_hot += path in hot
                opened.add(path)
        else:
            counts["stat"] += 1
    counts["total"] = sum(counts.values())
    counts["files_opened"] = len(opened)
    counts["open_hot"] = open_hot
    return counts


def count_calls(command, tree, before=(), hot=frozenset(), **options):
    """Run `command` under strace and count its calls on names in `tree`.

    `before` precedes strace: with a `quell run ... --` there, strace runs inside the view.
    """
    with tempfile.TemporaryDirectory(prefix="quell-calls.") as place:
        trace = Path(place, "trace")
        run([*before, "strace", "-f", "-qq", "-y", "-s", "4096", "-e", f"trace={TRACED}", "-e", "signal=none",
             "-o", trace, *command], **options)
        with open(trace, errors="surrogateescape") as lines:
            return count_lines(lines, str(tree), os.getcwd(), hot)


# --- the machine ----------------------------------------------------------------------------------
def machine():
    """Describe the machine on which a measurement was made."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) // 1024 // 1024
    return f"{os.cpu_count()} processors ({model}), {memory} GiB of memory, Linux {os.uname().release}"


def view_of(covered, tree):
    """Return the type of the file system that covers `tree` for a covered command, or None if it is
    not covered."""
    kind = None  # the last mount at a mount point is the visible one
    for line in text_of([*covered, "cat", "/proc/self/mountinfo"]).splitlines():
        front, _, back = line.partition(" - ")
        if front.split(" ")[4] == str(tree):
            kind = back.split(" ")[0]
    return kind


if __name__ == "__main__":
    # measure.py TREE CMD...: counts one command's calls, as JSON.
    print(json.dumps(count_calls(sys.argv[2:], sys.argv[1])))
