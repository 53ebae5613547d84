#!/usr/bin/env python3
"""Measures how much FUSE over io_uring and FUSE passthrough save: fuse_transports.py PASSTHROUGH_HP

PASSTHROUGH_HP is the example server passthrough_hp of libfuse 3.18 or newer. It passes each request
on to a directory, so its times are a lower bound for every FUSE server. The methods are a plain
directory, the server with requests that are read(2) from /dev/fuse, with requests over io_uring
(`-o io_uring`), and the same two with passthrough, in which the kernel reads and writes the data of
an open file without the server. They take turns, each on a new ext4 in memory, with the work of
small_files.py and with records of 8 KiB of four processes. Prints medians, the smallest and the
largest values.

If the server has functions for extended attributes, the kernel requests `security.capability` before
each write, and writes are a third as fast: replace `#ifdef HAVE_SETXATTR` by `#if 0` in its source.

Needs root. The parameter enable_uring of the kernel's FUSE is set meanwhile, and restored.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True  # leaves the checkout unchanged
import small_files

HERE = Path(__file__).resolve().parent
MEMORY = "/dev/shm"
ENABLE = Path("/sys/module/fuse/parameters/enable_uring")
SERVERS = {
    "requests": ["--nopassthrough"],
    "io_uring": ["--nopassthrough", "-o", "io_uring"],
    "passthrough": [],
    "passthrough, io_uring": ["-o", "io_uring"],
}
RANKS, RECORD, RECORDS = 4, 8_192, 4_096
MOUNT_S = 10


@contextlib.contextmanager
def served(command, root):
    """Yield the mount point of a server that passes requests on to a directory in `root`."""
    source, point = root / "source", root / "point"
    source.mkdir()
    point.mkdir()
    server = subprocess.Popen([*command, "--foreground", source, point], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + MOUNT_S
        while not os.path.ismount(point):
            if server.poll() is not None or time.monotonic() > until:
                sys.exit(f"{command[0]} has not mounted its directory; exit code {server.poll()}")
            time.sleep(0.01)
        yield point
    finally:
        if os.path.ismount(point):
            small_files.run("umount", point)
        try:
            server.wait(MOUNT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextlib.contextmanager
def io_uring_enabled():
    before = ENABLE.read_text().strip()
    ENABLE.write_text("Y")
    try:
        yield
    finally:
        ENABLE.write_text(before)


def records(program, directory):
    """Yield the name and the rate in MB/s of each step."""
    for pattern, name in (("private", "a file for each process"), ("segmented", "one file")):
        paths = [str(directory / f"{pattern}-{rank if pattern == 'private' else 0}") for rank in range(RANKS)]
        for step, work in (("write", "write-only"), ("read", "read")):
            command = [program, work, pattern, str(RECORDS), str(RECORD), *paths]
            result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            yield f"{name}: {step}", result["bytes"] / result["seconds"] / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("server", metavar="PASSTHROUGH_HP")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("SKIPPED: needs root, to mount file systems")
    if not ENABLE.exists():
        sys.exit("SKIPPED: this kernel has no FUSE over io_uring")
    methods = ["plain", *SERVERS]
    files, rates = {}, {}
    with tempfile.TemporaryDirectory() as scratch, io_uring_enabled():
        program = Path(scratch, "records")
        small_files.run("cc", "-O2", "-Wall", "-o", program, HERE / "records.c")
        for number in range(options.rounds):
            first = number % len(methods)
            for method in methods[first:] + methods[:first]:
                with small_files.new_file_system(MEMORY) as root, contextlib.ExitStack() as stack:
                    place = Path(root)
                    if method != "plain":
                        place = stack.enter_context(served([options.server, *SERVERS[method]], place))
                    for step, seconds in small_files.work(place / "directory", options.files):
                        files.setdefault(step, {}).setdefault(method, []).append(seconds / options.files * 1e6)
                    for step, rate in records(program, place):
                        rates.setdefault(step, {}).setdefault(method, []).append(rate)
    print(f"{options.rounds} rounds; load", os.getloadavg())
    for title, found in (("microseconds for each file of 4 KiB", files), ("MB/s with records of 8 KiB", rates)):
        print(title)
        for step, methods in found.items():
            for method, values in methods.items():
                print(f"{step:31} {statistics.median(values):7,.0f} ({min(values):,.0f} to {max(values):,.0f}) {method}")


if __name__ == "__main__":
    main()
