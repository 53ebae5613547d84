"""The functions and structures of libquellblob for Python. frontends/blob-capi/include/quell_blob.h
documents them."""

import ctypes
import itertools
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_uint8, c_void_p

from ..loading import load
from ..memory import Handle
from .errors import Change, Conflict, Different, Overflow, SnapshotTooOld


class Options(ctypes.Structure):
    _fields_ = [("in_flight_max", c_uint32), ("must_exist", c_int)]


class Attributes(ctypes.Structure):
    _fields_ = [("size_bytes", c_uint64), ("modified_ns", c_uint64)]


class FileAttributes(ctypes.Structure):
    _fields_ = [("mode", c_uint32), ("uid", c_uint32), ("gid", c_uint32)]


class Name(ctypes.Structure):
    _fields_ = [("name", c_void_p), ("name_bytes", c_size_t), ("attributes", Attributes)]


class TransformOfNumbers(ctypes.Structure):
    _fields_ = [
        ("kind", c_uint32),
        ("cell", c_uint32),
        ("overflow", c_uint32),
        ("count", c_uint32),
        ("operands", c_void_p),
        ("operands_bytes", c_size_t),
        ("expected", c_void_p),
        ("expected_bytes", c_size_t),
        ("returns_before", c_int),
    ]


class Failure(ctypes.Structure):
    _fields_ = [
        ("reason", c_uint32),
        ("is_repeatable", c_int),
        ("operation", c_int64),
        ("cell", c_uint32),
        ("found_bytes", c_uint32),
        ("found", c_uint8 * 8),
    ]


class Part(ctypes.Structure):
    _fields_ = [("kind", c_uint32), ("start", c_uint64), ("end", c_uint64)]


class ConflictOfParts(ctypes.Structure):
    _fields_ = [("name", c_void_p), ("name_bytes", c_size_t), ("read", Part), ("changed", Part)]


STRUCTURES = {
    "quell_blob_options": Options,
    "quell_blob_attributes": Attributes,
    "quell_blob_file_attributes": FileAttributes,
    "quell_blob_name": Name,
    "quell_blob_transform": TransformOfNumbers,
    "quell_blob_failure": Failure,
    "quell_blob_part": Part,
    "quell_blob_conflict": ConflictOfParts,
}

_CommittedCallback = CFUNCTYPE(None, c_size_t, c_int, c_void_p)
_ReadCallback = CFUNCTYPE(None, c_size_t, c_int64)

_NAME = [c_void_p, c_char_p, c_size_t]
_LIST = [*_NAME, c_char_p, c_size_t, c_size_t, POINTER(c_void_p)]

# The argument types of each function. All functions return an int, except those in LONG.
FUNCTIONS = {
    "quell_blob_open": [c_char_p, POINTER(Options), POINTER(c_void_p)],
    "quell_blob_close": [c_void_p],
    "quell_blob_drain": [c_void_p],
    "quell_blob_create": _NAME,
    "quell_blob_delete": _NAME,
    "quell_blob_rename": [*_NAME, c_char_p, c_size_t],
    "quell_blob_write": [*_NAME, c_uint64, c_void_p, c_size_t],
    "quell_blob_append": [*_NAME, c_void_p, c_size_t],
    "quell_blob_resize": [*_NAME, c_uint64],
    "quell_blob_apply": [*_NAME, c_uint64, POINTER(TransformOfNumbers), c_void_p, c_size_t],
    "quell_blob_read": [*_NAME, c_uint64, c_void_p, c_size_t],
    "quell_blob_stat": [*_NAME, POINTER(Attributes)],
    "quell_blob_collect": [c_void_p],
    "quell_blob_snapshot_begin": [c_void_p, POINTER(c_void_p)],
    "quell_blob_snapshot_version": [c_void_p],
    "quell_blob_snapshot_read": [*_NAME, c_uint64, c_void_p, c_size_t],
    "quell_blob_snapshot_stat": [*_NAME, POINTER(Attributes)],
    "quell_blob_snapshot_next_data": [*_NAME, c_uint64, POINTER(c_uint64)],
    "quell_blob_snapshot_list": _LIST,
    "quell_blob_snapshot_close": [c_void_p],
    "quell_blob_names_next": [c_void_p, POINTER(Name)],
    "quell_blob_names_close": [c_void_p],
    "quell_blob_begin": [c_void_p, POINTER(c_void_p)],
    "quell_blob_batch": [c_void_p, POINTER(c_void_p)],
    "quell_blob_transaction_create": [*_NAME, c_int],
    "quell_blob_transaction_delete": _NAME,
    "quell_blob_transaction_rename": [*_NAME, c_char_p, c_size_t],
    "quell_blob_transaction_write": [*_NAME, c_uint64, c_void_p, c_size_t],
    "quell_blob_transaction_append": [*_NAME, c_void_p, c_size_t],
    "quell_blob_transaction_resize": [*_NAME, c_uint64],
    "quell_blob_transaction_set_attributes": [*_NAME, POINTER(FileAttributes), POINTER(c_uint64)],
    "quell_blob_transaction_apply": [*_NAME, c_uint64, POINTER(TransformOfNumbers)],
    "quell_blob_transaction_read": [*_NAME, c_uint64, c_void_p, c_size_t],
    "quell_blob_transaction_stat": [*_NAME, POINTER(Attributes)],
    "quell_blob_transaction_list": _LIST,
    "quell_blob_transaction_version": [c_void_p],
    "quell_blob_commit": [c_void_p, POINTER(c_void_p)],
    "quell_blob_transaction_close": [c_void_p],
    "quell_blob_result_version": [c_void_p],
    "quell_blob_result_appended": [c_void_p, c_size_t],
    "quell_blob_result_before": [c_void_p, c_size_t, c_void_p, c_size_t],
    "quell_blob_result_close": [c_void_p],
    "quell_blob_submit": [c_void_p, _CommittedCallback, c_size_t],
    "quell_blob_submit_read": [*_NAME, c_uint64, c_void_p, c_size_t, _ReadCallback, c_size_t],
    "quell_blob_last_failure": [POINTER(Failure)],
    "quell_blob_last_conflicts": [POINTER(POINTER(ConflictOfParts))],
}
LONG = {
    "quell_blob_append",
    "quell_blob_apply",
    "quell_blob_read",
    "quell_blob_snapshot_version",
    "quell_blob_snapshot_read",
    "quell_blob_transaction_read",
    "quell_blob_transaction_version",
    "quell_blob_result_version",
    "quell_blob_result_appended",
    "quell_blob_result_before",
    "quell_blob_last_conflicts",
}


_library = load("libquellblob.so", FUNCTIONS, LONG, "quell_blob_last_error")


def call(name, *arguments):
    """Calls a function and returns its result; a negative one is raised as an error. The interpreter
    runs other threads meanwhile."""
    answer = getattr(_library, name)(*arguments)
    if answer < 0:
        raise last_error(-answer)
    return answer


_FAILED, _CONFLICT, _TOO_OLD, _DIFFERENT, _OVERFLOW = range(5)
_PARTS = ("existence", "size", "range", "names")
_RANGE = 2


def last_error(number):
    """Returns the last error of this thread."""
    failure = Failure()
    _library.quell_blob_last_failure(ctypes.byref(failure))
    words = _library.quell_blob_last_error().decode(errors="replace")
    if failure.reason == _CONFLICT:
        error = Conflict(number, words)
        error.changes = _changes()
    elif failure.reason == _TOO_OLD:
        error = SnapshotTooOld(number, words)
    elif failure.reason == _DIFFERENT:
        error = Different(number, words)
        error.found = bytes(failure.found[: failure.found_bytes])
    elif failure.reason == _OVERFLOW:
        error = Overflow(number, words)
    else:
        error = OSError(number, words)
    if failure.reason in (_DIFFERENT, _OVERFLOW):
        error.operation, error.cell = failure.operation, failure.cell
    error.is_repeatable = bool(failure.is_repeatable)
    return error


def _changes():
    listed = POINTER(ConflictOfParts)()
    count = _library.quell_blob_last_conflicts(ctypes.byref(listed))
    span = lambda part: (part.start, part.end) if part.kind == _RANGE else None
    return tuple(
        Change(
            ctypes.string_at(each.name, each.name_bytes),
            _PARTS[each.changed.kind],
            span(each.read),
            span(each.changed),
        )
        for each in listed[:count]
    )


def opened(close, function, *arguments):
    """Calls a function that returns a handle."""
    pointer = c_void_p()
    call(function, *arguments, ctypes.byref(pointer))
    return Handle(pointer, close, call)


# The functions that receive results of submitted operations, by the number that is passed to the
# library. The library calls them in a thread of its own.
_receivers = {}
_numbers = itertools.count(1)


@_CommittedCallback
def _was_committed(number, status, result):
    _receivers.pop(number)(status, result)


@_ReadCallback
def _was_read(number, count):
    _receivers.pop(number)(count)


def submit(name, *arguments, receiver):
    """Calls a function whose result is passed to `receiver`."""
    callback = _was_committed if name == "quell_blob_submit" else _was_read
    number = next(_numbers)
    _receivers[number] = receiver
    try:
        call(name, *arguments, callback, number)
    except OSError:
        del _receivers[number]
        raise
