"""`make demo PFS=moosefs`: the program started on 4 nodes of a real MooseFS, directly and covered, side by side.

usage: on-moosefs.py PYTHON REQUIREMENTS PROGRAM      (as root; $QUELL is the quell binary)

Counts the messages that each node sends to the metadata server. The test bed is made for this run
and taken down at its end, also on Ctrl-C.
"""
import os
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # the checkout stays as it is
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "testbed"))
from measure import Bed, Failed, alternate, machine, median, run, stop_on_signals, text_of, view_of

NODES = 4


def main(python, requirements, program):
    quell = os.environ["QUELL"]
    print(f"On {machine()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="quell-demo.") as place:
        print(f"Starting a MooseFS with {NODES} nodes ...", flush=True)
        with Bed(Path(place, "moosefs"), NODES).up() as bed:
            home = bed.path(1, "env")
            print("Making a Python environment on it (about a minute) ...", flush=True)
            run([python, "-m", "venv", home])
            run([home / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:",
                 "-r", requirements])
            return compare(bed, quell, program)


def compare(bed, quell, program):
    # Indexed on the first node, which was made cold for it; used on all.
    bed.drop(1)
    index_seconds, index_operations, _ = bed.measured(
        1, lambda: run([quell, "index", bed.path(1, "env"), "-o", bed.path(1, "env.quell")]))
    size = bed.path(1, "env.quell").stat().st_size
    entries = 1 + sum(len(dirs) + len(files) for _, dirs, files in os.walk(bed.path(1, "env")))

    lines, rows, views = set(), [], set()
    for node in range(1, bed.nodes + 1):
        tree = bed.path(node, "env")
        command = [tree / "bin/python", program]
        covered = [quell, "run", "--quiet", "--strict", "-i", bed.path(node, "env.quell"), "--source", tree, "--"]
        row = {}
        for way, words in (("direct", command), ("covered", [*covered, *command])):
            bed.drop(node)
            print(f"Node {node}, {way} ...", flush=True)
            for state in ("cold", "warm"):
                got = []
                seconds, operations, _ = bed.measured(node, lambda: got.append(text_of(words)))
                lines.update(got)
                row[way, state] = (operations, seconds)
        views.add(view_of(covered, tree))
        rows.append((node, row))

    columns = [(way, state) for state in ("cold", "warm") for way in ("direct", "covered")]
    print(f"\nThe program printed: {min(lines).strip()}\n\nmessages to the metadata server, and wall time")
    print("  node" + "".join(f"{state + ' ' + way:>22}" for way, state in columns))
    for node, row in rows:
        print(f"  {node:4}" + "".join(f"{row[c][0]:>12,} {row[c][1]:>7.2f} s" for c in columns))
    middle = {c: tuple(median(row[c][i] for _, row in rows) for i in (0, 1)) for c in columns}
    print("median" + "".join(f"{middle[c][0]:>12,.0f} {middle[c][1]:>7.2f} s" for c in columns))
    for state in ("cold", "warm"):
        direct, covered = middle["direct", state], middle["covered", state]
        print(f"  covered / direct, {state}: {covered[0] / direct[0]:.2f} of the messages, {covered[1] / direct[1]:.2f} of the time")
    command = [bed.path(1, "env/bin/python"), program]
    covered = [quell, "run", "--quiet", "--strict", "-i", bed.path(1, "env.quell"), "--"]
    direct_seconds, covered_seconds = alternate([command, [*covered, *command]], 5)
    print(f"  wall time on node 1, warm, median of 5: {direct_seconds:.2f} s direct, {covered_seconds:.2f} s covered")
    print(f"  view: {', '.join(map(str, views))}")
    print(f"  index: {size / 1e6:.2f} MB, {entries:,} entries, {size / entries:.1f} bytes each; made once, on a cold node, "
          f"in {index_seconds:.2f} s with {index_operations:,} messages")
    if None in views:
        print("\nThe tree was NOT covered on every node. `quell doctor` says what this machine allows.")
    if len(lines) != 1:
        print("\nThe outputs DIFFER:\n" + "".join(sorted(lines)))
    if None in views or len(lines) != 1:
        return 1
    print("\nThe output was identical on every node, directly and covered.")
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
