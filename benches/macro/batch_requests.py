#!/usr/bin/env python3
"""Counts the requests of the kernel to a mount of a store for batches: batch_requests.py QUELL

Works on 300 files in a directory, in a mount of a server's client, in one whose names the kernel
keeps, and in one of a batch, and prints a table of the requests for each file. QUELL is the path to
a binary. The numbers do not depend on the speed of the machine.
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILES = 300
FILE_BYTES = 4096
START_LIMIT_S = 60
# The counters that count each request once. `made` and `opens` count a create together.
REQUESTS = (
    "lookups", "attributes", "listings", "links_read", "xattrs", "opens", "opens_refused", "reads", "made",
    "removed", "renamed", "changes", "writes", "published", "synced",
)


def run(*command, **options):
    return subprocess.run(command, check=True, **options)


@contextlib.contextmanager
def server(quell, store):
    """Serve the store until the end of the block."""
    process = subprocess.Popen([quell, "batch", "serve", store])
    try:
        until = time.monotonic() + START_LIMIT_S
        while not Path(store, "socket").exists():
            if process.poll() is not None or time.monotonic() > until:
                sys.exit("the server did not start")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def mounted(quell, store, point, *options):
    point.mkdir()
    run(quell, "mount", "--batch", store, point, *options)
    try:
        yield point
    finally:
        run(quell, "umount", point)


def requests(quell, point):
    found = run(quell, "stats", "--json", point, stdout=subprocess.PIPE, text=True)
    counters = json.loads(found.stdout)[0]["batch"]["counters"]
    return sum(counters[name] for name in REQUESTS)


def steps(directory):
    """Return the steps: a name, the work with one number, and whether it is a create."""
    data = bytes(FILE_BYTES)

    def create(kind, content):
        def one(number):
            file = os.open(f"{directory}/{kind}{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            if content:
                os.write(file, content)
            os.close(file)
        return one

    def read(number):
        file = os.open(f"{directory}/data{number}", os.O_RDONLY)
        os.read(file, FILE_BYTES)
        os.close(file)

    def stat(number):
        os.stat(f"{directory}/data{number}")

    def missing(number):
        with contextlib.suppress(FileNotFoundError):
            os.stat(f"{directory}/missing{number}")

    return [
        ("create, close", create("empty", b""), True),
        ("create, write 4 KiB, close", create("data", data), True),
        ("open, read, close", read, False),
        ("the same again", read, False),
        ("stat after a read", stat, False),
        ("stat again", stat, False),
        ("stat of a missing name", missing, False),
        ("stat of the missing name again", missing, False),
        ("rename", lambda number: os.rename(f"{directory}/data{number}", f"{directory}/new{number}"), False),
        ("remove", lambda number: os.unlink(f"{directory}/empty{number}"), False),
    ]


def count(quell, point):
    directory = point / "directory"
    directory.mkdir()
    found = []
    for name, act, is_create in steps(directory):
        before = requests(quell, point)
        for number in range(FILES):
            act(number)
        made = requests(quell, point) - before
        found.append((name, made / FILES - is_create))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("quell")
    quell = parser.parse_args().quell
    with tempfile.TemporaryDirectory() as temporary:
        temporary = Path(temporary)
        os.environ["QUELL_RUNTIME_DIR"] = str(temporary)
        store = temporary / "store"
        run(quell, "batch", "init", store)
        with server(quell, store), mounted(quell, store, temporary / "client") as point:
            shared = count(quell, point)
        run(quell, "batch", "init", temporary / "own")
        with mounted(quell, temporary / "own", temporary / "alone") as point:
            kept = count(quell, point)
        run(quell, "batch", "init", temporary / "second")
        with mounted(quell, temporary / "second", temporary / "batch", "--mode", "batch") as point:
            private = count(quell, point)
    print("| step | mount of a server's client | names are kept | batch |\n|---|---|---|---|")
    for (name, in_shared), (_, in_kept), (_, in_private) in zip(shared, kept, private):
        print(f"| {name} | {in_shared:.0f} | {in_kept:.0f} | {in_private:.0f} |")


if __name__ == "__main__":
    main()
