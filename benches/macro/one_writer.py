"""Work of single programs and nodes on log mounts, measured for bench.py and log.py.

Each file is written by one process: thousands of small files, the phases of mdtest, four processes
with small records, and programs that unpack, copy and change files. A plain directory, a log mount
that creates objects, and one that creates containers (`--new-files container`) take turns, each time on
a new ext4 in memory (small_files.py describes why), so the time of a disk is not part of the result.
On MooseFS each turn has a new directory.
"""
import itertools
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import small_files
from log import HERE
from measure import median, run, text_of
from sources import sources

MEMORY = "/dev/shm"
ROUNDS = 3
FILES = 20_000
FILES_MOOSEFS = 500  # a log file takes some 20 requests to the servers
RANKS, RECORD, RECORDS = 4, 8_192, 8_192
# The phases of mdtest: the numbers of ranks, and the empty files of each rank.
NAME_RANKS, NAMES, NAMES_MOOSEFS = (1, 4), 5_000, 250
DBENCH_CLIENTS, DBENCH_S = 2, 5
TRANSACTIONS = 2_000
# The largest ratio of times for the steps of small_files.py.
BARS = {"ext4": {"create": 2, "ls -l": 2, "remove": 2}, "MooseFS": {"create": 1.2, "ls -l": 1.2, "remove": 1.2}}
PROGRAM_BAR = 2.5
RECORDS_BAR, DBENCH_BAR = 0.7, 0.4
NAME_BARS = {"ext4": 0.5, "MooseFS": 0.9}
# The log mounts, each with its options and its name in the rows.
LOG_MOUNTS = {"objects": ("", ""), "containers": ("--new-files container", ", containers")}


class OneWriter:
    """Measures files of one writer and adds their rows to the rows of `logs`."""

    def __init__(self, logs):
        self.logs, self.quick = logs, logs.quick
        self.rounds = 1 if self.quick else ROUNDS
        self.scratch = Path(tempfile.mkdtemp(prefix="one-writer.", dir=logs.scratch))
        self.names_program = self.scratch / "pool_work"
        run(["cc", "-O2", "-Wall", "-o", self.names_program, HERE / "pool_work.c"])

    # --- turns -------------------------------------------------------------------------------------
    @contextmanager
    def place(self, method, root):
        """Yield the directory in which a method works."""
        if method == "plain":
            yield root
        else:
            options, _ = LOG_MOUNTS[method]
            with small_files.mounted(f"{shlex.quote(str(self.logs.quell))} {options}", root) as point:
                yield point

    def in_turns(self, new_root, steps):
        """Return the values of each step by method. `steps` yields (name, value) pairs."""
        found, methods = {}, ["plain", *LOG_MOUNTS]
        for turn in range(self.rounds):
            first = turn % len(methods)
            for method in methods[first:] + methods[:first]:
                with new_root() as root, self.place(method, root) as directory:
                    for name, value in steps(Path(directory)):
                        found.setdefault(name, {}).setdefault(method, []).append(value)
        return found

    def row(self, what, step, unit, values, bar, is_met):
        """Add a row of medians for each kind of log mount; the note has the spread."""
        spread = {method: f"{min(each):.4g} to {max(each):.4g}" for method, each in values.items()}
        plain = median(values["plain"])
        for method, (_, name) in LOG_MOUNTS.items():
            log = median(values[method])
            note = f"median of {self.rounds}, {spread['plain']} and {spread[method]}"
            self.logs.row(f"{what}{name}{step and f': {step}'}", unit, plain, log, bar, bar and is_met(log / plain), note)

    def time_row(self, what, step, values, limit):
        self.row(what, step, "s", values, limit and f"at most {limit} times", lambda ratio: ratio <= limit)

    def rate_row(self, what, step, unit, values, least):
        self.row(what, step, unit, values, f"at least {least} of plain", lambda ratio: ratio >= least)

    # --- work --------------------------------------------------------------------------------------
    def records(self, directory):
        """Write and read small records with four processes: a file for each, and one for all."""
        count = 500 if self.quick else RECORDS
        for pattern, name in (("private", "a file for each process"), ("segmented", "one file")):
            for step, work in (("write", "write-only"), ("read", "read"), ("read again", "read")):
                paths = self.logs.paths([directory] * RANKS, pattern, pattern, reading=work == "read")
                result = self.logs.run_records(work, pattern, count, paths, RECORD)
                yield (name, step), result["bytes"] / result["seconds"] / 1e6

    def names(self, count):
        """Return a function that creates, examines and removes empty files in a directory, with
        different numbers of ranks. It yields the operations per second of all ranks."""

        def steps(directory):
            for ranks in NAME_RANKS:
                target = directory / f"names-{ranks}"
                target.mkdir()
                rates = json.loads(text_of([self.names_program, "names", count, *[target] * ranks]))["rates"]
                for step, rate in zip(("create", "stat", "remove"), rates):
                    yield (ranks, step), rate

        return steps

    def programs(self, tar, tree, repository):
        """Return a function that runs programs in a directory and yields their times and rates."""

        def steps(directory):
            unpacked = directory / "unpacked"
            unpacked.mkdir()
            commands = {"untar": ["tar", "-C", unpacked, "-xf", tar],
                        "git clone": ["git", "clone", "-q", "--no-hardlinks", repository, directory / "clone"],
                        "rsync -a": ["rsync", "-a", f"{tree}/", directory / "copy"]}
            for name, command in commands.items():
                if shutil.which(command[0]):
                    started = time.monotonic()
                    run(command)
                    yield name, time.monotonic() - started
            yield "sqlite WAL", self.transactions(directory)
            if shutil.which("dbench"):
                seconds = 3 if self.quick else DBENCH_S
                output = text_of(["dbench", "-D", directory, "-t", seconds, DBENCH_CLIENTS], stderr=subprocess.DEVNULL)
                yield "dbench", float(re.search(r"^Throughput ([0-9.]+) MB/sec", output, re.M).group(1))

        return steps

    def transactions(self, directory):
        """Return the time of transactions with one inserted row each, in seconds."""
        database = sqlite3.connect(directory / "database", isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, text TEXT)")
        started = time.monotonic()
        for number in range(100 if self.quick else TRANSACTIONS):
            database.execute("INSERT INTO rows VALUES (?, ?)", (number, "x" * 200))
        database.close()
        return time.monotonic() - started

    # --- rows --------------------------------------------------------------------------------------
    def rows(self):
        if self.logs.stand_in or self.logs.why_not:
            self.logs.row("files of one writer", "s", None, None, None, None, self.logs.why_not or "SKIPPED: a stand-in has no kernel cache")
            return
        self.logs.measure_parts({"small records": self.records_rows, "programs": self.programs_rows,
                                 "small files on ext4": self.on_ext4, "small files on MooseFS": self.on_moosefs})

    def names_rows(self, name, new_root, count):
        for (ranks, step), values in self.in_turns(new_root, self.names(count)).items():
            what = f"{name}, phases of mdtest, {ranks} rank{'s' * (ranks > 1)}"
            self.rate_row(what, step, "ops/s", values, NAME_BARS[name])

    def small_files_rows(self, name, new_root, count):
        found = self.in_turns(new_root, lambda directory: small_files.work(directory / "files", count))
        for step, values in found.items():
            self.time_row(f"{name}, {count:,} files of 4 KiB", step, values, BARS[name].get(step))

    @staticmethod
    def new_ext4():
        return small_files.new_file_system(MEMORY)

    def records_rows(self):
        for (name, step), values in self.in_turns(self.new_ext4, self.records).items():
            self.rate_row(f"ext4, {RANKS} processes, {name}, records of 8 KiB", step, "MB/s", values, RECORDS_BAR)

    def programs_rows(self):
        for step, values in self.in_turns(self.new_ext4, self.programs(*sources(self.scratch))).items():
            if step == "dbench":
                self.rate_row(f"ext4, dbench, {DBENCH_CLIENTS} clients", "", "MB/s", values, DBENCH_BAR)
            else:
                self.time_row(f"ext4, {step}", "", values, PROGRAM_BAR)

    def on_ext4(self):
        self.small_files_rows("ext4", self.new_ext4, 200 if self.quick else FILES)
        self.names_rows("ext4", self.new_ext4, 200 if self.quick else NAMES)

    def on_moosefs(self):
        numbers = itertools.count()

        @contextmanager
        def new_root():
            root = self.logs.testbed.path(1, f"one-writer-{next(numbers)}")
            root.mkdir()
            try:
                yield root
            finally:
                shutil.rmtree(root)

        self.small_files_rows("MooseFS", new_root, 50 if self.quick else FILES_MOOSEFS)
        self.names_rows("MooseFS", new_root, 50 if self.quick else NAMES_MOOSEFS)
