"""Boot images of programs, measured for bench.py.

The import of six packages on a node with empty caches is measured directly, with the index alone,
with index and boot image, and from the file-system images that root would mount instead. The client
itself counts its requests: metadata are the messages that programs cause at the metadata server
(without those that keep the client registered), data the reads that it sends to the data servers.
Loading the index and the image, and mounting a file-system image, are included in counts and times.
"""
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from measure import Failed, median, run, seconds_of, text_of

# The counters of a MooseFS client for which each count is one message to the metadata server.
OF_THE_SERVER = (
    "lookup.master", "getattr", "setattr", "access", "statfs", "open", "create", "mknod", "mkdir", "unlink", "rmdir", "symlink",
    "rename", "link", "opendir", "readdir.with_attrs+", "readdir.with_attrs", "readdir.without_attrs", "readlink.master",
)
REPEATS = 3
NODE = 2
READ_BYTES = 128 << 10  # of one request
FEW = 6  # allowed difference of operations: the sample is random, and a traced run takes longer
IMPORT = "import of six packages, cold node"
# Mounts a file system in a mount namespace of the command, so that no mount remains however the
# command ends.
MOUNTED = 'mount -t "$0" -o ro,loop "$1" "$2" && shift 2 && exec "$@"'
# Both with a compression that decompresses fast.
IMAGES = {
    "squashfs": ["mksquashfs", "{tree}", "{image}", "-quiet", "-no-progress", "-comp", "zstd", "-Xcompression-level", "9"],
    "erofs": ["mkfs.erofs", "--quiet", "-zlz4hc", "-C65536", "{image}", "{tree}"],
}


def metadata_of(changed):
    """Return the client's requests to the metadata server, by name, from its changed counters."""
    counts = {name: changed.get(f"fuse_ops.{name}", 0) for name in OF_THE_SERVER}
    return {name: count for name, count in counts.items() if count}


def read_at_start(quell, image):
    """Return the bytes of a boot image that each start reads, without those of unread blocks."""
    return json.loads(text_of([quell, "boot", "show", "--json", image]))["read_at_start_bytes"]


def why_not(kind):
    """Return the reason why an image of this kind cannot be mounted here, or None."""
    if not shutil.which(IMAGES[kind][0]):
        return f"{IMAGES[kind][0]} is not installed"
    if shutil.which("modprobe"):  # the file system may be a module that is not loaded
        subprocess.run(["modprobe", "--quiet", kind], stderr=subprocess.DEVNULL)
    if not any(line.split()[-1] == kind for line in Path("/proc/filesystems").read_text().splitlines()):
        return f"the kernel has no {kind}"
    return None if Path("/dev/loop-control").exists() else "there are no loop devices"


class BootImages:
    """Measures boot images and adds their rows to a benchmark."""

    def __init__(self, bench, program):
        self.bench, self.testbed, self.program = bench, bench.testbed, program
        self.scratch = Path(tempfile.mkdtemp(prefix="boot.", dir=bench.scratch))
        self.point = self.scratch / "point"
        self.point.mkdir()
        self.runs = 0

    def booted(self, node, *command):
        words = self.bench.covered(node, "env", *command)
        at = words.index("--")
        return [*words[:at], "-b", self.testbed.path(node, "env.boot"), *words[at:]]

    def commands(self):
        """Return the commands that are started on the cold node, by name."""
        program = [self.testbed.path(NODE, "env/bin/python"), self.program]
        commands = {"direct": program, "index": self.bench.covered(NODE, "env", *program), "boot": self.booted(NODE, *program)}
        for kind in IMAGES:
            if why_not(kind):
                continue
            image = self.testbed.path(NODE, f"env.{kind}")
            python = [self.point / "bin/python", self.program]
            commands[kind] = ["unshare", "--mount", "sh", "-c", MOUNTED, kind, image, self.point, *python]
        return commands

    def fresh(self):
        """Return the environment of a node on which nothing has run, with an empty runtime
        directory of Quell."""
        self.runs += 1
        runtime = self.scratch / f"runtime-{self.runs}"
        runtime.mkdir(mode=0o700)
        return {**os.environ, "QUELL_RUNTIME_DIR": str(runtime)}

    def measured(self, command, environment, node=NODE):
        """Return ((seconds, metadata, data), the metadata by name, output)."""
        got = []
        seconds, _, changed = self.testbed.measured(node, lambda: got.append(text_of(command, env=environment)))
        by_name = metadata_of(changed)
        return (seconds, sum(by_name.values()), changed.get("fuse_ops.read", 0)), by_name, got[0]

    def make(self):
        """Create the boot image and the file-system images on the parallel file system."""
        quell, path = self.bench.quell, self.testbed.path
        tree = path(1, "env")
        run([quell, "record", "--quiet", "-i", path(1, "env.quell"), "-o", path(1, "env.boot"), "--", tree / "bin/python", self.program])
        for kind, words in IMAGES.items():
            if not why_not(kind):
                image = path(1, f"env.{kind}")
                image.unlink(missing_ok=True)
                run([word.format(tree=tree, image=image) for word in words])

    def cold_and_next(self):
        """Return the medians for each method of starting: cold starts in turn, and for the boot image
        the following starts on the node."""
        commands, got, after, lines, names = self.commands(), {}, [], {}, {}
        for _ in range(REPEATS):
            for method, command in commands.items():
                environment = self.fresh()
                self.testbed.drop(NODE)
                numbers, names[method], lines[method] = self.measured(command, environment)
                got.setdefault(method, []).append(numbers)
                if method == "boot":
                    numbers, names["next"], _ = self.measured(command, environment)
                    after.append(numbers)
        middle = {method: [median(values) for values in zip(*runs)] for method, runs in got.items()}
        operations = {method: ", ".join(f"{name} {count}" for name, count in by_name.items()) for method, by_name in names.items()}
        return middle, [median(values) for values in zip(*after)], lines, operations

    def local_warm(self, local):
        """Time the program from a copy on a local disk, in the page cache, in turn with the cold start
        with the boot image."""
        copy = Path(local, "env")
        run(["cp", "-a", self.testbed.path(1, "env"), copy])
        command = [copy / "bin/python", self.program]
        run(command)
        warm, cold = [], []
        for _ in range(REPEATS):
            warm.append(seconds_of(command))
            environment = self.fresh()
            self.testbed.drop(NODE)
            cold.append(seconds_of(self.booted(NODE, self.testbed.path(NODE, "env/bin/python"), self.program), env=environment))
        shutil.rmtree(copy)
        return median(warm), median(cold)

    def preload(self):
        """Compare the overlay view with the preload library, which needs the index where the tree was
        indexed, on node 1. The library serves only whole files from memory."""
        add, path, quell = self.bench.add, self.testbed.path, self.bench.quell
        title = f"{IMPORT}, boot image: preload against overlay"
        if not Path(quell).resolve().with_name("libquell_preload.so").exists():
            add(title, "s", None, None, note="SKIPPED: there is no libquell_preload.so beside the binary: make build")
            return
        # The dynamic linker opens most of the files, with system calls of its own.
        via = "preload+sud" if "preload+sud" in text_of([quell, "run", "--help"]) else "preload"
        program = [path(1, "env/bin/python"), self.program]
        run([quell, "record", "--quiet", "--whole", "-i", path(1, "env.quell"), "-o", path(1, "env-whole.boot"), "--", *program])
        covered = [quell, "run", "--quiet", "--strict", "--check", "sample", "-i", path(1, "env.quell")]
        commands = {
            "overlay": [*covered, "-b", path(1, "env.boot"), "--", *program],
            "preload": [*covered, "--via", via, "-b", path(1, "env-whole.boot"), "--", *program],
        }
        got, names, lines = {}, {}, {}
        for _ in range(REPEATS):
            for method, command in commands.items():
                environment = self.fresh()
                self.testbed.drop(1)
                numbers, names[method], lines[method] = self.measured(command, environment, 1)
                got.setdefault(method, []).append(numbers)
        (overlay_s, overlay_ops, overlay_data), (preload_s, preload_ops, preload_data) = (
            [median(values) for values in zip(*got[method])] for method in commands)
        last = ", ".join(f"{name} {count}" for name, count in names["preload"].items())
        add(f"{title}: metadata", "ops", overlay_ops, preload_ops, "at most 1.2 of the overlay", preload_ops <= 1.2 * overlay_ops,
            note=f"--via {via}; median of {REPEATS}, in turn; the last: {last}")
        add(f"{title}: data", "ops", overlay_data, preload_data, note="whole files instead of the blocks that were read")
        add(f"{title}: wall", "s", overlay_s, preload_s, "at most 1.15 of the overlay", preload_s <= 1.15 * overlay_s)
        add(f"{title}: output", "", None, None, "identical", len(set(lines.values())) == 1)

    def rows(self, paths, local, digest):
        add, testbed = self.bench.add, self.testbed
        self.make()
        file_mb, size = testbed.path(1, "env.boot").stat().st_size / 1e6, read_at_start(self.bench.quell, testbed.path(1, "env.boot"))
        size_mb = size / 1e6
        add("boot image of the import of six packages: the part that a start reads", "MB", None, size_mb, "at most 45 MB", size_mb <= 45,
            note=f"with the unread blocks, the image has {file_mb:.0f} MB")
        middle, after, lines, operations = self.cold_and_next()
        (direct_s, direct_metadata, direct_data), (_, metadata, data) = middle["direct"], middle["index"]
        note = f"median of {REPEATS}, in turn"
        add(f"{IMPORT}, index alone: metadata operations", "ops", direct_metadata, metadata, note=note)
        add(f"{IMPORT}, index alone: data operations", "ops", direct_data, data, note=note)
        boot_s, metadata, data = middle["boot"]
        limit = size // READ_BYTES + 20
        add(f"{IMPORT}, boot image: metadata operations", "ops", direct_metadata, metadata, "at most 20", metadata <= 20,
            note=f"{note}; the last: {operations['boot']}")
        add(f"{IMPORT}, boot image: data operations", "ops", direct_data, data, f"at most size / 128 KiB + 20 ({limit})",
            data <= limit, note=note)
        add(f"{IMPORT}, boot image: wall", "s", direct_s, boot_s, note=note)
        report = self.bench.profile_report("--compare", "--", testbed.path(1, "env/bin/python"), self.program)
        estimated = report["remaining"]["boot"]["metadata"]
        add("  metadata operations measured, and estimated by quell profile", "ops", metadata, estimated,
            f"within {FEW} of measured", abs(estimated - metadata) <= FEW)
        _, metadata, data = after
        add("  the next launch on that node: metadata operations", "ops", direct_metadata, metadata, "at most 10", metadata <= 10,
            note=f"{note}; the last: {operations['next']}")
        add("  the next launch on that node: data operations", "ops", direct_data, data, "none", data == 0, note=note)
        for kind in IMAGES:
            title = f"{IMPORT}: {kind} image on MooseFS, and boot image"
            if kind not in middle:
                add(title, "s", None, None, note=f"SKIPPED: {why_not(kind)}")
                continue
            image_mb = testbed.path(1, f"env.{kind}").stat().st_size / 1e6
            seconds, metadata, data = middle[kind]
            add(f"{title}: metadata", "ops", metadata, middle["boot"][1], note="mounted by root, through a loop device")
            add(f"{title}: data", "ops", data, middle["boot"][2], note=f"the image of the whole tree has {image_mb:.0f} MB")
            add(f"{title}: wall", "s", seconds, boot_s, f"at most 0.75 of {kind}", boot_s <= 0.75 * seconds, note=note)
        self.preload()
        warm_s, cold_s = self.local_warm(local)
        add("the same: local disk, warm, and boot image, cold node: wall", "s", warm_s, cold_s, "at most 1.25 of local",
            cold_s <= 1.25 * warm_s, note=note)
        now = self.bench.launch(None, None, paths, own=self.booted(1, paths, "now"))
        add("quell run -b to the command's first instruction", "s", None, now, note="median of 5, warm")
        add("output of the program, all ways", "", None, None, "identical", len(set(lines.values())) == 1)
        sums = [text_of(words) for words in (digest, self.booted(3, *digest))]
        add("every byte of the Python environment, with the boot image (SHA-256)", "", None, None, "identical", sums[0] == sums[1])
        if len(sums[0].split()) != 2:
            raise Failed(f"no sum: {sums[0]!r}")
