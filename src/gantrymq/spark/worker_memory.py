"""Tunes the memory of a Python worker, which Spark reuses for many tasks."""

from __future__ import annotations

import gc
from functools import cache

from gantrymq.arrow.freed_memory import reuse_freed_memory


@cache
def tune_worker_memory() -> None:
    """Prepares the process of a worker before its first task. Later calls do nothing.

    - Memory: the process reuses most of the memory that it frees.
    - Garbage collection skips the objects that exist at this time, mainly modules. `pyspark.daemon` calls gc.collect()
      after each task. Otherwise each call takes 60 ms, 50 ms of it for pyspark, pandas and pyarrow, and copies every
      page that workers share with their daemon.
    """
    reuse_freed_memory()
    gc.freeze()
