"""Power cuts: only what was synced is surely on the disk, anything else page by page, or sector by sector.

`Disk` remembers what each file had when it was synced, and which names when its directory was. At the cut a page that
has changed since is the old one, the new one, or torn.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from store_support import finish, open_store, put, read_all, stop_flushers

from gantrymq.store.message_store import MessageStore
from gantrymq.store.verify import verify
from gantrymq.system import files

PAGE, SECTOR = 4096, 512
CUTS = 3


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
        """Replaces the files by what may be left of them."""
        live = {path: path.read_bytes() for path in self.root.rglob("*") if path.is_file()}
        for path in live.keys() | self._content.keys():
            if path.name in ("lock", "abort", "checkpoint"):
                continue  # The checkpoint is synced with each change, and one sector.
            named = path.name in self._names.get(path.parent, ())
            synced = self._content.get(path, b"")
            if (path in live) != named and self._rng.random() < 0.5:
                # Made, or deleted, and the directory not synced since.
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


@pytest.mark.parametrize("seed", [*range(20), None])
def test_nothing_acknowledged_is_lost(tmp_path, monkeypatch, seed):
    if seed is None:
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
    rng = random.Random(seed)
    root = tmp_path / "store"
    disk = Disk(root, rng)
    disk.patch(monkeypatch)
    acknowledged: dict[tuple[str, int], dict[int, bytes]] = {}
    for turn in range(CUTS):
        store = open_store(
            root,
            flush_disk_type="SYNC_FLUSH",
            flush_interval_commit_log_ms=600_000,
            flush_interval_consume_queue_ms=600_000,
        )
        check(store, acknowledged)
        write(store, rng, acknowledged, turn)
        stop_flushers(store)
        disk.cut()
        store._open.close()
    store = open_store(root)
    check(store, acknowledged)
    config = store.config
    store.close()
    assert verify(config).problems == []


def write(
    store: MessageStore, rng: random.Random, acknowledged: dict[tuple[str, int], dict[int, bytes]], turn: int
) -> None:
    assert store._flushers is not None
    waiting: list[tuple[tuple[str, int], int, bytes]] = []
    for n in range(rng.randrange(1, 400)):
        queue = store.queue(rng.choice("AB"), rng.randrange(2))
        key = b"%d-%d" % (turn, n)
        body = key + b" " + rng.randbytes(rng.choice((0, 20, 500, 5000)))
        result = put(store, queue, body, properties=b"UNIQ_KEY\x01%s\x02" % key)
        waiting.append(((queue.topic, queue.queue_id), result.queue_offset, body))
        if rng.random() < 0.05:
            done = threading.Event()
            store.when_flushed(result.physical_offset, lambda error, done=done: error or done.set())
            assert done.wait(10)
            for key_, offset, body in waiting:
                acknowledged.setdefault(key_, {})[offset] = body
            waiting.clear()
        if rng.random() < 0.03:
            store._flushers[1].flush(thorough=rng.random() < 0.7)
        if rng.random() < 0.1:
            store.keys.build_index(rng.choice((0, 1)))


def check(store: MessageStore, acknowledged: dict[tuple[str, int], dict[int, bytes]]) -> None:
    for (topic, queue_id), messages in acknowledged.items():
        records = read_all(store, store.queue(topic, queue_id))
        assert [record.queue_offset for record in records] == list(range(len(records)))
        for offset, body in messages.items():
            assert records[offset].body == body
    while not store.keys.build_index(1):
        pass
    for (topic, _), messages in acknowledged.items():
        for body in list(messages.values())[::7]:
            key = body.split(b" ", 1)[0].decode()
            found = [store.read_record(at).body for at in finish(store.keys.find_by_unique_key(topic, key))]
            assert body in found
