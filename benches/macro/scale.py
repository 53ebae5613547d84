#!/usr/bin/env python3
"""Simulate the start of a program on up to 100,000 nodes, from measurements on 1, 4 and 16 nodes.

    scale.py            simulate, from docs/benchmarks/scale.json, and write docs/benchmarks/scale.md and scale.svg
    scale.py --measure  measure first, and write scale.json: needs root, network access and an idle machine;
                        $QUELL is the quell binary

The program is the import of six packages (demo/program.py). The page scale.md describes the model.
The simulation needs simpy (Debian: python3-simpy3) and matplotlib.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
sys.dont_write_bytecode = True  # leaves the checkout unchanged
sys.path[:0] = [str(HERE), str(TOP / "testbed")]
from boot import metadata_of
from job import AT_PATH
from measure import Failed, Testbed, machine, machine_processor_s, processor_s, run, stop_on_signals, text_of
from scale_model import WAYS, check, extrapolate, saturation
from scale_page import write_page

PROGRAM = TOP / "demo/program.py"
MEASURED_NODES = (1, 4, 16)
RESULTS = TOP / "docs/benchmarks/scale.json"


class Measurement:
    """Starts the program on several cold nodes of a MooseFS at the same time."""

    def __init__(self, testbed, quell, scratch):
        self.testbed, self.quell, self.scratch = testbed, quell, scratch
        self.shared = scratch / "shared"
        self.shared.mkdir()
        self.runs = 0

    def with_mount(self, node, command):
        """Return a command that runs with the node's mount at the path `shared`."""
        return ["unshare", "--mount", "sh", "-c", AT_PATH, self.testbed.path(node), self.shared, *command]

    def start(self, node, command, environment):
        """Start a command on a node."""
        namespace = f"/run/netns/ql{(self.testbed.directory / 'number').read_text().strip()}node{node}"
        words = ["nsenter", f"--net={namespace}", *self.with_mount(node, command)]
        return subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                env={**os.environ, **environment})

    def on_first_node(self, command):
        """Run a command that uses the network of the machine."""
        run(self.with_mount(1, command))

    def set_up(self):
        """Install the packages, and create the index and the boot image."""
        env = self.shared / "env"
        self.on_first_node([sys.executable, "-m", "venv", env])
        self.on_first_node([env / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:",
                            "-r", TOP / "demo/requirements.txt"])
        self.on_first_node([env / "bin/python", PROGRAM])  # creates matplotlib's font list once
        self.on_first_node([self.quell, "index", "--quiet", env, "-o", self.shared / "env.quell"])
        self.on_first_node([self.quell, "record", "--quiet", "-i", self.shared / "env.quell", "-o", self.shared / "env.boot", "--",
                            env / "bin/python", PROGRAM])
        self.on_first_node(["mkdir", "--mode=0700", self.shared / "jobs"])

    def command(self, way):
        program = [self.shared / "env/bin/python", PROGRAM]
        covered = [self.quell, "run", "--quiet", "--strict", "--check", "sample", "-i", self.shared / "env.quell"]
        image = ["-b", self.shared / "env.boot"]
        job = ["--share", f"scale-{self.runs}", "--job", "--job-interface", "eth0", "--job-dir", self.shared / "jobs"]
        return {"direct": program, "index": [*covered, "--", *program], "boot": [*covered, *image, "--", *program],
                "job": [*covered, *image, *job, "--", *program]}[way]

    def processor_times(self):
        servers = {name: processor_s((self.testbed.directory / "run" / name).read_text().split()[0]) for name in ("master", "chunk")}
        return {**servers, "nodes": machine_processor_s() - sum(servers.values())}

    def run(self, way, nodes):
        """Return the cost of a start on a number of cold nodes, as a dictionary: all operations,
        the seconds until the last program has ended, and processor times in seconds."""
        self.runs += 1
        numbers = range(1, nodes + 1)
        for node in numbers:
            self.testbed.drop(node)
        command = self.command(way)
        before, times = [self.testbed.counters(node) for node in numbers], self.processor_times()
        started = time.monotonic()
        running = []
        for node in numbers:
            runtime = self.scratch / f"runtime-{self.runs}-{node}"
            runtime.mkdir(mode=0o700)
            running.append(self.start(node, command, {"QUELL_RUNTIME_DIR": str(runtime)}))
        codes = [process.wait() for process in running]
        seconds = time.monotonic() - started
        if any(codes):
            raise Failed(f"{way} on {nodes} nodes: exit codes {codes}")
        used = {name: value - times[name] for name, value in self.processor_times().items()}
        after = [self.testbed.counters(node) for node in numbers]
        changed = [{name: value - old.get(name, 0) for name, value in new.items()} for old, new in zip(before, after)]
        result = {"seconds": seconds, "metadata": sum(sum(metadata_of(each).values()) for each in changed),
                  "data": sum(each.get("fuse_ops.read", 0) for each in changed), **{f"{name}_s": value for name, value in used.items()}}
        print(f"{way}, {nodes} nodes: " + ", ".join(f"{name} {value:,.2f}" for name, value in result.items()), flush=True)
        return result


def measure(quell):
    with tempfile.TemporaryDirectory(prefix="quell-scale.") as scratch:
        os.environ["MPLCONFIGDIR"] = f"{scratch}/matplotlib"
        scratch = Path(scratch)
        with Testbed(scratch / "moosefs", max(MEASURED_NODES)).up() as testbed:
            measurement = Measurement(testbed, quell, scratch)
            measurement.set_up()
            load = os.getloadavg()[0]
            runs = {way: {str(nodes): measurement.run(way, nodes) for nodes in MEASURED_NODES} for way in WAYS}
            sizes = {name: testbed.path(1, f"env.{name}").stat().st_size for name in ("quell", "boot")}
    facts = {"machine": machine(), "date": time.strftime("%Y-%m-%d", time.gmtime()), "quell": text_of([quell, "--version"]).strip(),
             "load": round(load, 1), "processors": os.cpu_count()}
    RESULTS.write_text(json.dumps({"facts": facts, "bytes": sizes, "runs": runs}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure first, on a MooseFS with 16 nodes on this machine")
    options = parser.parse_args()
    if options.measure:
        if os.geteuid() != 0:
            raise Failed("--measure needs root: it mounts a file system on 16 network namespaces")
        quell = os.environ.get("QUELL") or str(TOP / "target/dist/quell")
        if not os.access(quell, os.X_OK):
            raise Failed(f"there is no program {quell}; build it or name another one in $QUELL")
        measure(quell)
    measured = json.loads(RESULTS.read_text())
    write_page(RESULTS.parent, measured, check(measured), extrapolate(measured), saturation(measured))


if __name__ == "__main__":
    stop_on_signals()
    try:
        sys.exit(main())
    except Failed as error:
        print(f"scale: {error}", file=sys.stderr)
        sys.exit(3)
    except KeyboardInterrupt:
        sys.exit(130)
