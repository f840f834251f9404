"""Searches by key, resets by time and lag, if the messages are in the tier only."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from administration import beat, commit
from broker_support import Peer
from constants import change_constant
from tier_support import BODY_BYTES, deleted, fill, peer_of, started, uploaded

from gantrymq.broker.metrics.consumer_lag import ConsumerLag
from gantrymq.protocol.bodies.stats import ConsumeStats
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.query import QueryMessageRequestHeader
from gantrymq.protocol.headers.stats import GetConsumeStatsRequestHeader
from gantrymq.protocol.record import decode_records
from gantrymq.remoting.client import RemotingClient
from gantrymq.tier.segment import INDEX, LOG

_FOREVER = 2**62


async def query(peer: Peer, key: str, unique: bool = False, **changed: object) -> RemotingCommand:
    header = QueryMessageRequestHeader(topic="orders", key=key, max_num=32, begin_timestamp=0, end_timestamp=_FOREVER)
    fields = {"_UNIQUE_KEY_QUERY": "true"} if unique else {}
    return await peer.ask(RequestCode.QUERY_MESSAGE, msgspec.structs.replace(header, **changed), fields=fields)


async def found(peer: Peer, key: str, unique: bool = False, **changed: object) -> list[int]:
    response = await query(peer, key, unique, **changed)
    assert response.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND), response.remark
    return [record.queue_offset for record in decode_records(response.body)]


async def send_with_keys(peer: Peer, count: int) -> None:
    for number in range(count):
        properties = {
            "UNIQ_KEY": f"unique{number}",
            # Both keys have the same hash.
            "KEYS": f"all third{number % 3} {'Aa' if number % 2 else 'BB'}",
            "TAGS": f"tag{number % 5}",
        }
        response = await peer.send("orders", b"x" * BODY_BYTES, properties=properties)
        assert response.code == ResponseCode.SUCCESS, response.remark


async def test_searches_by_key(tmp_path: Path, remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    # Several pieces for each segment.
    change_constant(monkeypatch, "reader._INDEX_PIECE_BYTES", 7 * 20)
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        await send_with_keys(peer, 100)
        queue = broker.store.queue("orders", 0)
        times = [broker.store.store_time(queue, offset) for offset in range(100)]
        asked: list[tuple[str, dict[str, object]]] = [
            ("all", {}),
            ("all", {"max_num": 64}),
            ("all", {"max_num": 1}),
            ("all", {"max_num": 0}),
            ("all", {"begin_timestamp": times[20], "end_timestamp": times[30]}),
            ("all", {"end_timestamp": times[0] - 1}),
            ("third1", {}),
            ("Aa", {"max_num": 5}),
            ("BB", {"max_num": 64}),
            ("tag3", {"index_type": "T"}),
            ("third1", {"index_type": "T"}),
            ("unique7", {}),
            ("unique7", {"unique": True}),
            ("all", {"unique": True}),
            ("unknown", {}),
            ("all", {"topic": "others"}),
        ]
        expected = [await found(peer, key, **options) for key, options in asked]  # type: ignore[arg-type]
        assert [len(offsets) for offsets in expected[:4]] == [32, 64, 1, 0]
        assert expected[7] == [91, 93, 95, 97, 99]
        await uploaded(broker)
        await deleted(broker, peer)
        assert queue.min_offset >= 90
        assert [await found(peer, key, **options) for key, options in asked] == expected  # type: ignore[arg-type]
        # The client's clock determines where a search by unique key begins.
        late = times[7] + 3_600_000
        assert await found(peer, "unique7", unique=True, begin_timestamp=late) == [7]
        assert await found(peer, "unique7", unique=True, begin_timestamp=late + times[-1] - times[0] + 1) == []


async def test_a_response_fits_into_a_frame(
    tmp_path: Path, remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        await send_with_keys(peer, 60)
        await uploaded(broker)
        await deleted(broker, peer)
        change_constant(monkeypatch, "messages._MAX_ANSWER_BYTES", 10 * BODY_BYTES)
        assert await found(peer, "all") == list(range(51, 60))


async def test_damaged_objects(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        await send_with_keys(peer, 60)
        queue = broker.store.queue("orders", 0)
        unit = queue.unit(5)
        assert unit is not None
        await uploaded(broker)
        await deleted(broker, peer)
        (first,) = (tmp_path / "tier/c/broker-a" / LOG).glob(f"{0:020d}-*")
        data = bytearray(first.read_bytes())
        data[unit[0] + 200] ^= 1
        first.write_bytes(data)
        assert await found(peer, "all", max_num=64) == [number for number in range(60) if number != 5]
        # An index that is too short, or has impossible entries.
        index = tmp_path / "tier/c/broker-a" / INDEX / first.name
        size = index.stat().st_size
        index.write_bytes(bytes(size - 1))
        assert (await query(peer, "unique3")).code == ResponseCode.SYSTEM_BUSY
        index.write_bytes(b"\xff" * size)
        assert await found(peer, "unique3") == []
        # What is found in the log does not depend on the tier.
        index.unlink()
        newest = await found(peer, "all", max_num=1)
        assert newest == [59]
        assert await found(peer, "unique59") == [59]
        assert (await query(peer, "unique3")).code == ResponseCode.SYSTEM_BUSY


async def test_a_search_that_takes_too_long(
    tmp_path: Path, remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        await send_with_keys(peer, 60)
        await uploaded(broker)
        await deleted(broker, peer)
        change_constant(monkeypatch, "tier._SEARCH_S", 0.0)
        response = await query(peer, "unique3")
        assert response.code == ResponseCode.SYSTEM_BUSY
        assert "choose a shorter time range" in (response.remark or "")


async def test_reset_by_time(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        await fill(peer, 100)
        queue = broker.store.queue("orders", 0)
        times = [broker.store.store_time(queue, offset) for offset in range(100)]
        broker.context.offsets.commit("readers", "orders", 0, 100)

        async def reset(**fields: str) -> int:
            response = await peer.ask(
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                fields={"topic": "orders", "group": "readers", "timestamp": "-1", "isForce": "true"} | fields,
            )
            assert response.code == ResponseCode.SUCCESS, response.remark
            committed = broker.context.offsets.query("readers", "orders", 0)
            assert committed is not None
            return committed

        asked = sorted({times[0] - 1, *times[::9], times[-1], times[-1] + 1})
        expected = [await reset(timestamp=str(time)) for time in asked]
        await uploaded(broker)
        await deleted(broker, peer)
        assert queue.min_offset >= 90
        assert [await reset(timestamp=str(time)) for time in asked] == expected
        assert await reset(queueId="0", offset="3") == 3
        # Without a tier that can be read, nothing is reset.
        for path in (tmp_path / "tier/c/broker-a" / LOG).iterdir():
            path.unlink()
        response = await peer.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            fields={"topic": "orders", "group": "readers", "timestamp": str(times[50]), "isForce": "true"},
        )
        assert response.code == ResponseCode.SYSTEM_BUSY
        assert broker.context.offsets.query("readers", "orders", 0) == 3


async def test_lag_counts_messages_of_the_tier(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path / "store", tmp_path / "tier") as broker:
        peer = await peer_of(broker, remoting)
        await fill(peer, 100)
        queue = broker.store.queue("orders", 0)
        began = broker.store.store_time(queue, 20)
        await beat(peer, "client")
        await commit(peer, 20)
        lag = ConsumerLag(broker.context, pop_queues=broker.pops.queues)
        await uploaded(broker)
        await deleted(broker, peer)
        (backlog,) = lag.backlogs()
        assert backlog.messages == 80
        assert backlog.oldest_ms is not None
        # The segment of the message began before it.
        assert began - 60_000 < backlog.oldest_ms <= began
        header = GetConsumeStatsRequestHeader(consumer_group="consumers", topic="orders")
        response = await peer.ask(RequestCode.GET_CONSUME_STATS, header)
        offsets = {table.min_offset for table in ConsumeStats.decode(response.body).offset_table.values()}
        assert offsets == {0}
