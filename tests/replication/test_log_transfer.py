"""The data that a master sends to a slave, without sockets."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest
from replication_support import opened

from gantrymq.replication.autoswitch_frames import MAX_TRANSFER, Hello, encode_hello, encode_leaving
from gantrymq.replication.epochs import Epoch, Epochs
from gantrymq.replication.frames import MAX_BODY, encode_opening
from gantrymq.replication.log_transfer import AutoSwitchLogTransfer, PlainLogTransfer


async def test_slaves_of_ours_get_more_in_a_frame(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        java, ours = PlainLogTransfer(store), PlainLogTransfer(store)
        java.feed(pack(">q", 0))
        ours.feed(encode_opening(0))
        for size, most in ((1, 8), (32 * 1024, 256 * 1024), (MAX_BODY - 1, MAX_BODY)):
            assert java.most(0, size) == size
            assert ours.most(0, size) == most


@pytest.mark.parametrize(("is_ours", "times"), [(False, 1), (True, 8)])
async def test_slaves_of_ours_get_more_in_a_frame_with_a_controller(tmp_path: Path, is_ours: bool, times: int) -> None:
    async with opened(tmp_path) as store:
        log_transfer = AutoSwitchLogTransfer(store, Epochs([Epoch(1, 0), Epoch(2, 300_000)]), lambda: 0)
        log_transfer.feed(encode_hello(Hello(2, sync_from_last_file=True, is_ours=is_ours)))
        assert log_transfer.most(300_000, 32 * 1024) == times * 32 * 1024
        # A configured size can be too large, because a frame has a longer header here.
        assert log_transfer.most(300_000, MAX_BODY) == MAX_TRANSFER < MAX_BODY
        # A frame never extends beyond the end of an epoch.
        assert log_transfer.most(299_000, 32 * 1024) == 1000


async def test_a_newer_epoch_is_published_once_for_a_read(tmp_path: Path) -> None:
    published: list[int] = []
    async with opened(tmp_path) as store:
        log_transfer = AutoSwitchLogTransfer(store, Epochs([Epoch(1, 0)]), lambda: 0, published.append)
        log_transfer.feed(encode_hello(Hello(2, is_ours=True)))
        assert published == []
        log_transfer.feed(encode_leaving(7) + encode_leaving(9) + encode_leaving(8))
        assert published == [9]
        assert log_transfer.newer_epoch == 9
