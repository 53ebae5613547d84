#!/usr/bin/env python3
"""Compare two builds of Quell: the rates of names in a pool (pool_work.c), in turns.

Each build has a pool of its own with the same number of daemons, and each round measures one after
the other. Prints medians and ranges. A build is a directory with quell, quelld and
libquell_preload.so.

  benches/macro/pool_builds.py /tmp/before/target/demo target/demo --ranks 4
"""
import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # leaves the checkout unchanged
sys.path.insert(0, str(HERE.parent.parent / "testbed"))
import pool
from measure import Failed, median, processor_s, run, stop_on_signals, text_of

COLUMNS = ("create/s", "stat/s", "remove/s", "us/operation", "of daemons, us")


class Build:
    def __init__(self, directory, name, scratch):
        self.quell, self.pool = Path(directory) / "quell", f"compare-{name}"
        self.data, self.files = scratch / f"data-{name}", scratch / f"files-{name}"
        self.data.mkdir()
        self.files.mkdir()
        self.daemons, self.results = [], []

    def up(self, daemons):
        self.daemons = pool.up(self.quell, self.pool, self.data, daemons)
        run([*self.program(), "mkdir", self.files / "dir"])

    def down(self):
        if self.daemons:
            pool.down(self.quell, self.pool)

    def program(self):
        return [self.quell, "run", "--quiet", "--pool", f"{self.pool}={self.files}", "--"]

    def processor_s(self):
        return sum(map(processor_s, self.daemons))

    def measure(self, work, files, ranks):
        before = self.processor_s()
        found = json.loads(text_of([*self.program(), work, "names", files, *[self.files / "dir"] * ranks]))
        daemons = self.processor_s() - before
        operations = 3 * ranks * files
        times = [seconds / operations * 1e6 for seconds in (found["processor_s"] + daemons, daemons)]
        self.results.append([*found["rates"], *times])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs=2, metavar="DIR", help="a directory with quell, quelld and libquell_preload.so")
    parser.add_argument("--daemons", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--files", type=int, default=5000, help="files of each rank")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pool-builds-") as scratch:
        scratch = Path(scratch)
        os.environ["XDG_RUNTIME_DIR"] = str(scratch)
        work = scratch / "pool_work"
        run(["cc", "-O2", "-Wall", "-o", work, HERE / "pool_work.c"])
        builds = [Build(directory, name, scratch) for directory, name in zip(options.builds, "ab")]
        try:
            for build in builds:
                build.up(options.daemons)
            for _ in range(options.rounds):
                for build in builds:
                    build.measure(work, options.files, options.ranks)
        finally:
            for build in builds:
                build.down()
    for directory, build in zip(options.builds, builds):
        print(directory)
        for column, values in zip(COLUMNS, zip(*build.results)):
            print(f"  {column:16} {median(values):12,.1f}   {min(values):,.1f} to {max(values):,.1f}")


if __name__ == "__main__":
    stop_on_signals()
    try:
        main()
    except (Failed, OSError) as error:
        sys.exit(f"pool_builds: {error}")
