#!/usr/bin/env python3
"""Measure the processor time that clients, servers and OSDs need for an operation on a store of blobs
in RADOS with 1 to 4 servers, and compute rates on many nodes from it: the numbers of
docs/benchmarks/blob-scale.md.

    blob_scale.py [--seconds N] [--json]      $QUELL is the quell binary; needs root and Debian's Ceph
"""
import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # leaves the checkout unchanged
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "testbed")]
from blob import lines_of, process
from measure import Failed, Testbed, median, processor_s, stop_on_signals

POOL = "blob"
SERVERS = (1, 2, 3, 4)
NODES = (1, 2, 4, 16, 64, 256)
PROCESSORS = 2  # of a node
GROUPS_MAX = 64  # of a store
REPEATS = 3
SHORT_S = 2
PARTS = ("client", "server", "osd")


class Work(NamedTuple):
    """Work of `quell blob bench`."""

    name: str
    kind: str
    # The number of clients with one server, and of clients for each further server. The
    # transactions of one client do not wait for each other's locks.
    clients: int
    more_clients: int
    # The blobs that an operation uses.
    blobs: int
    # The numbers of servers, each with one group, with which it is measured.
    servers: tuple


WORKS = (
    Work("read", "read", 8, 8, 1, SERVERS),
    Work("write", "write", 8, 8, 1, SERVERS),
    Work("events", "events", 1, 0, 4, SERVERS),
    Work("events in one group", "events", 8, 0, 4, (1,)),
)


class Store:
    """A running store with a number of groups, each with a server of its own."""

    def __init__(self, quell, ceph, scratch, servers, seconds):
        self.quell, self.ceph, self.scratch, self.servers, self.seconds = quell, ceph, scratch, servers, seconds
        number = (ceph.directory / "number").read_text().strip()
        self.network = ["nsenter", f"--net=/run/netns/qlc{number}"]
        self.location = f"rados://{POOL}/scale{servers}"
        self.stack = ExitStack()

    def __enter__(self):
        self.osds = [int((self.ceph.directory / "run" / f"osd{osd}").read_text().split()[0]) for osd in range(3)]
        self.pids = [self.start(server) for server in range(self.servers)]
        return self

    def __exit__(self, *exception):
        self.stack.close()

    def start(self, server):
        directory = self.scratch / f"{self.servers}-{server}"
        directory.mkdir(mode=0o700)
        if server > 0:
            shutil.copy(self.scratch / f"{self.servers}-0" / "key", directory)
        line = self.scratch / f"{self.servers}-{server}.out"
        command = [*self.network, self.quell, "blob", "serve", directory, "--rados", self.location, "--json",
                   "--listen", "127.0.0.1:0", "--groups", self.servers, "--serve", server]
        with open(line, "w", encoding="utf-8") as output:
            started = process(command, lambda: line.stat().st_size > 0, stdout=output)
            return self.stack.enter_context(started).pid

    def used(self):
        """Return the processor time so far, in seconds, of ended clients, of the servers, and of
        the OSDs."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        sums = [sum(processor_s(pid) for pid in pids) for pids in (self.pids, self.osds)]
        return [children.ru_utime + children.ru_stime, *sums]

    def bench(self, work, clients, seconds):
        """Return the number of operations, and the processor time of the whole command."""
        key = self.scratch / f"{self.servers}-0" / "key"
        before, begun = self.used(), time.monotonic()
        lines = lines_of([*self.network, self.quell, "blob", "bench", f"{self.location}?key={key}", "--json", "--quiet",
                          "--work", work, "--clients", clients, "--seconds", seconds])
        elapsed = time.monotonic() - begun
        used = [after - first - idle * elapsed for after, first, idle in zip(self.used(), before, self.idle)]
        return lines[0]["operations"], used

    def measure_idle(self):
        """Measure the processor time of an idle store in each second."""
        before = self.used()
        time.sleep(self.seconds)
        self.idle = [(after - first) / self.seconds for after, first in zip(self.used(), before)]

    def cost(self, work, clients):
        """Return the processor time of an operation by part, in microseconds. The difference of a
        long and a short run contains neither the creation nor the deletion of the blobs."""
        short, short_used = self.bench(work, clients, SHORT_S)
        long, long_used = self.bench(work, clients, SHORT_S + self.seconds)
        return [(after - first) / (long - short) * 1e6 for first, after in zip(short_used, long_used)]


def measure(quell, ceph, scratch, seconds):
    """Return the median processor times by work and number of servers."""
    found = {work.name: {} for work in WORKS}
    for servers in SERVERS:
        with Store(quell, ceph, scratch, servers, seconds) as store:
            store.measure_idle()
            for work in WORKS:
                if servers in work.servers:
                    clients = work.clients + work.more_clients * (servers - 1)
                    runs = [store.cost(work.kind, clients) for _ in range(REPEATS)]
                    found[work.name][servers] = [median(part) for part in zip(*runs)]
    return found


def spread(blobs, groups):
    """Return the probability that all blobs of a transaction are in one group, and the mean number
    of groups that have one of them."""
    return (1 / groups) ** (blobs - 1), groups * (1 - (1 - 1 / groups) ** blobs)


def model(work, measured):
    """Return a function from a number of groups to the processor time of an operation by part. A
    measurement with one server shows the time of operations in a store of one group, and a
    measurement with two servers the time of operations in one of several groups. A transaction in
    several groups has a time for each of them, which the measurement with two servers shows."""
    if work.blobs == 1 or work.servers == (1,):
        return lambda groups: measured[min(groups, 2)]
    single = measured[1]
    together, mean = spread(work.blobs, 2)
    joint = [(both - together * alone) / (mean - together) for both, alone in zip(measured[2], single)]

    def cost(groups):
        together, mean = spread(work.blobs, groups)
        return [together * alone + (mean - together) * each for alone, each in zip(single, joint)]

    return cost


def rate(nodes, groups, cost):
    """Return the operations per second of all nodes: all processors are busy, or the processors of
    the nodes with a server are busy with the server."""
    return min(PROCESSORS * nodes / sum(cost), PROCESSORS * groups / cost[PARTS.index("server")]) * 1e6


def results(measured):
    checks, computed = [], [{"nodes": nodes} for nodes in NODES]
    for work in WORKS:
        found = measured[work.name]
        cost = model(work, found)
        for servers in work.servers:
            checks.append({"work": work.name, "servers": servers, "computed_us": sum(cost(servers)),
                           "measured_us": sum(found[servers]), **dict(zip(PARTS, found[servers]))})
        for row in computed:
            groups = 1 if work.servers == (1,) else min(row["nodes"], GROUPS_MAX)
            row[work.name] = rate(row["nodes"], groups, cost(groups))
    return checks, computed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=10, help="duration of each measurement (default: 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    quell = os.environ.get("QUELL") or str(HERE.parent.parent / "target/dist/quell")
    with tempfile.TemporaryDirectory(prefix="quell-scale.", dir="/var/tmp") as scratch:
        scratch = Path(scratch)
        with Testbed(scratch / "cephfs", 1, "cephfs").up() as ceph:
            os.environ["CEPH_CONF"] = str(ceph.directory / "ceph.conf")
            ceph.command("exec", "ceph", "osd", "pool", "create", POOL, "32")
            measured = measure(quell, ceph, scratch, options.seconds)
    checks, computed = results(measured)
    if options.json:
        print(json.dumps({"checks": checks, "computed": computed}, indent=2))
        return
    print("work                 servers  client us  server us  OSDs us   sum us  computed us  error")
    for row in checks:
        error = row["computed_us"] / row["measured_us"] - 1
        print(f"{row['work']:20} {row['servers']:7}  {row['client']:9.1f}  {row['server']:9.1f}  {row['osd']:7.1f}"
              f"  {row['measured_us']:7.1f}  {row['computed_us']:11.1f}  {error:+5.0%}")
    print(f"nodes  {'  '.join(f'{name:>12}' for name in computed[0] if name != 'nodes')}   operations/s")
    for row in computed:
        print(f"{row['nodes']:5}  " + "  ".join(f"{row[name]:12,.0f}" for name in row if name != "nodes"))


if __name__ == "__main__":
    stop_on_signals()
    try:
        main()
    except Failed as error:
        sys.exit(f"blob_scale: {error}")
