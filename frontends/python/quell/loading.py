"""Loads the C libraries."""

import ctypes
from ctypes import c_char_p, c_int, c_int64
from pathlib import Path


def load(name, functions, long, last_error):
    """Returns the library with this file name: the file beside this package, or else the file in
    the search path of the system. `functions` has the types of the arguments of each function,
    `long` the names of the functions that return 64 bits, and `last_error` is the function that
    returns a message."""
    beside = Path(__file__).with_name(name)
    library = ctypes.CDLL(str(beside) if beside.exists() else name)
    for function_name, arguments in functions.items():
        function = getattr(library, function_name)
        function.argtypes = arguments
        function.restype = c_int64 if function_name in long else c_int
    message = getattr(library, last_error)
    message.argtypes = []
    message.restype = c_char_p
    return library
