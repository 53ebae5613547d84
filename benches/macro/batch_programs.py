"""Measures unmodified programs that create many files, for bench.py: in a directory of the MooseFS,
and in a batch whose store is on the same MooseFS, under the preload library and through FUSE. The
time in a batch is the time of `quell run`, so it includes the begin and the commit of the batch.

Each program works once: an untar of 80,000 files in a directory of the MooseFS takes minutes.
"""
import shutil
import sys

from measure import Failed, run, seconds_of, text_of
from sources import TOP, sources, tar_of_copies

FILES = 80_000
SHARE = 0.2  # of the time in the directory


class BatchPrograms:
    """`batch` is the Batch of batch.py."""

    def __init__(self, batch, scratch, quick):
        self.quell, self.add, self.testbed, self.local = batch.quell, batch.add, batch.testbed, batch.local
        self.scratch, self.quick = scratch, quick

    def rows(self):
        tar, tree, repository = sources(self.scratch)
        many = self.scratch / "many.tar"
        files = tar_of_copies(tree, many, 500 if self.quick else FILES)
        self.program(f"untar of {files:,} files", lambda to: ["tar", "-C", to, "-xf", many])
        many.unlink()
        self.program("git clone of this project", lambda to: ["git", "clone", "-q", "--no-hardlinks", repository, to / "clone"])
        self.pip()
        shutil.rmtree(tree)
        shutil.rmtree(repository)
        tar.unlink()

    def pip(self):
        """Install the packages of demo/requirements.txt from wheels on the local disk."""
        wheels, environment = self.scratch / "wheels", self.local / "batch-pip"
        python = environment / "bin/python"
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        title = "pip install of the demonstration's packages"
        try:
            run([sys.executable, "-m", "venv", environment])
            run([*pip, "download", "--no-deps", "--only-binary", ":all:", "-d", wheels, "-r", TOP / "demo/requirements.txt"])
        except Failed as error:
            self.add(f"batch, {title}", "s", None, None, note=f"SKIPPED: the packages could not be downloaded: {error}")
            return
        install = [*pip, "install", "--no-index", "--no-deps", "--no-compile", *sorted(wheels.iterdir()), "--target"]
        self.program(title, lambda to: [*install, to / "site"], note="--no-compile")
        shutil.rmtree(wheels)
        shutil.rmtree(environment)

    def program(self, title, command, note=None):
        """Run the program in a directory and in two batches. `command` returns its words for the
        path of a directory."""
        name = title.split()[0]
        direct = self.testbed.path(1, f"batch-program-{name}")
        direct.mkdir()
        plain = seconds_of(command(direct))
        found = entries(direct)
        shutil.rmtree(direct)
        for way, words in (("preload", ["--via", "preload"]), ("FUSE", [])):
            store, directory = self.testbed.path(1, f"batch-program-{name}-{way}"), self.local / f"batch-program-{name}-{way}"
            directory.mkdir()
            run([self.quell, "batch", "init", store])
            mapping = f"{store}={directory}"
            seconds = seconds_of([self.quell, "run", "--quiet", "--strict", *words, "--batch", mapping, "--", *command(directory)])
            listing = [self.quell, "run", "--quiet", "--batch", mapping, "--mode", "sync", "--", "find", directory, "-mindepth", "1"]
            committed = len(text_of(listing).splitlines())
            if committed != found:
                raise Failed(f"{title}: {found} entries in the directory, {committed} in the batch ({way})")
            self.add(f"batch, {way}: {title}, commit included, beside MooseFS", "s", plain, seconds,
                     f"at most {SHARE} of MooseFS", seconds <= SHARE * plain, note=f"one run each, {found:,} entries{f', {note}' if note else ''}")
            shutil.rmtree(store)


def entries(directory):
    """Return the number of entries below a directory."""
    return len(text_of(["find", directory, "-mindepth", "1"]).splitlines())
