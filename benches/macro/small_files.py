#!/usr/bin/env python3
"""Measures small files: small_files.py [--files N] [--rounds N] [--scratch DIR | --in DIR] QUELL...

Creates files of 4 KiB, reads their attributes and content, lists them twice with `ls -l` and removes
them, in a plain directory and through a log mount of each QUELL in turns. QUELL is the path to a
binary, which options of `quell mount` may follow, as in "target/demo/quell --new-files object". One
process makes one system call after the other. Prints the median time for each file, and the
smallest and the largest.

Each turn has a new ext4 in a file in DIR. On an ext4 in use, the creation of an inode first passes
over each inode of its group that was deleted in the last minutes (recently_deleted() in
fs/ext4/ialloc.c of Linux). This takes milliseconds after a removal of thousands of files, and would
be most of the measured time. If DIR is in memory, the time of the disk is not part of the result.
With `--in DIR`, each turn has a new directory in DIR instead, for example in a node of a test bed.
"""
import argparse
import contextlib
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILE_BYTES = 4096
IMAGE_BYTES = 4 << 30
START_S = 4  # a mount lets the kernel keep names two seconds after its start


def run(*command, **options):
    subprocess.run(command, check=True, **options)


@contextlib.contextmanager
def new_file_system(scratch):
    """Yield the mount point of a new ext4."""
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        image, point = Path(directory, "image"), Path(directory, "point")
        point.mkdir()
        image.touch()
        os.truncate(image, IMAGE_BYTES)
        run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
        run("mount", "-o", "loop", image, point)
        try:
            yield point
        finally:
            run("umount", point)


@contextlib.contextmanager
def new_directory(parent):
    """Yield a new directory in an existing file system."""
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        yield Path(directory)


@contextlib.contextmanager
def mounted(quell, root):
    """Yield the mount point of a log mount with its store in `root`. `quell` may have options."""
    quell, *options = shlex.split(str(quell))
    with tempfile.TemporaryDirectory() as runtime:
        store, point = Path(root, "store"), Path(runtime, "mount")
        for directory in (store, point):
            directory.mkdir(mode=0o700)
        environment = {**os.environ, "QUELL_RUNTIME_DIR": runtime}
        run(quell, "mount", "--quiet", *options, "--log", store, point, env=environment)
        try:
            # A mount without requests does not become the only user of its store.
            until = time.monotonic() + START_S
            while time.monotonic() < until:
                os.stat(point)
                time.sleep(0.1)
            yield point
        finally:
            run(quell, "umount", point, env=environment)


def work(directory, count):
    """Yield the name and the duration of each step in seconds."""
    directory.mkdir()
    names = [f"{directory}/file{i}" for i in range(count)]
    data = os.urandom(FILE_BYTES)

    def create(name):
        file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        os.write(file, data)
        os.close(file)

    def read(name):
        file = os.open(name, os.O_RDONLY)
        if os.read(file, 2 * FILE_BYTES) != data:
            raise SystemExit(f"{name}: wrong content")
        os.close(file)

    def each(act):
        return lambda: [act(name) for name in names]

    def list_all():
        run("ls", "-l", directory, stdout=subprocess.DEVNULL)

    steps = {
        "create": each(create),
        "stat": each(os.stat),
        "ls -l": list_all,
        "ls -l again": list_all,
        "read": each(read),
        "remove": each(os.unlink),
    }
    for name, step in steps.items():
        begin = time.monotonic()
        step()
        yield name, time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", default="/dev/shm")
    parser.add_argument("--in", dest="parent")
    parser.add_argument("quell", nargs="+")
    options = parser.parse_args()
    if not options.parent and (os.geteuid() != 0 or not shutil.which("mkfs.ext4")):
        sys.exit("SKIPPED: needs root, to mount file systems, and mkfs.ext4")
    methods = ["plain", *options.quell]
    found = {}
    for number in range(options.rounds):
        first = number % len(methods)
        for method in methods[first:] + methods[:first]:
            new = new_directory(options.parent) if options.parent else new_file_system(options.scratch)
            with new as root, contextlib.ExitStack() as stack:
                place = root if method == "plain" else stack.enter_context(mounted(method, root))
                for step, seconds in work(Path(place, "directory"), options.files):
                    found.setdefault(step, {}).setdefault(method, []).append(seconds / options.files * 1e6)
    print(f"{options.files} files, {options.rounds} rounds; microseconds for each file; load", os.getloadavg())
    for step, rates in found.items():
        for method, times in rates.items():
            print(f"{step:12} {statistics.median(times):7.0f} ({min(times):.0f} to {max(times):.0f}) {method}")


if __name__ == "__main__":
    main()
