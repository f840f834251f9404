"""A file put in the place of anonymous memory: the mapping that has it needs no descriptor (mmap(2), MAP_FIXED)."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from mmap import MAP_SHARED, PROT_READ, PROT_WRITE, mmap
from typing import Any

#: The same on Linux and macOS; module mmap hasn't got it.
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


def map_over(mapping: mmap, fd: int) -> None:
    """What `mapping`, which only the caller has, shows is the file from now on, shared, to read and write.

    Raises OSError; then it is closed.
    """
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    if _mmap()(address, len(mapping), PROT_READ | PROT_WRITE, MAP_SHARED | _MAP_FIXED, fd, 0) == _FAILED:
        error = ctypes.get_errno()
        # At once: the place may be free by now, and another thread's memory come there, which a late munmap would hit.
        mapping.close()
        raise OSError(error, os.strerror(error))


@cache
def _mmap() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    return function
