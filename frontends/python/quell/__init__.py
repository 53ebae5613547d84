"""Access to the files of log stores, which many processes can write at the same time, and of
batches, in this process: no mount, no daemon.

    import quell

    with quell.open("/scratch/store", "run/checkpoint", "xb+") as file:
        file.pwrite(b"world", 6)
        file.write_pieces([(0, b"hello"), (100, b"far away")])
        file.sync()

`open` returns an `io.RawIOBase`. Wrap it in `io.BufferedReader`, `io.BufferedWriter` or
`io.BufferedRandom`, or pass it to functions that accept a file, such as `h5py.File(file, "w")`.
Errors are `OSError` and its subclasses, as for other files.

`Batch` changes a store for batches (`quell batch init`) without requests to a metadata server, and
publishes all changes together:

    with quell.Batch("/scratch/names", "results") as batch:
        with batch.open("1", "xb") as file:
            file.write(b"first")

Handles belong to the process that opened them. After a fork, operations of the child on its parent's
handles fail with `EBADF`, and closing one there does nothing; the child must open its own.
"""

__all__ = ["Batch", "CommitResult", "ConflictsError", "Entry", "File", "Store", "open"]


def __getattr__(name):
    # `import quell.blob` loads only the library of blobs.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import batch, file, store

    globals().update(Batch=batch.Batch, CommitResult=batch.CommitResult)
    globals().update(ConflictsError=batch.ConflictsError)
    globals().update(File=file.File, Entry=store.Entry, Store=store.Store, open=store.open)
    return globals()[name]
