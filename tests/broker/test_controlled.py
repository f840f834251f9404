"""Three brokers of one name with a controller: elections, what is promised, and what becomes of a former master."""

from __future__ import annotations

from pathlib import Path

from controlled_support import Controlled

from gantrymq.protocol.codes import ResponseCode


async def test_one_is_elected_and_the_others_follow(tmp_path: Path) -> None:
    async with Controlled(tmp_path) as replicas:
        await replicas.all_in_sync()
        assert await replicas.master() == 1
        peer = await replicas.peer(1)
        for number in range(20):
            assert (await peer.send("orders", b"%d" % number)).code == ResponseCode.SUCCESS
        ends = {broker.store.max_physical_offset for broker in replicas.brokers.values()}
        assert len(ends) == 1


async def test_another_is_elected_when_the_master_stops(tmp_path: Path) -> None:
    async with Controlled(tmp_path) as replicas:
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        for number in range(20):
            assert (await peer.send("orders", b"%d" % number)).code == ResponseCode.SUCCESS
        await replicas.stop(1)
        master = await replicas.master()
        await replicas.all_in_sync()
        peer = await replicas.peer(master)
        assert (await peer.send("orders", b"after")).code == ResponseCode.SUCCESS
        await replicas.start(1)
        await replicas.all_in_sync()
        await replicas.caught_up()
        assert await replicas.master() == master
