"""Requests of all kinds from many connections at once, in random order, so that the effects of some meet others."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest
from every_request import Known, Request, hostile_bodies, hostile_fields
from hostile_support import Peer, UnderAttack, send_header
from test_every_request import known_to_broker
from wait_until import wait_until

from gantrymq.protocol.bodies.topic_config import TopicConfigTable
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader
from gantrymq.testing.processes import ServerProcess

_CONNECTIONS = 20
_REQUESTS = 400
#: These requests could remove the innocent client's topics and permissions.
_LEFT_OUT = {RequestCode.UPDATE_BROKER_CONFIG}
_NAMES = ("orders", "other", "%RETRY%attackers", "%DLQ%attackers")
#: Largest number of queues of these topics.
_QUEUES = 16
_PROPERTIES = (
    "",
    "DELAY\x011\x02",
    "TIMER_DELAY_MS\x01700\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01attackers\x02",
    "KEYS\x01k\x02",
)
_DELAYS = {"messageDelayLevel": "1s 2s", "recallMessageEnable": "true", "transactionCheckInterval": "500"}
#: The test sends half messages with a birth time that is too old for a check.
_GIVEN_UP = ["got no answer to its last check"]


@pytest.mark.parametrize("seed", [1, 2])
async def test_all_at_once(under_attack: UnderAttack, tmp_path: Path, seed: int) -> None:
    known = [one for one in await known_to_broker(tmp_path / "learning") if one.code not in _LEFT_OUT]
    async with under_attack(properties=_DELAYS, log_may_have=_GIVEN_UP) as broker:
        chances = [random.Random(f"{seed} {number}") for number in range(_CONNECTIONS)]
        await asyncio.gather(*(run_riot(broker.process, known, chance) for chance in chances))
        await fill_queues(await broker.peer())


async def test_a_kill_in_the_middle_of_it(under_attack: UnderAttack, tmp_path: Path) -> None:
    """The restarted broker finds a usable store."""
    known = [one for one in await known_to_broker(tmp_path / "learning") if one.code not in _LEFT_OUT]
    async with under_attack(properties=_DELAYS, log_may_have=_GIVEN_UP) as broker:
        riots = [
            asyncio.create_task(run_riot(broker.process, known, random.Random(f"kill {n}")))
            for n in range(_CONNECTIONS)
        ]
        await asyncio.wait(riots, return_when=asyncio.FIRST_COMPLETED)
        await broker.probe_no_more()
        os.kill(broker.pid, signal.SIGKILL)
        wait_until(lambda: not broker.process.is_running)
        await asyncio.gather(*riots)
        await broker.start_again(fill_queues)


async def fill_queues(peer: Peer) -> None:
    """Sends a message to each queue.

    A deleted and recreated topic would otherwise look as if its queue entries were lost.
    """
    for topic in _NAMES:
        header = CreateTopicRequestHeader(
            topic=topic, default_topic="TBW102", read_queue_nums=_QUEUES, write_queue_nums=_QUEUES, perm=6
        )
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == ResponseCode.SUCCESS
    table = decode_json((await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body, TopicConfigTable)
    for topic, config in table.topic_config_table.items():
        # Includes the topics of groups, because popped messages of a deleted topic are redelivered there.
        if topic in _NAMES or topic.startswith(("%RETRY%", "%DLQ%")):
            for queue_id in range(config.write_queue_nums):
                answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_header(topic, queue_id=queue_id), b"x")
                assert answer.code == ResponseCode.SUCCESS, f"{topic}: {answer.remark}"


async def run_riot(server: ServerProcess, known: list[Known], chance: random.Random) -> None:
    """Sends valid, hostile and incomplete requests."""
    host, port = server.address.rsplit(":", 1)
    left = _REQUESTS
    while left:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return
        drain = asyncio.create_task(_read_all(reader))
        try:
            for _ in range(min(left, chance.randrange(1, 100))):
                left -= 1
                request = _request(chance.choice(known), chance)
                writer.write(request.frame(left, binary=request.code < 1 << 15 and chance.random() < 0.5))
                if chance.random() < 0.2:
                    await writer.drain()
            await asyncio.sleep(0)
        except ConnectionError:
            pass
        finally:
            if chance.random() < 0.3:
                writer.transport.abort()
            writer.close()
            drain.cancel()


def _request(known: Known, chance: random.Random) -> Request:
    if chance.random() < 0.2:
        return chance.choice(list(hostile_fields(known)))
    if chance.random() < 0.1:
        return chance.choice(list(hostile_bodies(known))[:3])
    fields = dict(known.fields)
    for name in ("topic", "b", "originTopic"):
        if name in fields:
            fields[name] = chance.choice(_NAMES)
    for name in ("queueId", "e"):
        if name in fields:
            fields[name] = str(chance.randrange(-1, 3))
    for name in ("offset", "queueOffset", "commitOffset", "tranStateTableOffset", "commitLogOffset"):
        if name in fields:
            fields[name] = str(chance.choice((0, 1, 5, 100, 300, 10**6)))
    for name in ("i", "properties"):
        if name in fields:
            fields[name] = chance.choice(_PROPERTIES)
    return Request(known.code, "riot", fields, known.body or b"x" * chance.randrange(200))


async def _read_all(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(1 << 20):
            pass
    except ConnectionError:
        return
