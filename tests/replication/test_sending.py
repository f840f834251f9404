"""What a master says to a slave, without sockets."""

from __future__ import annotations

from pathlib import Path
from struct import pack

from replication_support import opened

from gantrymq.replication.frames import MAX_BODY, encode_opening
from gantrymq.replication.sending import PlainSending


async def test_slaves_of_ours_get_more_in_a_frame(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        java, ours = PlainSending(store), PlainSending(store)
        java.feed(pack(">q", 0))
        ours.feed(encode_opening(0))
        for size, most in ((1, 8), (32 * 1024, 256 * 1024), (MAX_BODY - 1, MAX_BODY)):
            assert java.most(0, size) == size
            assert ours.most(0, size) == most
