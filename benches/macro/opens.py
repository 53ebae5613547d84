#!/usr/bin/env python3
"""Count the operations of opens that an index passes on to MooseFS or CephFS.

    opens.py [moosefs|cephfs]

One process, and two at once, read 1,000 files in 277 directories on a node with empty caches:
directly, and in the overlay and FUSE views of an index. Prints the tables of
docs/techniques/index.md, and the number of files that can be opened by handle. On MooseFS, the
times are those of a node whose requests take 0.5 ms longer. Needs root; $QUELL is the quell binary.
"""
import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True  # leaves the checkout unchanged
sys.path.insert(0, str(TOP / "testbed"))
from measure import Failed, Testbed, run, stop_on_signals

NODE = 2
FILES, DIRECTORIES = 1000, 277
HANDLES = 100
LATENCY_US = 500
HANDLE_BYTES_MAX = 128


def make(tree):
    """Create the tree, and return the paths of its files."""
    files = [tree / f"d{number % DIRECTORIES:03}" / f"f{number:04}" for number in range(FILES)]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{file.name}\n")
    return files


class Handle(ctypes.Structure):
    """struct file_handle of name_to_handle_at(2)."""

    _fields_ = [("bytes", ctypes.c_uint), ("kind", ctypes.c_int), ("handle", ctypes.c_ubyte * HANDLE_BYTES_MAX)]


LIBC = ctypes.CDLL(None, use_errno=True)


def handle_of(path):
    handle, mount = Handle(HANDLE_BYTES_MAX), ctypes.c_int()
    if LIBC.name_to_handle_at(-100, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount), 0) != 0:
        raise Failed(f"no handle of {path}: {os.strerror(ctypes.get_errno())}")
    return handle


def opened(directory, handles):
    """Return the number of handles with which files can be opened, and the errors of the others."""
    mount, count, errors = os.open(directory, os.O_RDONLY), 0, set()
    for handle in handles:
        file = LIBC.open_by_handle_at(mount, ctypes.byref(handle), os.O_RDONLY)
        if file < 0:
            errors.add(os.strerror(ctypes.get_errno()))
        else:
            count += 1
            os.close(file)
    os.close(mount)
    return count, errors


class MooseFs:
    script = "moosefs"
    columns = ("lookups", "opens", "messages to the master", "time with 0.5 ms of latency")

    def __init__(self, testbed):
        self.testbed = testbed

    def operations(self, action):
        """Run `action`. Return the number of operations for each column, and the seconds."""
        self.testbed.drop(NODE)
        _, messages, changed = self.testbed.measured(NODE, action)
        lookups, opens = (changed.get(f"fuse_ops.{name}", 0) for name in ("lookup.master", "open"))
        self.testbed.delay(NODE, LATENCY_US)
        try:
            seconds, _, _ = self.testbed.measured(NODE, action)
        finally:
            self.testbed.delay(NODE, 0)
        return (lookups, opens, messages), seconds


class CephFs:
    script = "cephfs"
    columns = ("metadata operations", "data operations", "time")

    def __init__(self, testbed):
        self.testbed = testbed

    def counts(self):
        return [int(word) for word in self.testbed.command("ops", str(NODE)).split()]

    def operations(self, action):
        """Run `action`. Return the number of operations for each column, and the seconds."""
        self.testbed.drop(NODE)
        before, started = self.counts(), time.monotonic()
        action()
        seconds = time.monotonic() - started
        return [after - count for after, count in zip(self.counts(), before)], seconds


def print_handles(testbed, files):
    """Open files by handle, before and after the node is mounted again."""
    point = testbed.path(NODE)
    testbed.drop(NODE)
    handles = [handle_of(file) for file in files[:HANDLES]]
    for when in ("before", "after"):
        if when == "after":
            testbed.drop(NODE)
        count, errors = opened(point, handles)
        print(f"{when} a remount: {count} of {len(handles)} files opened by handle {errors or ''}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = {kind.script: kind for kind in (MooseFs, CephFs)}
    parser.add_argument("kind", nargs="?", choices=sorted(kinds), default="moosefs", help="the file system (default: moosefs)")
    kind = kinds[parser.parse_args().kind]
    quell = os.environ.get("QUELL") or str(TOP / "target/dist/quell")
    if not os.access(quell, os.X_OK):
        raise Failed(f"there is no program {quell}; build it or name another one in $QUELL")
    run([TOP / "scripts/install-deps", kind.script])
    with tempfile.TemporaryDirectory(prefix="quell-opens.") as scratch, Testbed(Path(scratch, kind.script), 2, kind.script).up() as testbed:
        tree, index = testbed.path(1, "tree"), testbed.path(1, "tree.quell")
        files = [testbed.path(NODE, path.relative_to(testbed.path(1))) for path in make(tree)]
        run([quell, "index", "--quiet", tree, "-o", index])
        words = Path(scratch, "files")
        words.write_text("\0".join(map(str, sorted(files))))
        counted = kind(testbed)
        print(f"| | {' | '.join(kind.columns)} |\n|{'---|' * (1 + len(kind.columns))}")
        for processes, title in ((1, ""), (2, "two processes at once: ")):
            # Several processes read the same files in the same order.
            read = 'for number in $(seq "$0"); do xargs -0 cat <"$1" >/dev/null & done; wait'
            program = ["sh", "-c", read, str(processes), words]
            cover = [quell, "run", "--quiet", "--strict", "--check", "sample", "-i", testbed.path(NODE, "tree.quell"), "--source",
                     testbed.path(NODE, "tree")]
            for way, command in (("direct", program), ("overlay view", [*cover, "--view", "overlay", "--", *program]),
                                 ("FUSE view", [*cover, "--view", "fuse", "--", *program])):
                counts, seconds = counted.operations(lambda: run(command))
                print(f"| {title}{way} | {' | '.join(f'{count:,}' for count in counts)} | {seconds:.2f} s |", flush=True)
        print_handles(testbed, files)


if __name__ == "__main__":
    stop_on_signals()
    try:
        main()
    except (Failed, subprocess.SubprocessError) as error:
        print(f"opens: {error}", file=sys.stderr)
        sys.exit(3)
