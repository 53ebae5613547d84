"""`make demo`: one program started directly, covered, and with a boot image.

Runs on any file system and without privileges.

usage: locally.py ENVIRONMENT PROGRAM DELAYED        ($QUELL is the quell binary)

DELAYED is the example `delayed` of quell-fuse, which mounts a directory with a delay of each
request. The program is started there as well, each time after a new mount, so that the kernel has
no answers in its caches. The delay is $QUELL_DEMO_DELAY_US microseconds, by default 500.

Requests to the file system are counted where the program makes them: strace records every call on
a name in the environment. In a view, all of them are absorbed except opens of files, whose data
comes from the environment itself; with a boot image, the files in the image are in memory, too. The
requests of `quell run` itself are counted as well.
"""
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

sys.dont_write_bytecode = True  # leaves the checkout unchanged
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "testbed"))
from measure import Failed, alternate, count_calls, machine, median, run, seconds_of, stop_on_signals, text_of, view_of

REPEATS = 5
COLD_REPEATS = 3
BLOCK = 4096
DELAY_US = int(os.environ.get("QUELL_DEMO_DELAY_US") or 500)


def calls_of_quell(prefix, path):
    """Count the calls on names in `path` that `quell run` itself makes, on a node without stamps
    of recent checks."""
    with tempfile.TemporaryDirectory(prefix="quell-demo.") as runtime:
        return count_calls([*prefix, "true"], path, env={**os.environ, "QUELL_RUNTIME_DIR": runtime})["total"]


@contextmanager
def delayed(directory, point, program):
    """Mount `directory` at `point` with a delay of each request."""
    command = [program, directory, point, str(DELAY_US)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if process.stdout.readline() != b"ready\n":
            raise Failed(f"no mount with a delay: {' '.join(command)}")
        yield
    finally:
        process.stdin.close()
        process.wait()


def with_delay(environment, program, delaying):
    """Time cold starts on a mount with a delay. Return the median seconds of each way, and the
    output of the program."""
    quell, point, lines = os.environ["QUELL"], f"{environment}.delayed", set()
    os.makedirs(point, exist_ok=True)
    index, image = f"{point}.quell", f"{point}.boot"
    command = [f"{point}/bin/python", program]
    covered = [quell, "run", "--quiet", "--strict", "-i", index, "--"]
    with delayed(environment, point, delaying):
        run([quell, "index", "--quiet", "--force", point, "-o", index])
        run([quell, "record", "--quiet", "-i", index, "-o", image, "--", *command])
    booted = [*covered[:-1], "-b", image, "--"]
    ways = [command, [*covered, *command], [*booted, *command]]
    rounds = []
    for _ in range(COLD_REPEATS):
        seconds = []
        for words in ways:
            with delayed(environment, point, delaying):
                begun = time.monotonic()
                lines.add(text_of(words))
                seconds.append(time.monotonic() - begun)
        rounds.append(seconds)
    os.rmdir(point)
    return [median(times) for times in zip(*rounds)], lines


def main(environment, program, delaying):
    quell, index, image = os.environ["QUELL"], f"{environment}.quell", f"{environment}.boot"
    command = [f"{environment}/bin/python", program]
    covered = [quell, "run", "--quiet", "--strict", "-i", index, "--"]
    booted = [quell, "run", "--quiet", "--strict", "-i", index, "-b", image, "--"]

    print(f"On {machine()}\nTree {environment}")
    print("Running the program directly, uncovered ...", flush=True)
    direct_line = text_of(command)  # also warms the caches
    direct = count_calls(command, environment)

    print("Indexing the tree ...", flush=True)
    index_seconds = seconds_of([quell, "index", environment, "-o", index])
    entries = 1 + sum(len(dirs) + len(files) for _, dirs, files in os.walk(environment))
    size = os.path.getsize(index)

    print("Running the program covered ...", flush=True)
    covered_line = text_of([*covered, *command])
    view = view_of(covered, environment)
    inside = count_calls(command, environment, before=covered)

    print("Recording what its start reads, and running it with that boot image ...", flush=True)
    run([quell, "record", "--quiet", "-i", index, "-o", image, "--", *command])
    booted_line = text_of([*booted, *command])
    shown = json.loads(text_of([quell, "boot", "show", "--json", "--files", image]))
    hot = frozenset(os.path.join(environment, file["name"]) for file in shown["list"])
    within = count_calls(command, environment, before=booted, hot=hot)
    seconds = alternate([command, [*covered, *command], [*booted, *command]], REPEATS)
    try:
        own = [sum(calls_of_quell(prefix, path) for path in (environment, *files))
               for prefix, files in ((covered, [index]), (booted, [index, image]))]
    except Failed:
        own = None  # under strace, fusermount3 loses its privileges

    print(f"Running the program on a mount with a delay of {DELAY_US / 1000:g} ms for each request ...", flush=True)
    try:
        delayed_seconds, delayed_lines = with_delay(environment, program, delaying)
    except Failed as error:
        delayed_seconds, delayed_lines = None, set()
        print(f"Not measured with a delay: {error}")

    if view and not view.startswith(("overlay", "fuse", "erofs")):
        view = None  # some other mount, whose answers are unknown
    if view is None:
        print("\nThe tree was NOT covered: no mount at its path was seen. `quell doctor` prints what this machine allows.")
    rows = [("kind of call on the tree", "direct", "covered", "boot image")]
    for kind, title in (("stat", "queries of a name (stat, access, readlink)"), ("negative", "searches for missing names"),
                        ("list", "directory listings")):
        rows.append((title, f"{direct[kind]:,}", *("0" if view else f"{counts[kind]:,}" for counts in (inside, within))))
    opened = within["open"] - within["open_hot"]
    rows.append(("files opened", f"{direct['open']:,}", f"{inside['open']:,}", f"{opened:,}" if view else f"{within['open']:,}"))
    rows.append(("requests of quell itself: index, image and check", "-", *(["not measured"] * 2 if own is None else (f"{n:,}" for n in own))))
    reached = [(opened_files if view else counts["total"]) + n
               for counts, opened_files, n in zip((inside, within), (inside["open"], opened), own or (0, 0))]
    rows.append(("metadata operations that reached the file system", f"{direct['total']:,}", *(f"{n:,}" for n in reached)))
    read = f"{shown['blocks'] * BLOCK / 1e6:.1f} MB"
    rows.append(("data of the tree that the start reads", read, read, f"{shown['file_bytes'] / 1e6:.1f} MB"))
    rows.append((f"wall time, median of {REPEATS}, warm", *(f"{s:.2f} s" for s in seconds)))
    if delayed_seconds:
        rows.append((f"wall time with {DELAY_US / 1000:g} ms delay, median of {COLD_REPEATS}, cold", *(f"{s:.2f} s" for s in delayed_seconds)))
    print(f"\nThe program printed: {direct_line.strip()}")
    print()
    for title, *cells in rows:
        print(f"  {title:50} " + " ".join(f"{cell:>12}" for cell in cells))
    for title, n, s in zip(("covered", "boot image"), reached, seconds[1:]):
        print(f"  {title + ' / direct':50} {n / direct['total']:.3f} of the operations, {s / seconds[0]:.2f} of the time")
    print(f"\n  view: {view or 'none'}")
    print(f"  index: {size / 1e6:.2f} MB, {entries:,} entries, {size / entries:.1f} bytes each, made in {index_seconds:.2f} s")
    print(f"  boot image: {shown['file_bytes'] / 1e6:.1f} MB, the blocks that a start reads of {shown['files']:,} files "
          f"({shown['files_bytes'] / 1e6:.0f} MB), read at once from one file")
    print("  Counted with strace in the program. Covered, the view answers everything except opens of files; with the boot image it\n"
          "  also answers opens of the files in the image. Local disks answer quickly, so the warm times differ little. For the\n"
          "  time with a delay, a FUSE mount of the same directory delays each request, as a distant server would; it is not\n"
          "  a parallel file system. `make demo PFS=moosefs`, as root, counts the messages to the servers of a real one.")
    lines = {"Covered": covered_line, "With the boot image": booted_line}
    lines.update((f"With a delay ({number})", line) for number, line in enumerate(sorted(delayed_lines)))
    for title, line in lines.items():
        if line != direct_line:
            print(f"\nThe outputs DIFFER. {title}: {line.strip()}")
            return 1
    print("\nThe output was identical, directly, covered, and with the boot image.")
    return 0 if view else 1


if __name__ == "__main__":
    stop_on_signals()
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        sys.exit(main(*sys.argv[1:]))
    except Failed as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
