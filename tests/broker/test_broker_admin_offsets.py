"""Admin requests that show, set and clone the offsets of groups."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
from administration import beat, commit, create_group, queue, send
from broker_support import Peer, config
from step_timer import loop_steps
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import MAX_QUEUE_NUMS
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData
from gantrymq.protocol.bodies.offset import CorrectionOffsetBody, ResetOffsetBody
from gantrymq.protocol.bodies.stats import ConsumeStats, ConsumeStatsList
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.offset import (
    CloneGroupOffsetRequestHeader,
    QueryCorrectionOffsetHeader,
    ResetOffsetRequestHeader,
)
from gantrymq.protocol.headers.stats import GetConsumeStatsInBrokerHeader, GetConsumeStatsRequestHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection

LATER = 2**62


def reset(**changed: object) -> ResetOffsetRequestHeader:
    header = ResetOffsetRequestHeader(topic="orders", group="consumers", timestamp=0, offset=-1, is_force=True)
    return msgspec.structs.replace(header, **changed)


async def test_all_offsets(peer: Peer) -> None:
    await send(peer, 1)
    await commit(peer, 1)
    response = await peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    table = decode_json(response.body, dict[str, dict[str, object]])
    assert table["offsetTable"] == {"orders@consumers": {"0": 1}}
    assert "counter" in table["dataVersion"]


async def test_delay_offsets(tmp_path: Path, remoting: RemotingClient) -> None:
    settings = config(tmp_path / "store", message_delay_level="1s", flush_consumer_offset_interval=50)
    broker = Broker(settings)
    await broker.start()
    peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    assert decode_json((await peer.ask(RequestCode.GET_ALL_DELAY_OFFSET)).body, dict[str, object])["offsetTable"] == {}
    await peer.send("orders", b"late", properties={"DELAY": "1"})

    async def offsets() -> object:
        response = await peer.ask(RequestCode.GET_ALL_DELAY_OFFSET)
        return decode_json(response.body, dict[str, object])["offsetTable"]

    assert await until(offsets) == {"1": 1}
    await broker.stop()


async def test_consume_stats(peer: Peer) -> None:
    await send(peer, 3)
    await commit(peer, 2)

    async def stats(**changed: object) -> ConsumeStats:
        header = msgspec.structs.replace(GetConsumeStatsRequestHeader(consumer_group="consumers"), **changed)
        response = await peer.ask(RequestCode.GET_CONSUME_STATS, header)
        assert response.code == ResponseCode.SUCCESS
        return ConsumeStats.decode(response.body)

    found = await stats()
    assert set(found.offset_table) == {queue("orders", i) for i in range(4)}
    first = found.offset_table[queue("orders", 0)]
    assert (first.broker_offset, first.consumer_offset, first.pull_offset) == (3, 2, 2)
    assert abs(first.last_timestamp - time.time() * 1000) < 60_000
    assert (found.total_diff, found.inflight_total_diff) == (1, 0)
    assert (await stats(topic="orders")).total_diff == 1
    assert (await stats(topic_list="orders;none;orders")).total_diff == 1
    assert (await stats(topic="none")).offset_table == {}
    assert (await stats(consumer_group="strangers")).offset_table == {}
    # A message that was pulled and is not consumed yet is in flight.
    assert (await peer.pull("orders", 2)).code == ResponseCode.SUCCESS
    assert [o.pull_offset for o in (await stats()).offset_table.values()] == [3, 0, 0, 0]
    assert (await stats()).inflight_total_diff == 1
    # An online group has no lag in a topic after it unsubscribed.
    await beat(peer, "one", topic="others")
    assert (await stats()).offset_table == {}
    assert (await stats(topic_list="orders")).total_diff == 1


async def test_a_pull_at_the_end_shows_the_messages_in_flight(peer: Peer) -> None:
    """After a restart of the broker, a consumer waits at the end of a queue whose messages it has not consumed yet."""
    await send(peer, 3)
    await commit(peer, 1)
    assert (await peer.pull("orders", 3)).code == ResponseCode.PULL_NOT_FOUND
    response = await peer.ask(
        RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group="consumers", topic="orders")
    )
    assert ConsumeStats.decode(response.body).inflight_total_diff == 2


async def test_offset_beyond_the_end_breaks_no_stats(peer: Peer) -> None:
    await send(peer, 1)
    await commit(peer, 2**63 - 1)
    header = GetConsumeStatsRequestHeader(consumer_group="consumers")
    stats = ConsumeStats.decode((await peer.ask(RequestCode.GET_CONSUME_STATS, header)).body)
    first = stats.offset_table[queue("orders", 0)]
    assert (first.consumer_offset, first.last_timestamp) == (2**63 - 1, 0)
    assert (first.lag, first.inflight, stats.total_diff) == (0, 0, 0)
    everything = await peer.ask(RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader())
    assert b'"totalDiff":0,' in everything.body


async def test_consume_stats_of_all_groups(peer: Peer, broker: Broker) -> None:
    await send(peer, 3)
    for group in ("one", "two"):
        broker.groups.get(group)
        await commit(peer, 1, group=group)

    async def stats(is_order: bool) -> ConsumeStatsList:
        header = GetConsumeStatsInBrokerHeader(is_order=is_order)
        return ConsumeStatsList.decode((await peer.ask(RequestCode.GET_BROKER_CONSUME_STATS, header)).body)

    found = await stats(False)
    assert found.broker_addr == broker.address
    assert {group: [table.total_diff for table in tables] for group, tables in found.by_group.items()} == {
        "one": [2],
        "two": [2],
    }
    assert (await stats(True)).by_group == {"one": [], "two": []}


async def test_reset_of_a_group_that_is_offline(peer: Peer, broker: Broker) -> None:
    await send(peer, 3)
    await commit(peer, 2)

    async def ask(**changed: object) -> dict[int, int]:
        response = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(**changed))
        assert response.code == ResponseCode.SUCCESS
        table = ResetOffsetBody.decode(response.body).offset_table
        assert {q: broker.offsets.query("consumers", "orders", q.queue_id) for q in table} == table
        return {q.queue_id: offset for q, offset in table.items()}

    assert await ask() == {0: 0, 1: 0, 2: 0, 3: 0}
    assert await ask(timestamp=-1) == {0: 3, 1: 0, 2: 0, 3: 0}
    assert await ask(queue_id=0, offset=1) == {0: 1}
    # Without `force`, a reset by timestamp never moves an offset forward.
    assert await ask(timestamp=LATER, is_force=False) == {0: 1, 1: 0, 2: 0, 3: 0}
    assert await ask(timestamp=LATER) == {0: 3, 1: 0, 2: 0, 3: 0}
    assert await ask(is_force=False) == {0: 0, 1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "strangers"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": 2**31 - 1}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": 0, "offset": 4}, ResponseCode.SYSTEM_ERROR),
        ({"queue_id": 0, "offset": -2}, ResponseCode.SYSTEM_ERROR),
        ({"queue_id": 0, "offset": 2**63 - 1}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_impossible_reset_changes_nothing(
    peer: Peer, broker: Broker, changed: dict[str, object], code: ResponseCode
) -> None:
    await send(peer, 3)
    await commit(peer, 2)
    response = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(**changed))
    assert response.code == code
    assert response.remark
    assert broker.offsets.queues("consumers", "orders") == {0: 2}


async def test_clients_are_told_of_a_reset(peer: Peer, broker: Broker) -> None:
    told: asyncio.Queue[RemotingCommand] = asyncio.Queue()

    def order(connection: Connection, request: RemotingCommand) -> None:
        told.put_nowait(request)

    await send(peer, 3)
    listening = RemotingClient({RequestCode.RESET_CONSUMER_CLIENT_OFFSET: order})
    connection = await listening.connection(f"127.0.0.1:{broker.port}")
    for language in (LanguageCode.JAVA, LanguageCode.CPP):
        data = HeartbeatData("one", [], [ConsumerData("consumers")])
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_json(data))
        request.language = language
        assert (await connection.invoke(request)).code == 0
        assert (await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(timestamp=-1))).code == 0
        async with asyncio.timeout(5):
            pushed = await told.get()
        header = pushed.read_header(ResetOffsetRequestHeader)
        assert (header.topic, header.group, header.timestamp) == ("orders", "consumers", -1)
        assert pushed.is_oneway
        if language == LanguageCode.JAVA:
            assert ResetOffsetBody.decode(pushed.body).offset_table[queue("orders", 0)] == 3
        else:
            rows = decode_json(pushed.body, dict[str, list[dict[str, object]]])["offsetTable"]
            assert rows[0] == {"topic": "orders", "brokerName": "broker-a", "queueId": 0, "offset": 3}
    await listening.close()


async def test_offsets_are_cloned(peer: Peer, broker: Broker) -> None:
    await send(peer, 1)
    await send(peer, 1, topic="others")
    await commit(peer, 1)
    await commit(peer, 1, topic="others")

    async def clone(destination: str, topic: str | None = None, source: str = "consumers") -> int:
        header = CloneGroupOffsetRequestHeader(src_group=source, dest_group=destination, topic=topic)
        return (await peer.ask(RequestCode.CLONE_GROUP_OFFSET, header)).code

    assert await clone("one", "orders") == 0
    assert broker.offsets.topics_of("one") == {"orders"}
    assert await clone("all") == 0
    assert broker.offsets.topics_of("all") == {"orders", "others"}
    await commit(peer, 0, group="all")
    assert broker.offsets.query("consumers", "orders", 0) == 1
    assert await clone("nothing", "none") == 0
    assert await clone("nothing", source="strangers") == 0
    assert broker.offsets.topics_of("nothing") == set()
    assert await clone("b@d") == ResponseCode.INVALID_PARAMETER
    # From an online group, only the topics that it still subscribes to are cloned.
    await beat(peer, "one", topic="others")
    assert await clone("late") == 0
    assert broker.offsets.topics_of("late") == {"others"}


async def test_correction_offsets(peer: Peer, broker: Broker) -> None:
    await send(peer, 9)
    for group, offset in (("slow", 3), ("fast", 8), ("ignored", 1)):
        await commit(peer, offset, group=group)

    async def ask(compare: str, topic: str = "orders") -> dict[int, int]:
        header = QueryCorrectionOffsetHeader(topic=topic, compare_group=compare, filter_groups="ignored,unknown")
        response = await peer.ask(RequestCode.QUERY_CORRECTION_OFFSET, header)
        return decode_json(response.body, CorrectionOffsetBody).correction_offsets

    assert await ask("fast") == {0: 3}
    assert await ask("strangers") == {0: 3}
    assert await ask("ignored") == {0: 2**63 - 1}
    assert await ask("fast", "none") == {}
    assert broker.offsets.query("ignored", "orders", 0) == 1


@pytest.mark.parametrize("code", [RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.CLONE_GROUP_OFFSET])
async def test_65536_queues_are_reset_in_short_steps(peer: Peer, broker: Broker, code: RequestCode) -> None:
    broker.topics.put(TopicConfig("orders", MAX_QUEUE_NUMS, MAX_QUEUE_NUMS))
    await create_group(peer)
    if code == RequestCode.CLONE_GROUP_OFFSET:
        for queue_id in range(MAX_QUEUE_NUMS):
            broker.offsets.commit("source", "orders", queue_id, 0)
    async with loop_steps() as timer:
        if code == RequestCode.CLONE_GROUP_OFFSET:
            header = CloneGroupOffsetRequestHeader(
                src_group="source", dest_group="consumers", topic="orders", offline=True
            )
            response = await peer.ask(code, header)
        else:
            response = await peer.ask(code, reset())
            assert len(ResetOffsetBody.decode(response.body).offset_table) == MAX_QUEUE_NUMS
    assert response.code == ResponseCode.SUCCESS, response.remark
    assert broker.offsets.queues("consumers", "orders") == dict.fromkeys(range(MAX_QUEUE_NUMS), 0)
    # In one step, the reset takes 1.5 s.
    assert timer.longest < 0.25
