"""The epochs of a log, on a disk that is full for a while."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from replication_support import opened, put_many
from wait_until import until

from gantrymq.errors import ConfigError, StoreError
from gantrymq.remoting.listener import ListenOptions
from gantrymq.replication import epoch_file
from gantrymq.replication.autoswitch_frames import Hello
from gantrymq.replication.autoswitch_link import AutoSwitchLink
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.epoch_file import EpochFile
from gantrymq.replication.epochs import Epoch
from gantrymq.replication.log_transfer import AutoSwitchLogTransfer
from gantrymq.replication.master import HaMaster
from gantrymq.replication.slave import HaSlave


class Full:
    """A disk that is full while `fails` is set."""

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
    """Returns the epochs that a starting broker reads from the file."""
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
    """The slave must not store data of an epoch that is not in its file.

    Otherwise the next connection finds the epoch in memory and accepts its data.
    """
    async with opened(tmp_path / "a") as first, opened(tmp_path / "b") as second:
        epochs = EpochFile(tmp_path / "a")
        epochs.begin(1, 0)
        put_many(first, 50, Random(1))
        master = HaMaster(
            first,
            ReplicationConfig(),
            ListenOptions("127.0.0.1"),
            log_transfer=lambda: AutoSwitchLogTransfer(first, epochs.epochs, lambda: first.max_physical_offset),
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
