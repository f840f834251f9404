"""The epochs of a log, on a disk that takes none for a while."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from replication_support import opened, put_many
from waiting import until

from gantrymq.errors import ConfigError, StoreError
from gantrymq.replication import epoch_file
from gantrymq.replication.autoswitch_frames import Hello
from gantrymq.replication.autoswitch_link import AutoSwitchLink
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.epoch_file import EpochFile
from gantrymq.replication.epochs import Epoch
from gantrymq.replication.master import HaMaster
from gantrymq.replication.sending import AutoSwitchSending
from gantrymq.replication.slave import HaSlave


class Full:
    """A disk without room while `fails` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = True
        self.refused = 0
        self._replace = epoch_file.replace_file
        monkeypatch.setattr(epoch_file, "replace_file", self)

    def __call__(self, path: Path, data: bytes) -> None:
        if self.fails:
            self.refused += 1
            raise ConfigError(f"can't write {path}: no space left on device")
        self._replace(path, data)


def kept(root: Path) -> tuple[Epoch, ...]:
    """What a broker that starts there reads."""
    file = EpochFile(root)
    file.load(1 << 40)
    return file.epochs.all()


def test_what_could_not_be_kept_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, disk = EpochFile(tmp_path), Full(monkeypatch)
    with pytest.raises(StoreError):
        file.begin(1, 0)
    disk.fails = False
    file.begin(1, 0)
    assert kept(tmp_path) == (Epoch(1, 0),)


async def test_a_slave_has_no_bytes_of_an_epoch_that_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next connection found it in memory, and bytes of it came into the log of which its file knew nothing."""
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b") as second:
        epochs = EpochFile(tmp_path / "a")
        epochs.begin(1, 0)
        put_many(first, 50, Random(1))
        master = HaMaster(
            first,
            ReplicationConfig(),
            host="127.0.0.1",
            sending=lambda: AutoSwitchSending(first, epochs.epochs, lambda: first.max_physical_offset),
        )
        await master.start()
        own, disk = EpochFile(tmp_path / "b"), Full(monkeypatch)
        second.set_slave(True)
        slave = HaSlave(
            second, ReplicationConfig(), broker_id=2, new_link=lambda: AutoSwitchLink(second, Hello(2, False), own)
        )
        slave.set_master(f"127.0.0.1:{master.port}")
        disk.fails = False
        await slave.start()
        end = first.max_physical_offset
        await until(lambda: second.max_physical_offset == end)
        epochs.begin(2, end)
        disk.fails = True
        put_many(first, 50, Random(2))
        await until(lambda: disk.refused >= 2)
        assert second.max_physical_offset == end
        disk.fails = False
        await until(lambda: second.max_physical_offset == first.max_physical_offset)
        assert kept(tmp_path / "b") == (Epoch(1, 0), Epoch(2, end))
        await slave.stop()
        await master.stop()
