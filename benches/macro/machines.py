#!/usr/bin/env python3
"""Boots of virtual machines from MooseFS: direct, from a boot image, and with prefetching.

With prefetching, the same blocks are read into the page cache during the boot, in their order on
the disk, as in the paper. The machine is testbed/debian-vm under QEMU without KVM, from its boot
loader to the banner of its SSH server. bench.py calls this module; alone it measures and prints its
own rows:  machines.py [REPEATS]   (root; $QUELL is the quell binary)
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(TOP / "testbed"))
from measure import Failed, Testbed, median, run, stop_on_signals, text_of

MIB = 1 << 20
BOOT_SECONDS_MAX = 900
# Requests per second of a hard disk with 7,200 revolutions per minute, and the number of other
# readers that share it, as in the paper.
DISK_REQUESTS = 80
OTHER_READERS = 15
# Memory of a node for the machine, the processes that serve it, and other processes.
NODE_MEMORY = 1024 * MIB
CGROUPS = Path("/sys/fs/cgroup")


@contextmanager
def cgroup(controller, **settings):
    """Create a control group (cgroups version 1); yields None where these are not available."""
    group = CGROUPS / controller / f"quell-bench-{os.getpid()}"
    if not (CGROUPS / controller / "cgroup.procs").exists():
        yield None
        return
    group.mkdir()
    try:
        for name, value in settings.items():
            (group / f"{controller}.{name.replace('__', '.')}").write_text(str(value))
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            try:
                (CGROUPS / controller / "cgroup.procs").write_text(pid)
            except OSError:
                pass  # it has just ended
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def disk_of(path):
    """Return the device numbers of the whole disk below a file system, or None."""
    number = os.stat(path).st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not device.exists():
        return None
    device = device.resolve()
    return ((device.parent if (device / "partition").exists() else device) / "dev").read_text().strip()


class Machine:
    """A machine that boots. It has booted when `up` returns, and is stopped at the end of the
    `with` block."""

    def __init__(self, scratch, name, backing, form, before=(), groups=()):
        self.own = Path(scratch, f"{name}.qcow2")
        self.own.unlink(missing_ok=True)
        run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", form, "-b", backing, self.own])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        enter = "".join(f"echo $$ >{group}/cgroup.procs; " for group in groups if group)
        self.log = open(Path(scratch, f"{name}.log"), "wb")
        qemu = ["qemu-system-x86_64", "-accel", "tcg", "-m", "256", "-display", "none", "-monitor", "none", "-serial", "null",
                "-drive", f"file={self.own},if=virtio", "-nic", f"user,model=virtio,hostfwd=tcp:127.0.0.1:{self.port}-:22"]
        self.command = ["sh", "-c", enter + 'exec "$@"', "sh", *map(str, before), *qemu]

    def __enter__(self):
        self.started = time.monotonic()
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)
        return self

    def up(self):
        """Wait for the SSH server. Return the seconds since the start."""
        while time.monotonic() - self.started < BOOT_SECONDS_MAX:
            if self.process.poll() is not None:
                raise Failed(f"QEMU ended: {Path(self.log.name).read_text(errors='replace')}")
            try:
                with socket.create_connection(("127.0.0.1", self.port), 5) as stream:
                    stream.settimeout(5)
                    if stream.recv(4) == b"SSH-":
                        return time.monotonic() - self.started
            except OSError:
                pass
            time.sleep(0.1)
        raise Failed(f"no SSH server after {BOOT_SECONDS_MAX} s")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()
        self.own.unlink(missing_ok=True)


def occupy_page_cache(path, stop):
    """Read a file repeatedly, 64 MiB five times a second, like other work of the node that uses its
    page cache."""
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(8 * MIB)
        while not stop():
            for _ in range(8):
                if not file.readinto(buffer):
                    file.seek(0)
            time.sleep(0.2)


class Machines:
    def __init__(self, testbed, quell, scratch, repeats, add):
        self.testbed, self.quell, self.scratch, self.repeats, self.add = testbed, str(quell), Path(scratch), repeats, add
        self.number = 0

    def fresh(self, title):
        self.number += 1
        return f"{title}-{self.number}"

    def measure(self):
        disk = Path(text_of([TOP / "testbed/debian-vm"]).strip())
        self.base, self.warm = self.testbed.path(1, "machine.raw"), disk
        shutil.copyfile(disk, self.base)
        self.record(disk)
        self.sizes(disk)
        self.sequential()
        self.many_at_once()
        self.busy_disk()

    def at(self, node, name):
        return self.testbed.path(node, name)

    def covered(self, node, *options):
        return [self.quell, "run", "--quiet", *options, "--image", self.at(node, "machine.raw"), "-b", self.at(node, "machine.boot"), "--"]

    def record(self, disk):
        """Record two boots, because they do not read exactly the same blocks."""
        self.boot = self.at(1, "machine.boot")
        for extra in ([], ["--merge"]):
            command = [self.quell, "record", "--quiet", "--image", self.base, "-o", self.boot, *extra, "--"]
            with Machine(self.scratch, self.fresh("record"), self.base, "raw", command) as machine:
                machine.up()
        self.facts = json.loads(text_of([self.quell, "boot", "show", "--json", self.boot]))
        # The same with the kernel and initial RAM disk passed to QEMU, as in clouds without a boot
        # loader.
        lean = self.scratch / "lean.boot"
        command = [self.quell, "record", "--quiet", "--image", self.base, "-o", lean, "--"]
        machine = Machine(self.scratch, self.fresh("lean"), self.base, "raw", command)
        machine.command += ["-kernel", str(disk.with_suffix(".vmlinuz")), "-initrd", str(disk.with_suffix(".initrd")),
                            "-append", "root=/dev/vda1 ro console=ttyS0 quiet mitigations=off"]
        with machine:
            machine.up()
        self.lean = json.loads(text_of([self.quell, "boot", "show", "--json", lean]))

    def sizes(self, disk):
        whole = disk.stat().st_blocks * 512 / 1e6
        limit = 0.04
        for title, facts, without in (("kernel given to QEMU", self.lean, "; kernel and initial RAM disk are not in it"),
                                      ("boot loader and kernel in it", self.facts, "")):
            image, read = facts["file_bytes"] / 1e6, facts["blocks"] * 4096 / 1e6
            self.add(f"boot image of a Debian machine, {title}: its base, the boot image", "MB", whole, image,
                     f"at most {limit:.0%} of the base", image <= limit * whole, note=f"{read:.1f} MB read of it{without}")

    def sequential(self):
        """Measure the read of a file that is not in the boot image."""
        local = self.scratch / "large.raw"
        with open(local, "wb") as file:
            for _ in range(512):
                file.write(os.urandom(MIB))
        small = self.scratch / "large.boot"
        run([self.quell, "record", "--quiet", "--image", local, "-o", small, "--", "head", "-c", "4096", local])
        read = ["dd", f"if={local}", "of=/dev/null", "bs=1M", "status=none"]

        def rate(command):
            started = time.monotonic()
            run(command)
            return 512 * MIB / 1e6 / (time.monotonic() - started)

        direct = median(rate(read) for _ in range(5))
        point = self.scratch / "point"
        point.mkdir()
        run([self.quell, "mount", "--quiet", "--image", "-b", small, local, point])
        try:
            read[1] = f"if={point / 'large.raw'}"
            through = median(rate(read) for _ in range(5))
        finally:
            run([self.quell, "umount", point])
        self.add("read a disk image from start to end, none of it hot, page cache warm", "MB/s", direct, through)
        local.unlink()

    def received(self, node):
        """Return the bytes that the node has received from its servers."""
        lines = self.testbed.command("exec", str(node), "cat", "/proc/net/dev").splitlines()
        line = next(line for line in lines if line.strip().startswith("eth0:"))
        return int(line.split(":")[1].split()[0])

    def many_at_once(self):
        """Boot four machines on one cold node."""

        def boots(title, backing, before):
            self.testbed.drop(2)
            begun = self.received(2)
            with ExitStack() as stack:
                machines = [Machine(self.scratch, self.fresh(title), backing, "raw", before) for _ in range(4)]
                for machine in machines:
                    stack.enter_context(machine)
                seconds = max(machine.up() for machine in machines)
                got = self.received(2) - begun
            return got / 1e6, seconds

        direct, direct_s = boots("direct", self.at(2, "machine.raw"), ())
        hot, hot_s = boots("hot", self.at(2, "machine.raw"), self.covered(2))
        limit = 1.1 * self.facts["file_bytes"] / 1e6
        self.add("four machines boot at once, cold node: received by the node", "MB", direct, hot,
                 f"at most 1.1 boot images ({limit:.1f} MB)", hot <= limit, note=f"{direct_s:.0f} s and {hot_s:.0f} s")

    def ranges(self):
        """Return the ranges of the recorded blocks in the base, sorted."""
        layer = self.scratch / "hot.qcow2"
        run([self.quell, "boot", "qcow2", "--quiet", self.boot, "-o", layer])
        pieces = json.loads(text_of(["qemu-img", "map", "--output=json", "-f", "qcow2", layer]))
        return [(piece["start"], piece["length"]) for piece in pieces if piece["depth"] == 0]

    @contextmanager
    def slow_disk(self):
        """Limit the chunk server's disk to few requests per second, shared with other readers.
        Yields whether this is possible here."""
        number = disk_of(self.testbed.directory)
        with ExitStack() as stack:
            group = number and stack.enter_context(cgroup("blkio", throttle__read_iops_device=f"{number} {DISK_REQUESTS}"))
            if not group:
                yield False
                return
            (group / "cgroup.procs").write_text((self.testbed.directory / "run/chunk").read_text().split()[0])
            busy = self.testbed.directory / "busy"
            fio = ["fio", "--name=busy", f"--filename={busy}", "--size=256M", "--rw=randread", "--bs=4k", "--direct=1", "--ioengine=psync",
                   f"--numjobs={OTHER_READERS}", "--time_based", "--runtime=7200", "--output=/dev/null"]
            run([*fio[:4], "--rw=write", "--bs=1M", "--direct=1", "--output=/dev/null"])
            others = subprocess.Popen(["sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh", *fio], stdin=subprocess.DEVNULL,
                                      start_new_session=True)
            try:
                time.sleep(2)
                yield True
            finally:
                os.killpg(others.pid, signal.SIGTERM)
                others.wait()
                busy.unlink(missing_ok=True)

    def cold(self, node):
        self.testbed.drop(node)
        # Also drop the page cache of the chunk server.
        run(["sync"])
        Path("/proc/sys/vm/drop_caches").write_text("1")

    def one_boot(self, method, ranges, groups=()):
        """Return the seconds of one boot on node 3, with empty caches."""
        self.cold(3)
        base = self.at(3, "machine.raw")
        prefetching = None
        if method == "prefetched":
            enter = "".join(f"echo $$ >{group}/cgroup.procs; " for group in groups if group)
            reader = 'import sys,os,json\nf=os.open(sys.argv[1],os.O_RDONLY)\nfor o,n in json.loads(sys.argv[2]):\n while n>0:\n' \
                     '  g=len(os.pread(f,min(n,1<<20),o)); o+=g; n-=g'
            prefetching = subprocess.Popen(["sh", "-c", enter + 'exec "$@"', "sh", sys.executable, "-c", reader, str(base), json.dumps(ranges)],
                                           start_new_session=True)
        try:
            with Machine(self.scratch, self.fresh(method), base, "raw", self.covered(3) if method == "hot" else (), groups) as machine:
                return machine.up()
        finally:
            if prefetching:
                prefetching.terminate()
                prefetching.wait()

    def busy_disk(self):
        ranges = self.ranges()
        with self.slow_disk() as slow:
            if not slow:
                self.add("boot of one machine from a busy disk, and with memory short", "s", None, None,
                         note="SKIPPED: it takes cgroups version 1 with blkio, and a disk below the test bed")
                return
            with Machine(self.scratch, self.fresh("warm"), self.warm, "raw") as machine:
                least = machine.up()
            got = {method: [] for method in ("direct", "prefetched", "hot")}
            for _ in range(self.repeats):
                for method, times in got.items():
                    times.append(self.one_boot(method, ranges))
                    print(f"    {method}: {times[-1]:.1f} s", flush=True)
            direct, prefetched, hot = (median(times) for times in got.values())
            what = f"{DISK_REQUESTS} requests/s, {OTHER_READERS} other readers; median of {self.repeats}; {least:.0f} s are emulation"
            self.add("boot of one machine from a busy disk", "s", direct, hot, "at most a third of direct", hot * 3 <= direct, note=what)
            self.add("the same, against prefetching the same blocks into the page cache", "s", prefetched, hot,
                     "at most 1.0 of prefetched", hot <= prefetched, note="prefetched in the disk's order")
            self.pressure(ranges)

    def pressure(self, ranges):
        """Measure the same on a node whose memory is used as page cache by other processes."""
        with cgroup("memory", limit_in_bytes=NODE_MEMORY) as group:
            if not group:
                self.add("the same with memory short, against prefetching", "s", None, None, note="SKIPPED: it takes cgroups version 1 with memory")
                return
            large = self.scratch / "eaten"
            with open(large, "wb") as file:
                file.truncate(8 << 30)
            occupier = subprocess.Popen([sys.executable, __file__, "--occupy-page-cache", str(large), str(group)], stdin=subprocess.DEVNULL, start_new_session=True)
            try:
                got = {method: [] for method in ("prefetched", "hot")}
                for _ in range(self.repeats):
                    for method, times in got.items():
                        times.append(self.one_boot(method, ranges, [group]))
                        print(f"    {method}, memory short: {times[-1]:.1f} s", flush=True)
                prefetched, hot = (median(times) for times in got.values())
                self.add("the same with memory short, against prefetching", "s", prefetched, hot, "at most 0.8 of prefetched",
                         hot <= 0.8 * prefetched, note=f"{NODE_MEMORY // MIB} MiB for the machine, the process that serves it, and a reader of 320 MB/s")
            finally:
                occupier.terminate()
                occupier.wait()
                large.unlink()


def main():
    if sys.argv[1:2] == ["--occupy-page-cache"]:
        Path(sys.argv[3], "cgroup.procs").write_text(str(os.getpid()))
        return occupy_page_cache(sys.argv[2], lambda: os.getppid() == 1)
    repeats = int(sys.argv[1]) if sys.argv[1:] else 3
    quell = os.environ.get("QUELL") or TOP / "target/dist/quell"
    from bench import Row, line_of

    def add(*row, **more):
        print("  " + line_of(Row(*row, **more)), flush=True)

    with tempfile.TemporaryDirectory(prefix="quell-machines.") as scratch, Testbed(Path(scratch, "moosefs"), 3).up() as testbed:
        Machines(testbed, quell, scratch, repeats, add).measure()
    return 0


if __name__ == "__main__":
    stop_on_signals()
    try:
        sys.exit(main())
    except Failed as error:
        print(f"machines: {error}", file=sys.stderr)
        sys.exit(3)
