"""Tests of `Collector`, which freezes objects after the full collections of Python's garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from gantrymq.background.collector import Collector

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python collects in small steps by itself")

_PAUSES = """
import gc, sys, time
from gantrymq.background.collector import Collector

pauses, began = [], 0.0

def measure(phase, info):
    global began
    if phase == "start":
        began = time.thread_time()
    else:
        pauses.append(time.thread_time() - began)

gc.callbacks.append(measure)
if sys.argv[1] == "collector":
    Collector(added_objects=10_000_000).start()
kept = [[number] for number in range(1_500_000)]
print(max(pauses))
"""


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[Collector]:
    # Freezes pytest's own objects, so that the collector does not count them.
    gc.collect()
    gc.freeze()
    already = gc.get_freeze_count()
    collector = Collector(added_objects=already + 10_000)
    collector.start()
    yield collector
    collector.stop()
    assert gc.get_freeze_count() == 0


def longest_pause(how: str) -> float:
    output = subprocess.run(
        [sys.executable, "-c", _PAUSES, how], capture_output=True, text=True, check=True, timeout=60
    )
    return float(output.stdout)


def test_no_pause_is_long_however_many_objects_there_are() -> None:
    assert longest_pause("collector") < longest_pause("none") / 3


def test_those_that_live_are_frozen_and_freed_with_their_last_reference(collector: Collector) -> None:
    kept = [[number] for number in range(5_000)]
    before = gc.get_freeze_count()
    gc.collect()
    assert gc.get_freeze_count() >= before + 5_000
    kept.clear()
    assert gc.get_freeze_count() < before + 1_000


def test_a_cycle_that_was_frozen_is_found_when_there_are_many(collector: Collector) -> None:
    cycle = Cycle()
    found = weakref.ref(cycle)
    gc.collect()
    del cycle
    gc.collect()
    assert found() is not None
    kept: list[list[int]] = []
    # A complete collection runs when more than 10,000 further objects (`room`) are frozen.
    while found() is not None:
        kept += [[number] for number in range(5_000)]
        gc.collect()
        assert len(kept) < 50_000
