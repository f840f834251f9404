"""The memory of a Python worker, which Spark keeps from task to task."""

from __future__ import annotations

import gc
from functools import cache

#: glibc gives freed memory back to the system where it is more than twice the largest block that was ever freed
#: (mallopt(3), M_MMAP_THRESHOLD), and each page that it takes again costs: more than half of the pages were spared by
#: freeing a block of this size, never touched, and a quarter of the loop's time for bodies of 1 KiB; a row that is
#: written takes 0.05 us of native code instead of 0.3.
FREED_BYTES = 30 * 1024 * 1024


@cache
def settle_worker() -> None:
    """For the process of a worker, before its first work: later calls do nothing.

    It keeps what it frees from now on, for the most part. What it has so far, modules above all, is looked at by the
    garbage collection no more: `pyspark.daemon` calls gc.collect() after each task, which took 60 ms, 50 of them for
    pyspark, pandas and pyarrow, and a copy of each page that workers share with their daemon.
    """
    # Once: the second block of this size would be one that glibc has kept, and Python fill it with zeros.
    bytes(FREED_BYTES)
    gc.freeze()
