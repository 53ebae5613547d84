"""Measures MPI-IO through the components for Open MPI, on 4 nodes of a parallel file system.

The four ranks of a job write one file with MPI_File_write_all, each its own records, which take turns
with the records of the others; benches/macro/mpi_records.c does this and measures the time. Each
rank reaches the store, and the plain file, through the mount of its own node. The rates are
compared with a private file for each rank, and with the MPI-IO of Open MPI, OMPIO and ROMIO, on a
plain file and on log mounts.
"""
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from log import NODES, Logs, Rates
from measure import Failed, Testbed, run, text_of

HERE = Path(__file__).resolve().parent
# Bytes of a record, records of each rank, and the least share of the rate of private files.
SIZES = ((47_008, 2_000, 0.9), (8_192, 11_000, 0.8))
READERS, RANDOM_RECORDS, RANDOM_BYTES = 64, 1_000, 512
DRIVERS = {"ompio": "OMPIO, plain file", "romio321": "ROMIO, plain file"}


class Mpi:
    def __init__(self, bench):
        self.quell, self.testbed, self.add = bench.quell, bench.testbed, bench.add
        self.quick, self.repeats = bench.options.quick, 1 if bench.options.quick else 3
        self.scratch = Path(tempfile.mkdtemp(prefix="mpi.", dir=bench.scratch))
        self.logs = Logs(bench)
        self.program, self.components = self.scratch / "mpi_records", self.scratch / "components"

    def build(self):
        """Compile the program and the components; returns the reason if that is not possible."""
        if not shutil.which("mpicc") or not shutil.which("mpirun"):
            return "SKIPPED: there is no Open MPI (mpicc, mpirun)"
        if not (Path(self.quell).resolve().parent / "libquell.so").exists():
            return "SKIPPED: there is no libquell beside the binary: make build"
        run(["mpicc", "-O2", "-Wall", "-o", self.program, HERE / "mpi_records.c"])
        run([self.quell, "mpi", "build", "--quiet", "--output", self.components])
        return None

    def job(self, driver, work, records, size, paths, ranks=NODES, stores=None, around=()):
        """Run a job and return its result. With `stores`, a path is below a virtual directory, and each
        rank reaches the store by its own path."""
        command = ["mpirun", "-n", str(ranks), "--oversubscribe", "--allow-run-as-root", "--mca", "btl", "self,vader"]
        command += ["--mca", "io", driver]
        environment = {**os.environ, "OMPI_MCA_hwloc_base_binding_policy": "none"}
        if stores:
            environment["OMPI_MCA_mca_base_component_path"] = f"{self.components}:SYSTEM_DEFAULT:USER_DEFAULT"
            views = [json.dumps({"log": [{"path": str(paths[0].parent), "stores": [str(store)]}]}) for store in stores]
            cases = "".join(f"{rank}) export QUELL_VIEW='{view}' ;; " for rank, view in enumerate(views))
            script = f"case $((OMPI_COMM_WORLD_RANK % {len(views)})) in {cases}esac; exec \"$@\""
            command += ["sh", "-c", script, "sh"]
        command += [*around, self.program, work, records, size, *paths]
        return json.loads(text_of(command, env=environment))

    def measure_on(self, testbed, name):
        stores, plain = ([testbed.path(node, f"mpi-{kind}") for node in range(1, NODES + 1)] for kind in ("store", "plain"))
        for directory in (stores[0], plain[0]):
            directory.mkdir()
        virtual = [self.scratch / "virtual" / "file"]
        for size, records, share in SIZES:
            records = 200 if self.quick else records
            rates = Rates()
            for turn in range(self.repeats):
                def at(root, name):
                    return root / f"{name}-{size}-{turn}"

                for method, paths in ((None, [at(root, "private") for root in plain]), *((driver, [at(root, driver) for root in plain]) for driver in DRIVERS)):
                    work = "collective" if method else "private"
                    # Writing one plain file may be slow, and is done once.
                    if turn == 0 or not method:
                        self.logs.touch_memory()
                        rates.note(method, self.job(method or "ompio", work, records, size, paths))
                self.logs.touch_memory()
                ours = [at(virtual[0].parent, "ours")]
                rates.note("components", self.job("ompio", "collective", records, size, ours, stores=stores))
                self.job("ompio", "verify", records, size, ours, stores=stores)
                with self.logs.mounted(stores) as mounts:
                    self.logs.touch_memory()
                    rates.note("FUSE", self.job("ompio", "collective", records, size, [at(mount.point, "fuse") for mount in mounts]))
            private, ours, fuse = (rates.median_of(method) for method in (None, "components", "FUSE"))
            others = ", ".join(f"{title} {rates.median_of(driver):,.0f}" for driver, title in DRIVERS.items())
            self.add(f"{name}, MPI_File_write_all of one file, records of {size:,} bytes: components against private files", "MB/s",
                     private, ours, f"at least {share} of private files, and of FUSE", ours >= share * private and ours >= fuse,
                     note=f"median of {self.repeats}; once: {others}; OMPIO on log mounts {fuse:,.0f}")

    def opening(self, local):
        """Count the bytes of the index that a job of many readers reads from the store."""
        store, path = Path(local, "mpi-store"), self.scratch / "virtual" / "random"
        store.mkdir()
        readers = 8 if self.quick else READERS
        self.job("ompio", "random", RANDOM_RECORDS, RANDOM_BYTES, [path], ranks=readers, stores=[store])
        logs = list((store / "random.container").rglob("*.index"))
        expected = sum(log.stat().st_size for log in logs)
        together, alone = (self.index_bytes(path, store, ranks) for ranks in (readers, 1))
        self.add(f"MPI_File_open for reading by {readers} ranks, {len(logs)} logs of {RANDOM_RECORDS:,} random records: index bytes read",
                 "bytes", alone * readers, together, "once for the job", together == expected,
                 note=f"the index logs have {expected:,} bytes together; direct: each rank alone")

    def index_bytes(self, path, store, ranks):
        traces = Path(tempfile.mkdtemp(prefix="traces.", dir=self.scratch))
        around = ["strace", "-ff", "-y", "-e", "trace=read,pread64,preadv", "-o", traces / "rank"]
        self.job("ompio", "open", RANDOM_RECORDS, RANDOM_BYTES, [path], ranks=ranks, stores=[store], around=around)
        lines = (line for trace in traces.iterdir() for line in trace.read_text(errors="replace").splitlines() if ".index>" in line)
        return sum(int(line.rsplit(" = ", 1)[1]) for line in lines)

    def rows(self, local):
        reason = self.build()
        if reason:
            self.add("MPI-IO through the components", "MB/s", None, None, None, None, note=reason)
            return

        def on_cephfs():
            with Testbed(self.scratch / "cephfs", NODES, "cephfs").up() as testbed:
                self.measure_on(testbed, "CephFS")

        parts = {"MooseFS": lambda: self.measure_on(self.testbed, "MooseFS"), "CephFS": on_cephfs, "opening": lambda: self.opening(local)}
        for name, part in parts.items():
            try:
                part()
            except (Failed, OSError, ValueError, subprocess.SubprocessError) as error:
                # A failure does not lose the earlier results, and the other parts are measured.
                self.add(f"MPI-IO: {name}", "s", None, None, "measured to the end", False, note=" ".join(f"FAILED: {error}".split())[:300])
