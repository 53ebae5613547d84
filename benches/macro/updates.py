#!/usr/bin/env python3
"""Count the operations of `quell index --update` and `--update=dirs` on MooseFS, and time them.

    updates.py [--files FILES] [--directories DIRECTORIES] [--repeats REPEATS]

A tree is indexed, and gets one new directory with 100 files, as after the installation of a
package. Each kind of update begins with the same old index, on a node with empty caches; the kinds
of update are repeated in turn. All are measured once more with requests that take 0.5 ms longer.
Prints the table of docs/techniques/index.md. Needs root; $QUELL is the quell binary.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True  # leaves the checkout unchanged
sys.path.insert(0, str(TOP / "testbed"))
from measure import Failed, Testbed, median, run, stop_on_signals

NODE = 2
NEW_FILES = 100
LATENCY_US = 500


def make(tree, files, directories):
    for number in range(directories):
        tree.joinpath(f"d{number:05}").mkdir(parents=True)
    for number in range(files):
        tree.joinpath(f"d{number % directories:05}", f"f{number:06}").write_text(f"{number}\n")


def add_package(tree):
    new = tree / "new-package"
    new.mkdir()
    for number in range(NEW_FILES):
        new.joinpath(f"f{number:03}").write_text(f"{number}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=40_000, metavar="FILES", help="default: 40000")
    parser.add_argument("--directories", type=int, default=4_000, metavar="DIRECTORIES", help="default: 4000")
    parser.add_argument("--repeats", type=int, default=3, metavar="REPEATS", help="default: 3")
    arguments = parser.parse_args()
    quell = os.environ.get("QUELL") or str(TOP / "target/dist/quell")
    if not os.access(quell, os.X_OK):
        raise Failed(f"there is no program {quell}; build it or name another one in $QUELL")
    run([TOP / "scripts/install-deps", "moosefs"])
    with tempfile.TemporaryDirectory(prefix="quell-updates.") as scratch, Testbed(Path(scratch, "moosefs"), 2).up() as testbed:
        make(testbed.path(1, "tree"), arguments.files, arguments.directories)
        tree, old, index = testbed.path(NODE, "tree"), Path(scratch, "old.quell"), Path(scratch, "tree.quell")
        run([quell, "index", "--quiet", tree, "-o", old])
        add_package(testbed.path(1, "tree"))
        ways = {
            "new index": ["index", "--quiet", tree, "-o", index, "--force"],
            "`--update`": ["index", "--quiet", "--update", index],
            "`--update=dirs`": ["index", "--quiet", "--update=dirs", index],
        }
        found = {(way, latency): [] for way in ways for latency in (0, LATENCY_US)}
        for _ in range(arguments.repeats):
            for (way, latency), measured in found.items():
                index.unlink(missing_ok=True)
                if way != "new index":
                    shutil.copyfile(old, index)
                testbed.drop(NODE)
                testbed.delay(NODE, latency)
                try:
                    seconds, messages, _ = testbed.measured(NODE, lambda: run([quell, *ways[way]]))
                finally:
                    testbed.delay(NODE, 0)
                measured.append((seconds, messages))
        print("| | messages to the master | time | time with 0.5 ms of latency |\n|---|---|---|---|")
        for way in ways:
            near, far = found[way, 0], found[way, LATENCY_US]
            times = " | ".join(f"{median([seconds for seconds, _ in measured]):.2f} s" for measured in (near, far))
            print(f"| {way} | {median([messages for _, messages in near]):,.0f} | {times} |")


if __name__ == "__main__":
    stop_on_signals()
    try:
        main()
    except (Failed, subprocess.SubprocessError) as error:
        print(f"updates: {error}", file=sys.stderr)
        sys.exit(3)
