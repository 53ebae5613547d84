#!/usr/bin/env python3
"""Measures batches of members in private stores: private_store.py [--files N] [--rounds N] QUELL

Creates a store for a group and a private store, in turns. Their owner commits a directory of N empty
files in one batch. Then a batch of another member of the group lists the directory twice, and creates
a tenth as many files in it. Prints the median time of each step, and the smallest and the largest, in
milliseconds. Needs root, which takes the users 1 and 2.
"""
import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

OWNER, MEMBER, GROUP = 1, 2, 4300100
STEPS = ("first list", "second list", "create a file", "commit")


class Store:
    """A store that its owner serves, in a directory of its own."""

    def __init__(self, quell, scratch, options):
        self.scratch = Path(scratch)
        self.scratch.chmod(0o755)
        self.quell = shutil.copy(quell, self.scratch / "quell")
        for uid in (OWNER, MEMBER):
            for name, mode in (("home", 0o755), ("runtime", 0o700)):
                path = self.scratch / f"{name}-{uid}"
                path.mkdir(mode=mode)
                os.chown(path, uid, uid)
        self.path = self.scratch / f"home-{OWNER}" / "store"
        self.run(OWNER, "batch", "init", self.path, "--group", str(GROUP), *options)

    def command(self, uid, *arguments):
        identity = ["--reuid", str(uid), "--regid", str(uid), "--groups", str(GROUP)]
        runtime = f"QUELL_RUNTIME_DIR={self.scratch}/runtime-{uid}"
        return ["setpriv", *identity, "--", "env", runtime, *map(str, arguments)]

    def run(self, uid, *arguments):
        subprocess.run(self.command(uid, self.quell, *arguments), check=True)

    @contextlib.contextmanager
    def served(self):
        """Serve the store."""
        command = self.command(OWNER, self.quell, "batch", "serve", self.path, "--json")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
            server.stdout.readline()
            try:
                yield
            finally:
                server.terminate()

    def mount(self, uid, below, *options):
        """Mount a directory of the store, and return the mount point."""
        point = self.scratch / f"home-{uid}" / "mount"
        if not point.exists():
            point.mkdir()
            os.chown(point, uid, uid)
        self.run(uid, "mount", "--batch", self.path / below, *options, point)
        return point

    def python(self, uid, script, *arguments):
        """Run a script as a user, and return its output."""
        command = self.command(uid, "python3", "-c", script, *arguments)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


CREATE = """
import os, sys, time
begin = time.monotonic()
for number in range(int(sys.argv[3])):
    os.close(os.open(f"{sys.argv[1]}/{sys.argv[2]}-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
print(time.monotonic() - begin)
"""
LIST = """
import os, sys, time
for _ in range(2):
    begin = time.monotonic()
    count = len(os.listdir(sys.argv[1]))
    print(time.monotonic() - begin)
assert count == int(sys.argv[2]), count
"""


def measure(quell, files, options):
    """Return the times of the steps, in milliseconds."""
    with tempfile.TemporaryDirectory() as scratch:
        store = Store(quell, scratch, options)
        with store.served():
            point = store.mount(OWNER, "")
            store.python(OWNER, "import os, sys; os.umask(0); os.mkdir(sys.argv[1])", point / "dir")
            store.run(OWNER, "umount", point)
            point = store.mount(OWNER, "dir", "--mode", "batch")
            store.python(OWNER, CREATE, point, "old", files)
            store.run(OWNER, "umount", point)
            point = store.mount(MEMBER, "dir", "--mode", "batch", "--trust-owner", OWNER)
            times = [float(line) for line in store.python(MEMBER, LIST, point, files).split()]
            new = max(files // 10, 1)
            times.append(float(store.python(MEMBER, CREATE, point, "new", new)) / new)
            begin = time.monotonic()
            store.run(MEMBER, "umount", point)
            times.append(time.monotonic() - begin)
            return [seconds * 1000 for seconds in times]


def main():
    """Measure both kinds of stores in turns."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("quell", metavar="QUELL")
    arguments = parser.parse_args()
    kinds = {"store for a group": (), "private store": ("--private",)}
    found = {kind: [] for kind in kinds}
    for _ in range(arguments.rounds):
        for kind, options in kinds.items():
            found[kind].append(measure(arguments.quell, arguments.files, options))
    print("milliseconds".ljust(16), *(kind.rjust(30) for kind in kinds))
    for step, name in enumerate(STEPS):
        cells = []
        for rounds in found.values():
            times = [times[step] for times in rounds]
            cells.append(f"{statistics.median(times):.3f} ({min(times):.3f} to {max(times):.3f})")
        print(name.ljust(16), *(cell.rjust(30) for cell in cells))


if __name__ == "__main__":
    main()
