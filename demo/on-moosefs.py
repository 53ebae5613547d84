"""`make demo PFS=moosefs`: the program started on 4 nodes of a real MooseFS.

It is started directly, covered, and with a boot image.

usage: on-moosefs.py PYTHON REQUIREMENTS PROGRAM      (as root; $QUELL is the quell binary)

Counts the messages of each node to the metadata server, and its reads from the data servers. The
test bed is created for this run and removed at its end, also on Ctrl-C.
"""
import os
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # leaves the checkout unchanged
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "testbed"))
from measure import Failed, Testbed, alternate, machine, median, run, stop_on_signals, text_of, view_of

NODES = 4
METHODS = ("direct", "covered", "boot image")


def cell(measured):
    operations, reads, seconds = measured
    return f"{operations:>12,.0f} {reads:>7,.0f} {seconds:>5.2f} s"


def main(python, requirements, program):
    quell = os.environ["QUELL"]
    print(f"On {machine()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="quell-demo.") as directory:
        print(f"Starting a MooseFS with {NODES} nodes ...", flush=True)
        with Testbed(Path(directory, "moosefs"), NODES).up() as testbed:
            home = testbed.path(1, "env")
            print("Creating a Python environment on it (about a minute) ...", flush=True)
            run([python, "-m", "venv", home])
            run([home / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:",
                 "-r", requirements])
            return compare(testbed, quell, program)


def compare(testbed, quell, program):
    # Indexed on the first node, whose caches were dropped before; used on all nodes.
    testbed.drop(1)
    index_seconds, index_operations, _ = testbed.measured(
        1, lambda: run([quell, "index", testbed.path(1, "env"), "-o", testbed.path(1, "env.quell")]))
    size = testbed.path(1, "env.quell").stat().st_size
    print("Recording what a start reads, on node 1 ...", flush=True)
    run([quell, "record", "--quiet", "-i", testbed.path(1, "env.quell"), "-o", testbed.path(1, "env.boot"), "--",
         testbed.path(1, "env/bin/python"), program])
    image_size = testbed.path(1, "env.boot").stat().st_size
    entries = 1 + sum(len(dirs) + len(files) for _, dirs, files in os.walk(testbed.path(1, "env")))

    lines, rows, views = set(), [], set()
    for node in range(1, testbed.nodes + 1):
        tree = testbed.path(node, "env")
        command = [tree / "bin/python", program]
        # The command of every node of a job except the first, which also makes a full check.
        covered = [quell, "run", "--quiet", "--strict", "--check", "sample", "-i", testbed.path(node, "env.quell"), "--source", tree, "--"]
        booted = [*covered[:-1], "-b", testbed.path(node, "env.boot"), "--"]
        row = {}
        for method, words in (("direct", command), ("covered", [*covered, *command]), ("boot image", [*booted, *command])):
            testbed.drop(node)
            print(f"Node {node}, {method} ...", flush=True)
            for state in ("cold", "warm"):
                got = []
                seconds, operations, changed = testbed.measured(node, lambda: got.append(text_of(words)))
                lines.update(got)
                row[method, state] = (operations, changed.get("fuse_ops.read", 0), seconds)
        views.add(view_of(covered, tree))
        rows.append((node, row))

    print(f"\nThe program printed: {min(lines).strip()}")
    print("\nmessages to the metadata server, reads of data, and wall time")
    for state in ("cold", "warm"):
        print(f"  {state:6}" + "".join(f"{method:>28}" for method in METHODS))
        for node, row in rows:
            print(f"  node {node}" + "".join(cell(row[method, state]) for method in METHODS))
        middle = {method: [median(row[method, state][i] for _, row in rows) for i in range(3)] for method in METHODS}
        print("  median" + "".join(cell(middle[method]) for method in METHODS))
        for method in METHODS[1:]:
            operations, reads, seconds = (left / right if right else 1 for left, right in zip(middle[method], middle["direct"]))
            print(f"  {method} / direct, {state}: {operations:.3f} of the messages, {reads:.3f} of the reads, {seconds:.2f} of the time")
    command = [testbed.path(1, "env/bin/python"), program]
    covered = [quell, "run", "--quiet", "--strict", "--check", "sample", "-i", testbed.path(1, "env.quell"), "--"]
    booted = [*covered[:-1], "-b", testbed.path(1, "env.boot"), "--"]
    times = zip(METHODS, alternate([command, [*covered, *command], [*booted, *command]], 5))
    print("  wall time on node 1, warm, median of 5: " + ", ".join(f"{seconds:.2f} s {method}" for method, seconds in times))
    print(f"  view: {', '.join(map(str, views))}")
    print(f"  index: {size / 1e6:.2f} MB, {entries:,} entries, {size / entries:.1f} bytes each; made once, on a cold node, "
          f"in {index_seconds:.2f} s with {index_operations:,} messages")
    print(f"  boot image: {image_size / 1e6:.1f} MB, recorded once")
    if None in views:
        print("\nThe tree was NOT covered on every node. `quell doctor` prints what this machine allows.")
    if len(lines) != 1:
        print("\nThe outputs DIFFER:\n" + "".join(sorted(lines)))
    if None in views or len(lines) != 1:
        return 1
    print("\nThe output was identical on every node, directly, covered, and with the boot image.")
    return 0


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
