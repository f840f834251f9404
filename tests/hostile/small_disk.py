"""A disk of some MiB that fills up: a tmpfs in a mount namespace of its own, which needs no privileges."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import pytest


class SmallDisk:
    """A small disk.

    Its path is `directory` for servers started in `for_new_processes`, and `outside` for other processes.
    """

    def __init__(self, directory: Path, holder: subprocess.Popen[bytes], python: Path) -> None:
        self.directory = directory
        self.outside = Path(f"/proc/{holder.pid}/root{directory}")
        self._python = python

    @contextmanager
    def for_new_processes(self) -> Iterator[None]:
        """Lets Python processes that start in this context use the disk."""
        with mock.patch.object(sys, "executable", str(self._python)):
            yield

    def fill(self, leave: int = 0) -> None:
        """Fills the disk except for `leave` bytes."""
        ballast = self.outside / "ballast"
        ballast.touch()
        free = shutil.disk_usage(self.outside).free - leave
        with ballast.open("ab", buffering=0) as file, suppress(OSError):
            for _ in range(free >> 12):
                file.write(bytes(4096))

    def empty(self) -> None:
        """Frees the space that `fill` used."""
        (self.outside / "ballast").unlink()


@contextmanager
def small_disk(directory: Path, size: int) -> Iterator[SmallDisk]:
    """Creates a disk of `size` bytes at `directory`. Skips the test if user namespaces are not allowed."""
    directory.mkdir(parents=True)
    command = f"mount -t tmpfs -o size={size} none {directory} && echo mounted && cat"
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("a small disk needs unshare and nsenter")
    holder = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"mounted\n":
            pytest.skip(f"a small disk needs a user namespace: {holder.communicate()[1].decode(errors='replace')}")
        python = directory.parent / "python-on-small-disk"
        python.write_text(
            f'#!/bin/sh\nexec nsenter --user --mount --preserve-credentials -t {holder.pid} {sys.executable} "$@"\n'
        )
        python.chmod(0o755)
        yield SmallDisk(directory, holder, python)
    finally:
        holder.communicate()
