"""A simulated disk that loses power.

Only synced data is certain to survive. All other data survives or is lost page by page, or sector by sector.

`Disk` records the content of each file when it is synced, and the names in each directory when that is synced. At the
cut, each page changed after that is the old one, the new one, or a mixture.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from gantrymq.system import files

PAGE, SECTOR = 4096, 512


class Disk:
    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = root
        self._rng = rng
        self._content: dict[Path, bytes] = {}
        self._names: dict[Path, set[str]] = {}

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(files, "fdatasync", self.sync_content)
        patch.setattr(files, "sync_entries", self.sync_entries)

    def sync_content(self, fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        self._content[path] = path.read_bytes()

    def sync_entries(self, fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        self._names[path] = {entry.name for entry in path.iterdir()}

    def cut(self) -> None:
        """Replaces the files by what can be left of them after a power cut."""
        live = {path: path.read_bytes() for path in self.root.rglob("*") if path.is_file()}
        for path in live.keys() | self._content.keys():
            if path.name in ("lock", "abort", "checkpoint"):
                continue  # The checkpoint fits into one sector and is synced with each change.
            named = path.name in self._names.get(path.parent, ())
            synced = self._content.get(path, b"")
            if (path in live) != named and self._rng.random() < 0.5:
                # The file was created or deleted, and its directory has not been synced since.
                if path in live:
                    path.unlink()
                    continue
            elif path not in live:
                continue
            content = live.get(path, synced)
            if len(content) != len(synced) and self._rng.random() < 0.5:
                content = content[: len(synced)].ljust(len(synced), b"\0")
            left = b"".join(self._page(synced, content, at) for at in range(0, len(content), PAGE))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(left)
        self._content = {path: path.read_bytes() for path in self.root.rglob("*") if path.is_file()}
        self._names = {path: {entry.name for entry in path.iterdir()} for path in self.root.rglob("*") if path.is_dir()}

    def _page(self, old: bytes, new: bytes, at: int) -> bytes:
        end = min(at + PAGE, len(new))
        before, after = old[at:end].ljust(end - at, b"\0"), new[at:end]
        fate = self._rng.choice(("old", "new", "torn"))
        if before == after or fate == "new":
            return after
        if fate == "old":
            return before
        return b"".join(
            self._rng.choice((before, after))[start : start + SECTOR] for start in range(0, end - at, SECTOR)
        )
