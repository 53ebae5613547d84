#!/usr/bin/env python3
"""Measures the processor time of the servers of a store for batches for each create in one directory.

  partitions.py QUELL [--servers N ...] [--clients N] [--files N] [--rounds N] [--in DIR]

Clients are mounts in the synchronous mode, each with one process that creates empty files with
benches/micro/creates.c. The numbers of partition servers take turns, each time with a new store.
Clients and servers share the processors of this machine, so the rates of all clients together say
little about servers on nodes of their own; the processor time of each server does. Prints a line
for each number of partition servers: medians, and the smallest and largest value.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
# A directory is divided after this number of creations by the primary server.
DIVIDE_AFTER = 1000
TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Round:
    """A store with its servers and mounts."""

    def __init__(self, options, directory, partition_servers):
        self.options, self.directory, self.processes, self.points = options, Path(directory), [], []
        runtime = self.directory / "runtime"
        runtime.mkdir(mode=0o700)
        self.environment = {**os.environ, "QUELL_RUNTIME_DIR": str(runtime)}
        self.store = self.directory / "store"
        self.run("batch", "init", self.store)
        self.primary = self.serve(f"--divide-after={DIVIDE_AFTER}")
        self.partitions = [self.serve("--partitions") for _ in range(partition_servers)]

    def run(self, *arguments):
        subprocess.run([self.options.quell, *arguments], check=True, env=self.environment)

    def serve(self, *arguments):
        command = [self.options.quell, "batch", "serve", "--json", *arguments, self.store]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=self.environment)
        self.processes.append(process)
        if not process.stdout.readline():
            raise SystemExit("a server has ended")
        return process

    def measure(self, program):
        """Return creates per second, and the microseconds of the primary server and of the busiest
        partition server for each create."""
        for number in range(self.options.clients):
            point = self.directory / f"mount-{number}"
            point.mkdir()
            self.run("mount", "--quiet", "--batch", self.store, point)
            self.points.append(point)
        (self.points[0] / "dir").mkdir()
        servers = [self.primary, *self.partitions]
        before = [processor_seconds(server) for server in servers]
        started = time.monotonic()
        clients = [
            subprocess.Popen([program, point / "dir", str(self.options.files), f"file-{number}"], stdout=subprocess.DEVNULL)
            for number, point in enumerate(self.points)
        ]
        if any([client.wait() for client in clients]):
            raise SystemExit("a client has failed")
        seconds, creates = time.monotonic() - started, self.options.files * self.options.clients
        used = [(processor_seconds(server) - start) * 1e6 / creates for server, start in zip(servers, before)]
        found = len(os.listdir(self.points[0] / "dir"))
        if found != creates:
            raise SystemExit(f"{found} files in place of {creates}")
        return creates / seconds, used[0], max(used[1:], default=0)

    def end(self):
        for point in self.points:
            subprocess.run([self.options.quell, "umount", point], check=False, env=self.environment)
        for process in reversed(self.processes):
            process.terminate()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quell", type=os.path.abspath)
    parser.add_argument("--servers", type=int, nargs="+", default=[0, 1, 3])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--files", type=int, default=10_000, help="files of each client")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in", dest="parent", default="/var/tmp")
    options = parser.parse_args()
    measured = {servers: [] for servers in options.servers}
    with tempfile.TemporaryDirectory(prefix="quell-partitions.", dir=options.parent) as scratch:
        program = Path(scratch, "creates")
        subprocess.run(["cc", "-O2", "-Wall", "-o", program, TOP / "benches/micro/creates.c"], check=True)
        for _ in range(options.rounds):
            for servers, results in measured.items():
                with tempfile.TemporaryDirectory(dir=scratch) as directory:
                    round_ = Round(options, directory, servers)
                    try:
                        results.append(round_.measure(program))
                    finally:
                        round_.end()
    print("partition servers: creates/s; us of the primary server and of the busiest partition server for each create")
    for servers, results in measured.items():
        columns = [f"{statistics.median(column):.1f} ({min(column):.1f} to {max(column):.1f})" for column in zip(*results)]
        print(f"{servers}: {'; '.join(columns)}")


if __name__ == "__main__":
    sys.exit(main())
