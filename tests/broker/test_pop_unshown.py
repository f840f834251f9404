"""A pop that waits for messages above the confirm offset."""

from __future__ import annotations

import asyncio
from pathlib import Path

from controlled_support import ControlledBrokers
from paused_slaves import pause_slave, resume_slave
from pop_support import PopPeer, popped
from wait_until import until

from gantrymq.protocol.codes import ResponseCode

#: Event-loop iterations to observe. A pop that is retried without a pause would run in each of them.
TURNS = 300


async def test_it_is_not_tried_again_and_again(tmp_path: Path) -> None:
    """While a slave lacks the message, the pop must not be retried without a pause."""
    async with ControlledBrokers(tmp_path, 2) as replicas:
        await replicas.all_in_sync()
        master = replicas.brokers[1]
        peer = PopPeer(await replicas.remoting.connection(master.address))
        assert (await peer.send("orders", b"first")).code == ResponseCode.SUCCESS
        assert len(await peer.messages("orders", queue_id=0)) == 1
        pause_slave(replicas.brokers[2])
        sending = asyncio.ensure_future(peer.send("orders", b"second"))
        await until(lambda: master.store.queue("orders", 0).max_offset == 2)
        waiting = asyncio.ensure_future(peer.pop("orders", queue_id=0, poll_ms=20_000))
        await until(lambda: len(master.pops.waiting) == 1)
        answering = next(report for report in master.jobs if report.name == "answer waiting pops")
        runs = answering.runs
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert answering.runs - runs < 5
        resume_slave(replicas.brokers[2])
        assert (await sending).code == ResponseCode.SUCCESS
        assert [message.body for message, _ in popped(await waiting)] == [b"second"]
