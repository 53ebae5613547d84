"""The functions, structures and errors of libquell for Python. frontends/capi/include/quell.h documents
them."""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

from .loading import load


class Choices(ctypes.Structure):
    _fields_ = [("buffer_bytes", c_size_t), ("index_threads", c_size_t), ("flatten_bytes", c_uint64)]


class BatchOptions(ctypes.Structure):
    _fields_ = [
        ("directory", c_char_p),
        ("name", c_char_p),
        ("trusted_owners", POINTER(c_uint32)),
        ("trusted_owners_count", c_size_t),
        ("is_atomic", c_int),
    ]


class BatchResult(ctypes.Structure):
    _fields_ = [("number", c_uint64), ("entries", c_uint64), ("conflicts", c_uint64)]


class Attributes(ctypes.Structure):
    _fields_ = [
        ("size_bytes", c_uint64),
        ("blocks", c_uint64),
        ("mode", c_uint32),
        ("links", c_uint32),
        ("uid", c_uint32),
        ("gid", c_uint32),
        ("modified_s", c_int64),
        ("changed_s", c_int64),
        ("modified_ns", c_uint32),
        ("changed_ns", c_uint32),
        ("node", c_uint64),
    ]

    def as_stat(self):
        """Returns the result that `os.stat` would return."""
        modified_ns = self.modified_s * 10**9 + self.modified_ns
        changed_ns = self.changed_s * 10**9 + self.changed_ns
        usual = (self.mode, self.node, 0, self.links, self.uid, self.gid, self.size_bytes)
        times = (self.modified_s, self.modified_s, self.changed_s)
        more = {
            "st_atime": modified_ns / 1e9,
            "st_mtime": modified_ns / 1e9,
            "st_ctime": changed_ns / 1e9,
            "st_atime_ns": modified_ns,
            "st_mtime_ns": modified_ns,
            "st_ctime_ns": changed_ns,
            "st_blksize": 1 << 16,
            "st_blocks": self.blocks,
            "st_rdev": 0,
        }
        return os.stat_result(usual + times, more)


class ReadPiece(ctypes.Structure):
    _fields_ = [("offset", c_uint64), ("into", c_void_p), ("length", c_size_t), ("received", c_size_t)]


class WritePiece(ctypes.Structure):
    _fields_ = [("offset", c_uint64), ("source", c_void_p), ("length", c_size_t)]


class EntryOfDirectory(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("mode", c_uint32)]


class ShareBytes(ctypes.Structure):
    _fields_ = [("bytes", c_void_p), ("length", c_size_t)]


# The argument types of each function. All functions return an int, except those in LONG.
FUNCTIONS = {
    "quell_store_open": [POINTER(c_char_p), c_size_t, POINTER(Choices), POINTER(c_void_p)],
    "quell_store_close": [c_void_p],
    "quell_batch_begin": [c_char_p, POINTER(BatchOptions), POINTER(c_void_p)],
    "quell_batch_number": [c_void_p],
    "quell_batch_commit": [c_void_p, POINTER(BatchResult)],
    "quell_batch_abort": [c_void_p],
    "quell_stat": [c_void_p, c_char_p, POINTER(Attributes)],
    "quell_truncate": [c_void_p, c_char_p, c_uint64],
    "quell_flatten": [c_void_p, c_char_p],
    "quell_remove": [c_void_p, c_char_p],
    "quell_rename": [c_void_p, c_char_p, c_char_p],
    "quell_mkdir": [c_void_p, c_char_p, c_uint32],
    "quell_rmdir": [c_void_p, c_char_p],
    "quell_open": [c_void_p, c_char_p, c_int, c_uint32, POINTER(c_void_p)],
    "quell_close": [c_void_p],
    "quell_pread": [c_void_p, c_void_p, c_size_t, c_uint64],
    "quell_pwrite": [c_void_p, c_void_p, c_size_t, c_uint64],
    "quell_append": [c_void_p, c_void_p, c_size_t],
    "quell_read_pieces": [c_void_p, POINTER(ReadPiece), c_size_t],
    "quell_write_pieces": [c_void_p, POINTER(WritePiece), c_size_t],
    "quell_lock": [c_void_p, c_uint64, c_uint64, c_int],
    "quell_try_lock": [c_void_p, c_uint64, c_uint64, c_int],
    "quell_unlock": [c_void_p, c_uint64, c_uint64],
    "quell_index_logs": [c_void_p, c_char_p],
    "quell_read_share": [c_void_p, c_char_p, c_size_t, c_size_t, POINTER(c_void_p)],
    "quell_share_bytes": [c_void_p, POINTER(ShareBytes)],
    "quell_share_free": [c_void_p],
    "quell_open_with_shares": [c_void_p, c_char_p, c_int, POINTER(ShareBytes), c_size_t, POINTER(c_void_p)],
    "quell_flatten_shares": [c_void_p, c_char_p, POINTER(ShareBytes), c_size_t],
    "quell_virtual_path": [c_char_p, c_char_p, c_size_t],
    "quell_virtual_store": [c_char_p, POINTER(Choices), POINTER(c_void_p)],
    "quell_virtual_flatten_bytes": [c_char_p],
    "quell_publish": [c_void_p],
    "quell_sync": [c_void_p],
    "quell_file_stat": [c_void_p, POINTER(Attributes)],
    "quell_file_truncate": [c_void_p, c_uint64],
    "quell_dir_open": [c_void_p, c_char_p, POINTER(c_void_p)],
    "quell_dir_next": [c_void_p, POINTER(EntryOfDirectory)],
    "quell_dir_close": [c_void_p],
}
LONG = {
    "quell_batch_number",
    "quell_pread",
    "quell_pwrite",
    "quell_append",
    "quell_read_pieces",
    "quell_write_pieces",
    "quell_flatten",
    "quell_index_logs",
    "quell_flatten_shares",
    "quell_virtual_flatten_bytes",
}


_library = load("libquell.so", FUNCTIONS, LONG, "quell_last_error")


def call(name, *arguments, path=None):
    """Calls a function and returns its result; a negative one is raised as OSError. The interpreter
    runs other threads meanwhile."""
    answer = getattr(_library, name)(*arguments)
    if answer < 0:
        words = _library.quell_last_error().decode(errors="replace")
        raise OSError(-answer, words, path)
    return answer
