"""Delayed and timer messages of three brokers with a controller.

No change of master repeats or loses a message.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from broker_support import Peer
from controlled_support import ControlledBrokers
from test_controlled import bodies, elect
from wait_until import until

from gantrymq.protocol.codes import ResponseCode
from gantrymq.system.clock import now_ms


async def send_delayed(peer: Peer, name: str, count: int) -> list[bytes]:
    """Sends `count` messages, half of them with a delay level and half with a delivery time.

    They are due in 1 to 3 s.
    """
    sent = [f"{name} {number}".encode() for number in range(count)]
    for number, body in enumerate(sent):
        due_ms = now_ms() + 1000 + 2000 * number // count
        properties = {"DELAY": "1"} if number % 2 else {"TIMER_DELIVER_MS": str(due_ms)}
        assert (await peer.send("orders", body, properties=properties)).code == ResponseCode.SUCCESS
        await asyncio.sleep(0)
    return sent


@pytest.mark.slow
@pytest.mark.parametrize("how", ["elected", "stopped"])
async def test_planned_changes_of_master_repeat_nothing(tmp_path: Path, how: str) -> None:
    async with ControlledBrokers(tmp_path) as replicas:
        await replicas.all_in_sync()
        sent: list[bytes] = []
        for change in range(3):
            master = await replicas.master()
            sent += await send_delayed(await replicas.peer(master), f"change {change}", 60)
            # The master changes while messages are being delivered.
            goal = len(sent) - 40
            await until(lambda goal=goal, master=master: len(bodies(replicas.brokers[master])) >= goal)
            if how == "elected":
                await elect(replicas, 1 + master % 3)
                await until(lambda master=master: replicas.masters() not in ([], [master]))
            else:
                await replicas.stop(master)
                await replicas.master(other_than=master)
                await replicas.start(master)
            await replicas.all_in_sync()
        master = await replicas.master()
        await until(lambda: set(bodies(replicas.brokers[master])) == set(sent))
        # By this time, all messages that a master could deliver twice are due.
        await elect(replicas, 1 + master % 3)
        await until(lambda: replicas.masters() not in ([], [master]))
        await replicas.all_in_sync()
        master = await replicas.master()
        last = await send_delayed(await replicas.peer(master), "last", 4)
        await until(lambda: set(last) <= set(bodies(replicas.brokers[master])))
        assert Counter(bodies(replicas.brokers[master])) == Counter(sent + last)
