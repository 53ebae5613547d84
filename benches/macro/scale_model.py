"""The model of scale.py: nodes that start a program at the same time, the servers of a file system,
and the tree of `quell run --job`, as a discrete-event simulation with simpy.

A node executes its program in rounds. In each round it uses its processor, sends a part of its
metadata operations to the metadata server, and a part of its reads to a data server, and waits for
each. All operations of one round are one event, so that 100,000 nodes can be simulated in minutes.
"""
import random
from multiprocessing import Pool
from typing import NamedTuple

import simpy

WAYS = ("direct", "index", "boot", "job")
NODES = (1, 4, 16, 64, 256, 1024, 4096, 16_384, 100_000)
# With many nodes there are fewer rounds: the servers are then busy for most of the time, and the
# order of their work does not matter.
ROUNDS, FEW_ROUNDS, MANY_NODES = 20, 4, 2_000
SEED = 1
# The assumed cluster. scale.md names these numbers.
ROUND_TRIP_S = 0.0002
LINK_BYTES_S = 1.25e9  # 10 Gbit/s, for each node
DATA_SERVERS = 16
DATA_SERVER_PROCESSORS = 2
COPIES = 2  # servers that have the index and the boot image
BLOCK_BYTES = 256 << 10  # of the tree of a job
CHILDREN = 2
PAPER_RATE = 32_000  # metadata operations per second of the file system in the MetaFS paper


class Node(NamedTuple):
    """The work of a node: metadata operations, reads, and processor time in seconds."""

    metadata: float
    data: float
    processor_s: float


class Way(NamedTuple):
    """The work of the first node, and of each further node."""

    first: Node
    further: Node


def inputs(measured):
    """Return the service times of the servers in seconds, and the ways by name."""
    runs = measured["runs"]
    most = max(runs["direct"], key=int)
    direct = runs["direct"][most]
    service = {"metadata": direct["master_s"] / direct["metadata"], "data": direct["chunk_s"] / direct["data"]}
    ways = {}
    for way, by_nodes in runs.items():
        one, many, more = by_nodes["1"], by_nodes[most], int(most) - 1
        first = Node(one["metadata"], one["data"], one["nodes_s"])
        # With all ways but `job`, each node has the counts of one node.
        further = Node(*((many[name] - one[name]) / more for name in ("metadata", "data")), one["nodes_s"]) if way == "job" else first
        ways[way] = Way(first, further)
    return service, ways


class Simulation:
    """One start on a number of nodes. With `shared_processors`, nodes and servers share the processors
    of one machine, as in the measurement; otherwise each has its own."""

    def __init__(self, measured, way, nodes, service, shared_processors=None):
        self.service, self.name, self.nodes = service, way, nodes
        self.way = inputs(measured)[1][way]
        self.bytes = sum(measured["bytes"].values())
        self.environment = simpy.Environment()
        self.shared = simpy.Resource(self.environment, shared_processors) if shared_processors else None
        self.metadata = simpy.Resource(self.environment, 1)
        servers = 1 if shared_processors else DATA_SERVERS
        self.data = [simpy.Resource(self.environment, shared_processors or DATA_SERVER_PROCESSORS) for _ in range(servers)]
        self.round_trip = 0 if shared_processors else ROUND_TRIP_S
        self.rounds = ROUNDS if nodes < MANY_NODES else FEW_ROUNDS
        self.random = random.Random(SEED)
        self.last_s = 0

    def seconds(self):
        """Return the time until the last program has ended."""
        for node in range(self.nodes):
            self.environment.process(self.node(node))
        self.environment.run()
        return self.last_s

    def work(self, seconds):
        """Use a processor."""
        if not self.shared:
            yield self.environment.timeout(seconds)
            return
        with self.shared.request() as turn:
            yield turn
            yield self.environment.timeout(seconds)

    def ask(self, server, seconds, operations):
        """Send operations to a server, one after the other, and wait for the answers."""
        with server.request() as turn:
            yield turn
            yield from self.work(seconds)
        yield self.environment.timeout(operations * self.round_trip)

    def arrival_s(self, node):
        """Return the time at which a node of a job has the files that its parent passes on. The blocks
        are passed on as they arrive, so that each level of the tree adds the time of one block."""
        if self.shared or self.name != "job" or node == 0:
            return 0
        level, first = 0, 0
        while node > first:
            level, first = level + 1, first * CHILDREN + CHILDREN
        block_s = BLOCK_BYTES * CHILDREN / LINK_BYTES_S + self.round_trip
        return self.bytes * CHILDREN / LINK_BYTES_S + level * block_s

    def node(self, number):
        yield self.environment.timeout(self.arrival_s(number))
        work = self.way.first if number == 0 else self.way.further
        # Index and image are files of a few servers; the files of a tree are distributed over all.
        servers = self.data if self.name in ("direct", "index") else self.data[:COPIES]
        metadata, data = work.metadata / self.rounds, work.data / self.rounds
        for _ in range(self.rounds):
            yield from self.work(work.processor_s / self.rounds)
            if metadata:
                yield from self.ask(self.metadata, metadata * self.service["metadata"], metadata)
            if data:
                yield from self.ask(self.random.choice(servers), data * self.service["data"], data)
        self.last_s = max(self.last_s, self.environment.now)


def check(measured):
    """Return (way, nodes, measured seconds, simulated seconds) for each measured start."""
    service, _ = inputs(measured)
    processors = measured["facts"]["processors"]
    return [(way, int(nodes), one["seconds"], Simulation(measured, way, int(nodes), service, processors).seconds())
            for way, by_nodes in measured["runs"].items() for nodes, one in by_nodes.items()]


def extrapolate(measured):
    """Return the simulated seconds by way, for each number of NODES."""
    works = [(measured, way, nodes) for way in WAYS for nodes in NODES]
    with Pool() as pool:
        found = dict(zip([work[1:] for work in works], pool.starmap(simulate, works, chunksize=1)))
    return {way: [found[way, nodes] for nodes in NODES] for way in WAYS}


def simulate(measured, way, nodes):
    service, _ = inputs(measured)
    return Simulation(measured, way, nodes, service).seconds()


def saturation(measured):
    """Return by way the number of nodes whose operations keep the metadata server busy for the whole
    time that one node needs alone: with the measured service time, and with PAPER_RATE. For a job,
    also the operations of the first node count."""
    measured_service, ways = inputs(measured)
    found = {}
    for name, way in ways.items():
        found[name] = []
        for metadata_s in (measured_service["metadata"], 1 / PAPER_RATE):
            alone = Simulation(measured, name, 1, {**measured_service, "metadata": metadata_s}).seconds()
            left_s = alone - way.first.metadata * metadata_s
            found[name].append(1 + int(left_s / (way.further.metadata * metadata_s)) if way.further.metadata else None)
    return found
