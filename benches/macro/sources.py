"""The files of this project as a tar file, a directory and a git repository, for benchmarks of
programs that unpack and copy them."""
import shutil
import tarfile
from pathlib import Path

from measure import run

TOP = Path(__file__).resolve().parents[2]


def sources(scratch):
    """Create the three in the directory `scratch`. Return their paths: tar file, directory, git
    repository."""
    tree, tar, repository = (Path(scratch) / name for name in ("tree", "tree.tar", "repository"))
    left_out = shutil.ignore_patterns(".git", "target", "__pycache__", "*.so")
    shutil.copytree(TOP, tree, symlinks=True, ignore=left_out)
    run(["tar", "-C", tree, "-cf", tar, "."])
    shutil.copytree(tree, repository, symlinks=True)
    git = ["git", "-C", repository, "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for words in (["init", "-q"], ["add", "-A", "-f"], ["commit", "-q", "-m", "files"]):
        run([*git, *words])
    return tar, tree, repository


def tar_of_copies(tree, tar, files):
    """Write a tar file with as many copies of the directory `tree` as are needed for a number of
    files. Return the number of its files."""
    each = sum(path.is_file() for path in Path(tree).rglob("*"))
    copies = -(-files // each)
    with tarfile.open(tar, "w") as archive:
        for copy in range(copies):
            archive.add(tree, arcname=f"copy-{copy:03}")
    return each * copies
