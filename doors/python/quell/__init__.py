"""Files of log stores that many processes write at once, in this process: no mount, no daemon.

    import quell

    with quell.open("/scratch/store", "run/checkpoint", "xb+") as file:
        file.pwrite(b"world", 6)
        file.write_pieces([(0, b"hello"), (100, b"far away")])
        file.sync()

What `open` gives is an `io.RawIOBase`: wrap it in `io.BufferedReader`, `io.BufferedWriter` or `io.BufferedRandom`, or hand
it to whatever takes a file, as `h5py.File(file, "w")` does. Errors are `OSError` and its kinds, as those of the system are.

Handles belong to the process that opened them. After a fork the child opens its own; those of its parent refuse it
(`EBADF`), and closing one there does nothing.
"""

from .file import File
from .store import Entry, Store, open

__all__ = ["Entry", "File", "Store", "open"]
