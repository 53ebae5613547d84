"""Checks locks of flock(2) and fcntl(2) on one file through two mounts of one store.

  log_locks.py CHECK MOUNT MOUNT

CHECK is the name of a function below. Prints `CHECK: done` if all is as it should be. Nothing
depends on the speed of the machine: a wait ends when the expected event has happened, and fails
only after LIMIT_S.
"""

import ctypes
import errno
import fcntl
import os
import signal
import sqlite3
import struct
import sys
import time

LIMIT_S = 300
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
OFFSET_LAST = 2**63 - 2
WAITERS = 40  # more than the mount has workers
INCREMENTS = int(os.environ.get("INCREMENTS", 50))


def lock_struct(kind, start, length):
    """Return a `struct flock` of a 64-bit system."""
    return struct.pack("hhqqi", kind, os.SEEK_SET, start, length, 0)


def open_file(path):
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def refused(call, *numbers):
    """Check that `call` fails with one of these error numbers."""
    try:
        call()
    except OSError as error:
        assert error.errno in numbers, error
        return
    raise AssertionError("this must be refused")


def conflicts(call):
    refused(call, errno.EAGAIN, errno.EACCES)


def try_range(fd, kind, start=0, length=0):
    fcntl.lockf(fd, kind | fcntl.LOCK_NB if kind != fcntl.LOCK_UN else kind, length, start)


def try_flock(fd, kind):
    fcntl.flock(fd, kind | fcntl.LOCK_NB)


def in_child(act):
    """Run `act` in a child process, whose exit code is 0 if it does not fail."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException as error:  # the parent reports the failure
            print(f"child: {error!r}", file=sys.stderr, flush=True)
        os._exit(code)
    return child


def ended(child):
    """Wait for a child and return its status."""
    start = time.monotonic()
    while time.monotonic() - start < LIMIT_S:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(0.01)
    raise AssertionError("a child does not end")


def until(is_so, condition):
    start = time.monotonic()
    while not is_so():
        assert time.monotonic() - start < LIMIT_S, condition
        time.sleep(0.01)


def waits(thread):
    """Return whether a thread waits in a system call that a signal cannot end (`D`) or can (`S`)."""
    with open(f"/proc/{thread}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] in "DS"


def counter(mounts):
    """Processes on both mounts increment a counter under a lock: no increment is lost."""
    ways = {
        "lockf": lambda fd, kind: fcntl.lockf(fd, kind, 8, 0),
        "flock": fcntl.flock,
        "ofd": lambda fd, kind: fcntl.fcntl(
            fd, F_OFD_SETLKW,
            lock_struct(fcntl.F_UNLCK if kind == fcntl.LOCK_UN else fcntl.F_WRLCK, 0, 8)),
    }
    for name, lock in ways.items():
        files = [f"{mount}/counter-{name}" for mount in mounts]
        with open(files[0], "wb") as file:
            file.write(struct.pack("<q", 0))

        def increment(path):
            fd = os.open(path, os.O_RDWR)
            for _ in range(INCREMENTS):
                lock(fd, fcntl.LOCK_EX)
                (value,) = struct.unpack("<q", os.pread(fd, 8, 0))
                os.pwrite(fd, struct.pack("<q", value + 1), 0)
                lock(fd, fcntl.LOCK_UN)

        children = [in_child(lambda: increment(files[number % 2])) for number in range(4)]
        assert [ended(child) for child in children] == [0] * 4
        for path in files:
            with open(path, "rb") as file:
                assert struct.unpack("<q", file.read()) == (4 * INCREMENTS,), name


def exclusion(mounts):
    """Locks conflict between mounts, and between processes of one mount, as fcntl(2) states."""
    here, there = (open_file(f"{mount}/exclusion") for mount in mounts)

    # Each mount is asked by a process of its own: locks of one process never conflict.
    def other(act):
        assert ended(in_child(act)) == 0

    for fd in (here, there):
        try_range(here, fcntl.LOCK_EX, 10, 10)
        other(lambda: conflicts(lambda: try_range(fd, fcntl.LOCK_SH, 19, 1)))
        other(lambda: try_range(fd, fcntl.LOCK_EX, 20, 0))
        other(lambda: try_range(fd, fcntl.LOCK_EX, 0, 10))

        def query():
            found = fcntl.fcntl(fd, fcntl.F_GETLK, lock_struct(fcntl.F_RDLCK, 5, 100))
            assert struct.unpack("hhqqi", found)[:4] == (fcntl.F_WRLCK, os.SEEK_SET, 10, 10), found
            found = fcntl.fcntl(fd, fcntl.F_GETLK, lock_struct(fcntl.F_RDLCK, 20, 100))
            assert struct.unpack("hh", found[:4])[0] == fcntl.F_UNLCK, found

        other(query)
        try_range(here, fcntl.LOCK_SH, 10, 5)
        other(lambda: try_range(fd, fcntl.LOCK_SH, 10, 5))
        other(lambda: conflicts(lambda: try_range(fd, fcntl.LOCK_EX, 10, 5)))
        other(lambda: conflicts(lambda: try_range(fd, fcntl.LOCK_SH, 15, 1)))
        # Unlocking the middle leaves both ends locked.
        try_range(here, fcntl.LOCK_EX, 0, 0)
        try_range(here, fcntl.LOCK_UN, 100, 100)
        other(lambda: try_range(fd, fcntl.LOCK_EX, 100, 100))
        other(lambda: conflicts(lambda: try_range(fd, fcntl.LOCK_SH, 99, 1)))
        other(lambda: conflicts(lambda: try_range(fd, fcntl.LOCK_SH, OFFSET_LAST, 1)))
        try_range(here, fcntl.LOCK_UN, 0, 0)

        # Unlocking all parts of a lock of the whole file, one after the other, frees it for flock.
        try_range(here, fcntl.LOCK_EX, 0, 0)
        try_range(here, fcntl.LOCK_UN, 0, 50)
        try_range(here, fcntl.LOCK_UN, 50, 0)
        other(lambda: (try_flock(fd, fcntl.LOCK_EX), try_flock(fd, fcntl.LOCK_UN)))

    # flock: the open file is the owner, not the process.
    again = [open_file(f"{mount}/exclusion") for mount in mounts]
    try_flock(here, fcntl.LOCK_EX)
    for fd in (there, *again):
        conflicts(lambda: try_flock(fd, fcntl.LOCK_SH))
    try_flock(here, fcntl.LOCK_SH)
    for fd in (there, *again):
        try_flock(fd, fcntl.LOCK_SH)
        conflicts(lambda: try_flock(fd, fcntl.LOCK_EX))
        try_flock(fd, fcntl.LOCK_SH)
        try_flock(fd, fcntl.LOCK_UN)
    try_flock(here, fcntl.LOCK_UN)

    # The locks of flock and fcntl do not conflict, also not those of one process.
    try_flock(here, fcntl.LOCK_EX)
    try_range(here, fcntl.LOCK_EX, 0, 0)
    conflicts(lambda: try_flock(there, fcntl.LOCK_SH))
    try_flock(here, fcntl.LOCK_UN)
    try_flock(there, fcntl.LOCK_EX)
    other(lambda: conflicts(lambda: try_range(there, fcntl.LOCK_EX, 7, 1)))
    try_range(here, fcntl.LOCK_UN, 0, 0)
    try_flock(there, fcntl.LOCK_UN)

    # Open file description locks.
    exclusive = lock_struct(fcntl.F_WRLCK, 3, 4)
    fcntl.fcntl(here, F_OFD_SETLK, exclusive)
    for fd in (there, *again):
        conflicts(lambda: fcntl.fcntl(fd, F_OFD_SETLK, exclusive))
        found = fcntl.fcntl(fd, F_OFD_GETLK, exclusive)
        assert struct.unpack("hhqqi", found)[:4] == (fcntl.F_WRLCK, os.SEEK_SET, 3, 4), found
    os.close(here)
    until(lambda: is_free(there, exclusive), "the lock of a closed file is not released")


def is_free(fd, lock):
    try:
        fcntl.fcntl(fd, F_OFD_SETLK, lock)
    except BlockingIOError:
        return False
    return True


def closes(mounts):
    """Locks end with their owner: a close, an exit, SIGKILL; and not before."""
    here, there = (f"{mount}/closes" for mount in mounts)
    held, reading = open_file(here), os.pipe()

    def hold(kill):
        child_file = os.open(here, os.O_RDWR)
        fcntl.lockf(child_file, fcntl.LOCK_EX, 5, 0)
        fcntl.flock(child_file, fcntl.LOCK_EX)
        os.pwrite(child_file, b"by the child", 100)
        os.write(reading[1], b"!")
        if kill:
            signal.pause()

    other = open_file(there)
    for kill in (False, True):
        child = in_child(lambda: hold(kill))
        assert os.read(reading[0], 1) == b"!"
        if kill:
            conflicts(lambda: try_range(other, fcntl.LOCK_SH, 4, 1))
            os.kill(child, signal.SIGKILL)
        ended(child)
        fcntl.lockf(other, fcntl.LOCK_EX, 5, 0)
        assert os.pread(other, 12, 100) == b"by the child"
        fcntl.lockf(other, fcntl.LOCK_UN, 5, 0)
        fcntl.flock(other, fcntl.LOCK_EX)
        fcntl.flock(other, fcntl.LOCK_UN)

    # A close of one of two descriptors makes data visible. The mount's own files stay open.
    writer = os.open(here, os.O_RDWR)
    for number in range(20):
        expected = b"%012d" % number
        os.pwrite(writer, expected, 300)
        os.close(os.dup(writer))
        reader = os.open(there, os.O_RDONLY)
        assert os.pread(reader, 12, 300) == expected
        os.close(reader)
    os.close(writer)

    # A close of any descriptor of the file ends the process's locks of fcntl, not those of flock.
    twin = os.open(here, os.O_RDWR)
    fcntl.lockf(held, fcntl.LOCK_EX, 5, 0)
    fcntl.lockf(other, fcntl.LOCK_SH, 5, 10)
    os.close(twin)
    try_range(other, fcntl.LOCK_EX, 0, 5)
    os.close(held)
    held = os.open(here, os.O_RDWR)
    try_range(other, fcntl.LOCK_UN)
    # A duplicate keeps a lock of flock, and so does a child.
    fcntl.flock(held, fcntl.LOCK_EX)
    twin = os.dup(held)
    os.close(held)
    conflicts(lambda: try_flock(other, fcntl.LOCK_SH))
    go = os.pipe()
    child = in_child(lambda: os.read(go[0], 1))
    os.close(twin)
    conflicts(lambda: try_flock(other, fcntl.LOCK_SH))
    os.write(go[1], b"!")
    ended(child)
    fcntl.flock(other, fcntl.LOCK_EX)

    # A process that closes a file and opens it again keeps the lock that it takes afterwards.
    for _ in range(100):
        fd = os.open(here, os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 200)
        os.close(fd)
        fd = os.open(here, os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 200)
        assert ended(in_child(lambda: conflicts(lambda: try_range(other, fcntl.LOCK_EX, 200, 1)))) == 0
        os.close(fd)


def waiting(mounts):
    """A waiting request gets the lock when it is free, ends with a signal, and delays no others."""
    here, there = (open_file(f"{mount}/waiting") for mount in mounts)
    for kind in ("lockf", "flock"):
        take = {"lockf": lambda fd, how: fcntl.lockf(fd, how, 0, 0), "flock": fcntl.flock}[kind]
        for path in (f"{mount}/waiting" for mount in mounts):
            take(here, fcntl.LOCK_EX)

            def wait_for_it():
                fd = os.open(path, os.O_RDWR)
                take(fd, fcntl.LOCK_EX)
                assert os.pread(fd, 4, 0) == kind[:4].encode(), "the data of the previous owner"

            children = [in_child(wait_for_it) for _ in range(WAITERS)]
            # Others work meanwhile: more processes wait than the mount has workers.
            for number in range(20):
                for mount in mounts:
                    name = f"{mount}/other-{number}"
                    with open(name, "wb") as file:
                        file.write(b"x" * 1000)
                    assert os.stat(name).st_size == 1000
                    os.unlink(name)
            for child in children:
                assert os.waitpid(child, os.WNOHANG) == (0, 0), "it got a lock that is held"
            os.pwrite(here, kind[:4].encode(), 0)
            take(here, fcntl.LOCK_UN)
            assert [ended(child) for child in children] == [0] * WAITERS

    # Signals: the default action, a handler, SIGKILL.
    fcntl.flock(here, fcntl.LOCK_EX)
    fcntl.lockf(here, fcntl.LOCK_EX, 0, 0)
    for path in (f"{mount}/waiting" for mount in mounts):
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1):
            for take in (fcntl.flock, fcntl.lockf):

                def wait_in_vain():
                    fd = os.open(path, os.O_RDWR)
                    signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
                    os.write(ready[1], b"!")
                    take(fd, fcntl.LOCK_EX)

                ready = os.pipe()
                child = in_child(wait_in_vain)
                assert os.read(ready[0], 1) == b"!"
                until(lambda: waits(child), "the child does not wait")
                os.kill(child, number)
                status = ended(child)
                expected = 7 if number == signal.SIGUSR1 else -number
                assert os.waitstatus_to_exitcode(status) == expected, status
                for end in ready:
                    os.close(end)

    # A handler with SA_RESTART continues the wait.
    class Flag:
        count = 0

    def restarted():
        fd = os.open(f"{mounts[1]}/waiting", os.O_RDWR)

        def handler(*_):
            Flag.count += 1

        signal.signal(signal.SIGUSR1, handler)
        signal.siginterrupt(signal.SIGUSR1, False)
        os.write(ready[1], b"!")
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.flock(fd, fcntl.LOCK_EX) == 0, ctypes.get_errno()
        assert Flag.count == 1

    ready = os.pipe()
    child = in_child(restarted)
    assert os.read(ready[0], 1) == b"!"
    until(lambda: waits(child), "the child does not wait")
    os.kill(child, signal.SIGUSR1)
    time.sleep(0.3)
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "it must wait again"
    fcntl.flock(here, fcntl.LOCK_UN)
    fcntl.lockf(here, fcntl.LOCK_UN, 0, 0)
    assert ended(child) == 0


def names(mounts):
    """A renamed file keeps its locks; a file that replaces another has none."""
    here, there = mounts
    fd = open_file(f"{here}/before")
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.rename(f"{there}/before", f"{there}/after")
    other = os.open(f"{there}/after", os.O_RDWR)
    conflicts(lambda: try_flock(other, fcntl.LOCK_SH))
    new = open_file(f"{there}/new")
    os.rename(f"{there}/new", f"{there}/after")
    try_flock(new, fcntl.LOCK_EX)
    successor = os.open(f"{here}/after", os.O_RDWR)
    conflicts(lambda: try_flock(successor, fcntl.LOCK_SH))
    # The replaced file is still locked for processes on its mount.
    fcntl.flock(fd, fcntl.LOCK_UN)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.unlink(f"{there}/after")
    try_flock(new, fcntl.LOCK_SH)


def databases(mounts):
    """Processes on both mounts change one SQLite database in transactions."""
    paths = [f"{mount}/database" for mount in mounts]
    base = sqlite3.connect(paths[0], timeout=LIMIT_S, isolation_level=None)
    base.execute("PRAGMA synchronous=OFF")
    base.execute("CREATE TABLE t (writer, number)")
    base.execute("CREATE TABLE sum (value)")
    base.execute("INSERT INTO sum VALUES (0)")
    base.close()

    def write(number):
        base = sqlite3.connect(paths[number % 2], timeout=LIMIT_S, isolation_level=None)
        base.execute("PRAGMA synchronous=OFF")
        for row in range(15):
            base.execute("BEGIN IMMEDIATE")
            base.execute("INSERT INTO t VALUES (?, ?)", (number, row))
            base.execute("UPDATE sum SET value = value + 1")
            base.execute("COMMIT")
        base.close()

    children = [in_child(lambda: write(number)) for number in range(4)]
    assert [ended(child) for child in children] == [0] * 4
    for path in paths:
        base = sqlite3.connect(path)
        assert base.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert base.execute("SELECT count(*) FROM t").fetchall() == [(60,)]
        assert base.execute("SELECT value FROM sum").fetchall() == [(60,)]
        base.close()


def killed(mounts):
    """The locks of a mount end when its process, whose number is in PROCESS, is killed."""
    here, there = (open_file(f"{mount}/killed") for mount in mounts)
    fcntl.flock(here, fcntl.LOCK_EX)
    fcntl.lockf(here, fcntl.LOCK_EX, 10, 10)
    conflicts(lambda: try_flock(there, fcntl.LOCK_SH))
    conflicts(lambda: try_range(there, fcntl.LOCK_SH, 19, 1))
    os.kill(int(os.environ["PROCESS"]), signal.SIGKILL)
    fcntl.flock(there, fcntl.LOCK_EX)
    fcntl.lockf(there, fcntl.LOCK_EX, 10, 10)


def node(mounts):
    """With `--locks node` the locks of two mounts do not conflict."""
    fds = [open_file(f"{mount}/node") for mount in mounts]
    for fd in fds:
        try_flock(fd, fcntl.LOCK_EX)
        try_range(fd, fcntl.LOCK_EX)
    twin = os.open(f"{mounts[0]}/node", os.O_RDWR)
    conflicts(lambda: try_flock(twin, fcntl.LOCK_SH))


def refusal(mounts):
    """Every lock fails with ENOLCK; files are usable."""
    for mount in mounts:
        fd = open_file(f"{mount}/refusal")
        for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX):
            for wait in (0, fcntl.LOCK_NB):
                refused(lambda: fcntl.flock(fd, kind | wait), errno.ENOLCK)
                refused(lambda: fcntl.lockf(fd, kind | wait, 1, 1), errno.ENOLCK)
        refused(lambda: fcntl.fcntl(fd, fcntl.F_GETLK, lock_struct(fcntl.F_RDLCK, 0, 0)), errno.ENOLCK)
        os.write(fd, b"usable")
        os.close(fd)


CHECKS = (counter, exclusion, closes, waiting, names, databases, killed, node, refusal)


def main():
    wanted, mounts = sys.argv[1], sys.argv[2:]
    {check.__name__: check for check in CHECKS}[wanted](mounts)
    print(f"{wanted}: done")


if __name__ == "__main__":
    main()
