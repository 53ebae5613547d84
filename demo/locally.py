"""`make demo`: one program started directly and covered, on any file system and without privilege.

usage: locally.py ENVIRONMENT PROGRAM        ($QUELL is the quell binary)

What a file system is asked is counted where the program asks it: every call on a name in the
environment, seen by strace. Covered, the view answers all of them but the opening of files, whose
bytes come from the environment itself; what `quell run` asks on its own is counted as well.
"""
import os
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # the checkout stays as it is
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "testbed"))
from measure import Failed, alternate, count_calls, machine, seconds_of, stop_on_signals, text_of, view_of

REPEATS = 5


def main(environment, program):
    quell, index = os.environ["QUELL"], f"{environment}.quell"
    command = [f"{environment}/bin/python", program]
    covered = [quell, "run", "--quiet", "--strict", "-i", index, "--"]

    print(f"On {machine()}\nTree {environment}")
    print("Running the program directly, uncovered ...", flush=True)
    direct_line = text_of(command)  # also the warm-up
    direct = count_calls(command, environment)

    print("Indexing the tree ...", flush=True)
    index_seconds = seconds_of([quell, "index", environment, "-o", index])
    entries = 1 + sum(len(dirs) + len(files) for _, dirs, files in os.walk(environment))
    size = os.path.getsize(index)

    print("Running the program covered ...", flush=True)
    covered_line = text_of([*covered, *command])
    view = view_of(covered, environment)
    inside = count_calls(command, environment, before=covered)
    direct_seconds, covered_seconds = alternate([command, [*covered, *command]], REPEATS)
    try:
        own = count_calls([*covered, "true"], environment)["total"] + count_calls([*covered, "true"], index)["total"]
    except Failed:
        own = None  # strace takes the privileges of fusermount3 away

    if view and not view.startswith(("overlay", "fuse", "erofs")):
        view = None  # some other mount: nothing is known of what it answers
    if view is None:
        print("\nThe tree was NOT covered: no mount at its path was seen. `quell doctor` says what this machine allows.")
    rows = [("kind of call on the tree", "direct", "covered")]
    for kind, title in (("stat", "questions about a name (stat, access, readlink)"), ("negative", "searches that found nothing"),
                        ("list", "directory listings")):
        rows.append((title, f"{direct[kind]:,}", "0" if view else f"{inside[kind]:,}"))
    rows.append(("files opened", f"{direct['open']:,}", f"{inside['open']:,}"))
    rows.append(("asked by quell itself: index and check", "-", "not measured" if own is None else f"{own:,}"))
    reached = (inside["open"] if view else inside["total"]) + (own or 0)
    rows.append(("metadata operations that reached the file system", f"{direct['total']:,}", f"{reached:,}"))
    rows.append((f"wall time, median of {REPEATS}, warm", f"{direct_seconds:.2f} s", f"{covered_seconds:.2f} s"))
    print(f"\nThe program printed: {direct_line.strip()}")
    print()
    for title, left, right in rows:
        print(f"  {title:50} {left:>10} {right:>14}")
    print(f"\n  view: {view or 'none'}; covered / direct: {reached / direct['total']:.2f} of the operations, "
          f"{covered_seconds / direct_seconds:.2f} of the time")
    print(f"  index: {size / 1e6:.2f} MB, {entries:,} entries, {size / entries:.1f} bytes each, made in {index_seconds:.2f} s")
    print("  Counted with strace where the program asks. Covered, the view answers everything but the opening of files."
          "\n  Local disks answer metadata quickly, so the time differs little here: `make demo PFS=moosefs`, as root, counts the messages to the metadata server of a real parallel file system.")
    if covered_line != direct_line:
        print(f"\nThe outputs DIFFER. Covered: {covered_line.strip()}")
        return 1
    print("\nThe output was identical, directly and covered.")
    return 0 if view else 1


if __name__ == "__main__":
    stop_on_signals()
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        sys.exit(main(sys.argv[1], sys.argv[2]))
    except Failed as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
