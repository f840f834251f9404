"""Maps a file over anonymous memory, so that the mapping needs no descriptor (mmap(2), MAP_FIXED)."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from mmap import MAP_SHARED, PROT_READ, PROT_WRITE, mmap
from typing import Any

#: The module `mmap` lacks this constant. Its value is the same on Linux and macOS.
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


def map_over(mapping: mmap, fd: int) -> None:
    """Maps a file over the memory of `mapping`, shared, to read and write. No other code may have used `mapping`.

    If this fails, closes `mapping` and raises OSError.
    """
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    if _mmap()(address, len(mapping), PROT_READ | PROT_WRITE, MAP_SHARED | _MAP_FIXED, fd, 0) == _FAILED:
        error = ctypes.get_errno()
        # Close it at once: its address may be free, and a later munmap could hit another thread's new memory.
        mapping.close()
        raise OSError(error, os.strerror(error))


@cache
def _mmap() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    return function
