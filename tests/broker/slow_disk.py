"""Disks that block until the test lets them continue."""

from __future__ import annotations

import threading

import pytest

from gantrymq.store.mapped_file import MappedFile
from gantrymq.system import files


class SlowDisk:
    """Replaces fdatasync: it blocks while `works` is not set.

    Otherwise it returns at once. A real fdatasync can take a second on a busy machine.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.works = threading.Event()
        self.works.set()
        patch.setattr(files, "fdatasync", self._sync)

    def _sync(self, fd: int) -> None:
        self.works.wait(10)


class SlowMaking:
    """Blocks the creation of store files while `works` is not set, and records the threads that create them.

    Index files are created by different code.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.works = threading.Event()
        self.works.set()
        self.threads: set[str] = set()
        make, reserve = MappedFile.make, MappedFile.reserve
        patch.setattr(MappedFile, "make", lambda file, *place: (self._wait(), make(file, *place))[1])
        patch.setattr(MappedFile, "reserve", lambda file, *place: (self._wait(), reserve(file, *place))[1])

    def _wait(self) -> None:
        self.threads.add(threading.current_thread().name)
        if threading.current_thread() is not threading.main_thread():
            assert self.works.wait(20)
