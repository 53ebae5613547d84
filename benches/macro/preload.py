"""Measures the preload library without a network: the start of programs, single calls, and a long
listing. The rows of shared files are in log.py."""
import json
import os
from pathlib import Path

from measure import median, run, seconds_of, text_of

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
PYTHON = "/usr/bin/python3"
STARTS = 200
REPEATS = 5
IMPORT = "import numpy"
CALLS = (("open", "open and close"), ("stat", "stat"), ("pread", "pread of 4 KiB"))
NO_LIBRARY = "SKIPPED: there is no libquell_preload.so beside the binary: make build"


def library_of(quell):
    return Path(quell).resolve().parent / "libquell_preload.so"


def environment(quell, **view):
    """Return the environment in which a program has this view."""
    return {**os.environ, "LD_PRELOAD": str(library_of(quell)), "QUELL_VIEW": json.dumps(view)}


class Preload:
    def __init__(self, bench):
        self.quell, self.add = bench.quell, bench.add
        self.shape = ["8", "2", "17"] if bench.options.quick else []
        self.scratch = bench.scratch

    def rows(self, local):
        if not library_of(self.quell).exists():
            self.add("preload library", "s", None, None, None, None, note=NO_LIBRARY)
            return
        tree, store, mount = (Path(local, name) for name in ("preload-tree", "preload-store", "preload-run"))
        store.mkdir()
        mount.mkdir()
        run([TOP / "testbed/synthetic-tree", tree, *self.shape])
        index = Path(f"{tree}.quell")
        run([self.quell, "index", "--quiet", tree, "-o", index])
        view = {"tree": [{"path": str(tree), "index": str(index)}], "log": [{"path": str(mount), "stores": [str(store)]}]}
        self.starts(view)
        self.calls(tree, view)
        self.dispatched(tree, view)
        self.imports()
        self.listing(tree, index, view)

    def starts(self, view):
        """Measure the time that the library adds to the start of a program without virtual paths."""
        plain, loaded = [], []
        loop = ["sh", "-c", f"for i in $(seq {STARTS}); do /bin/true; done"]
        for _ in range(REPEATS):
            plain.append(seconds_of(loop) / STARTS * 1000)
            loaded.append(seconds_of(loop, env=environment(self.quell, **view)) / STARTS * 1000)
        direct, with_library = median(plain), median(loaded)
        self.add("start of a program that uses no virtual path: preload", "ms", direct, with_library, "at most 1 ms more",
                 with_library - direct <= 1, note=f"median of {REPEATS} times {STARTS} starts")

    def calls(self, tree, view):
        """Measure single calls on a file of the tree, and on a file outside of it."""
        program = self.scratch / "calls"
        run(["cc", "-O2", "-Wall", "-o", program, TOP / "benches/micro/calls.c"])
        covered = next(path for path in sorted(tree.rglob("*")) if path.is_file())
        other = Path(tree.parent, "other/d1/d2/d3/file")
        other.parent.mkdir(parents=True)
        other.write_bytes(covered.read_bytes())
        for path, whose, limit in ((other, "another file", 300), (covered, "a covered file", 1000)):
            plain, loaded = [], []
            for _ in range(REPEATS):
                for into, env in ((plain, None), (loaded, environment(self.quell, **view))):
                    into.append(dict(word.split("=") for word in text_of([program, path], env=env).split()))
            for name, title in CALLS:
                direct, preload = (min(float(found[name]) for found in all_found) for all_found in (plain, loaded))
                self.add(f"{title} of {whose}: preload", "ns", direct, preload, f"at most {limit} ns more",
                         preload - direct <= limit, note=f"the least of {REPEATS} runs")

    def dispatched(self, tree, view):
        """Measure system calls without libc, which --via preload+sud dispatches to the library."""
        program = self.scratch / "calls"
        covered = next(path for path in sorted(tree.rglob("*")) if path.is_file())
        plain, loaded = [], []
        for _ in range(REPEATS):
            for into, env in ((plain, None), (loaded, environment(self.quell, **view, dispatch=True))):
                into.append(dict(word.split("=") for word in text_of([program, covered], env=env).split()))
        rows = (("raw_getppid", "getppid without libc"), ("raw_stat", "stat of a covered file without libc"),
                ("stat", "stat of a covered file by libc"))
        for name, title in rows:
            if name not in plain[0]:
                self.add(f"{title}: preload+sud", "ns", None, None, note="SKIPPED: not on this architecture")
                continue
            direct, preload = (min(float(found[name]) for found in all_found) for all_found in (plain, loaded))
            self.add(f"{title}: preload+sud", "ns", direct, preload, note=f"the least of {REPEATS} runs")

    def imports(self):
        """Measure the start of Python with a package, without a view of its files."""
        if text_of(["sh", "-c", f"{PYTHON} -c '{IMPORT}' 2>/dev/null && echo yes || echo no"]).strip() != "yes":
            self.add(f"python3 -c '{IMPORT}': preload+sud", "ms", None, None, note="SKIPPED: numpy is not installed")
            return
        command = [PYTHON, "-c", IMPORT]
        package = text_of([PYTHON, "-c", "import numpy; print(numpy.__path__[0])"]).strip()
        index = self.scratch / "numpy.quell"
        run([self.quell, "index", "--quiet", package, "-o", index])
        tree = {"tree": [{"path": package, "index": str(index)}]}
        times = {"direct": [], "preload": [], "preload+sud": []}
        for _ in range(REPEATS):
            times["direct"].append(seconds_of(command) * 1000)
            times["preload"].append(seconds_of(command, env=environment(self.quell, **tree)) * 1000)
            times["preload+sud"].append(seconds_of(command, env=environment(self.quell, **tree, dispatch=True)) * 1000)
        for via in ("preload", "preload+sud"):
            self.add(f"python3 -c '{IMPORT}', local: {via}", "ms", median(times["direct"]), median(times[via]),
                     note=f"median of {REPEATS}, with the package as an indexed tree")

    def listing(self, tree, index, view):
        command = ["ls", "-lR", tree]
        fuse = [self.quell, "run", "--quiet", "--strict", "--view", "fuse", "--check", "none", "-i", index, "--", *command]
        times = {"direct": [], "fuse": [], "preload": []}
        for _ in range(REPEATS):
            times["direct"].append(seconds_of(command))
            times["fuse"].append(seconds_of(fuse))
            times["preload"].append(seconds_of(command, env=environment(self.quell, **view)))
        direct, fuse, preload = (median(times[name]) for name in ("direct", "fuse", "preload"))
        self.add("ls -lR of the synthetic tree, local: view fuse", "s", direct, fuse, note=f"median of {REPEATS}")
        self.add("ls -lR of the synthetic tree, local: preload", "s", direct, preload, "at most 1.0 of the view fuse",
                 preload <= fuse, note=f"median of {REPEATS}; {preload / fuse:.2f} of the view fuse")
