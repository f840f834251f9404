"""Admin requests for messages by log offset and by key."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest
from broker_support import Peer
from constants import change_constant
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.query import QueryMessageRequestHeader, ViewMessageRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.store.key_lookup import Search


async def test_message_is_found_by_its_id(peer: Peer) -> None:
    await peer.send("orders", b"first")
    sent = await peer.send("orders", b"second", properties={"KEYS": "k", "TAGS": "t"})
    _, offset = decode_offset_message_id(sent.ext_fields["msgId"])
    response = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset, topic="orders"))
    assert response.code == ResponseCode.SUCCESS
    pulled = await peer.pull("orders", 1)
    assert response.body == pulled.body
    (message,) = decode_messages(response.body)
    assert (message.body, message.keys, message.tags, message.queue_offset) == (b"second", ["k"], "t", 1)


@pytest.mark.parametrize("offset", [1, -1, 4096, 2**62, -(2**63)])
async def test_no_message_there(peer: Peer, offset: int) -> None:
    await peer.send("orders", b"x" * 1000)
    response = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset))
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert f"can not find message by the offset, {offset}" in (response.remark or "")


async def query(peer: Peer, key: str, *, unique: bool = False, **changed: object) -> RemotingCommand:
    header = QueryMessageRequestHeader(topic="orders", key=key, max_num=32, begin_timestamp=0, end_timestamp=2**62)
    fields = {"_UNIQUE_KEY_QUERY": "true"} if unique else {}
    return await peer.ask(RequestCode.QUERY_MESSAGE, msgspec.structs.replace(header, **changed), fields=fields)


async def test_messages_are_found_by_their_keys(peer: Peer) -> None:
    for i in range(4):
        await peer.send(
            "orders",
            b"body %d" % i,
            properties={"KEYS": f"even{i % 2} all", "UNIQ_KEY": f"unique{i}", "TAGS": f"third{i % 3}"},
        )

    async def bodies(key: str, **changed: object) -> list[bytes]:
        response = await query(peer, key, **changed)  # type: ignore[arg-type]
        assert response.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        return [message.body for message in decode_messages(response.body)]

    assert await bodies("even0") == [b"body 0", b"body 2"]
    assert await bodies("all", max_num=3) == [b"body 1", b"body 2", b"body 3"]
    assert await bodies("unique1", unique=True) == [b"body 1"]
    assert await bodies("all", unique=True) == []
    assert await bodies("even0", index_type="K") == [b"body 0", b"body 2"]
    assert await bodies("third0", index_type="T") == [b"body 0", b"body 3"]
    assert await bodies("third0", index_type="T", max_num=1) == [b"body 3"]
    assert await bodies("third0") == await bodies("even0", index_type="T") == []
    assert await bodies("unique2", index_type="U") == [b"body 2"]
    assert await bodies("unique2", index_type="T", unique=True) == [b"body 2"]
    assert await bodies("none") == []
    assert await bodies("all", topic="others") == []
    assert await bodies("all", end_timestamp=1) == []
    assert await bodies("all", begin_timestamp=2**63 - 1) == []
    for max_num in (0, -1):
        assert await bodies("all", max_num=max_num) == []
    assert len(await bodies("all", max_num=2**31 - 1)) == 4
    assert int((await query(peer, "all")).ext_fields["indexLastUpdateTimestamp"]) > 0


async def test_an_unknown_index_type_is_refused(peer: Peer) -> None:
    response = await query(peer, "key", index_type="X")
    assert (response.code, response.remark) == (
        ResponseCode.INVALID_PARAMETER,
        "indexType 'X': must be K, T or U",
    )


async def test_keys_find_messages_of_a_topic_that_is_deleted(peer: Peer) -> None:
    """The index stores the log offsets of records, so it also finds messages of a deleted topic.

    A request for an offset also checks the queue of the message, so it fails.
    """
    sent = await peer.send("orders", b"old", properties={"KEYS": "k"})
    assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "orders"})).code == 0
    await peer.send("orders", b"new", properties={"KEYS": "k"})
    response = await query(peer, "k")
    assert [message.body for message in decode_messages(response.body)] == [b"old", b"new"]
    _, offset = decode_offset_message_id(sent.ext_fields["msgId"])
    response = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset, topic="orders"))
    assert response.code == ResponseCode.SYSTEM_ERROR


async def test_searches_take_turns(broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short search completes before long ones.

    The number of concurrent searches is limited.
    """
    change_constant(monkeypatch, "key_lookup._STEP_S", 0.0)
    change_constant(monkeypatch, "messages._MAX_SEARCHES", 10)
    for n in range(64):
        await peer.send("orders", b"%d" % n, properties={"KEYS": "much" if n else "much little"})
    await until(lambda: broker.store.keys.build_index(60))
    done: list[str] = []

    async def search(key: str) -> int:
        response = await query(peer, key, max_num=64)
        done.append(key)
        return response.code

    codes = await asyncio.gather(*(search("much") for _ in range(9)), search("little"))
    assert set(codes) == {ResponseCode.SUCCESS}
    assert done[0] == "little"
    codes = await asyncio.gather(*(search("much") for _ in range(15)))
    assert sorted(codes) == [ResponseCode.SUCCESS] * 10 + [ResponseCode.SYSTEM_BUSY] * 5
    assert (await query(peer, "much")).code == ResponseCode.SUCCESS


async def test_many_searches_at_once_hold_up_nobody(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event-loop iteration runs one step of one search, not one step of each search."""
    turn = 0
    steps: Counter[int] = Counter()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def search(*arguments: object) -> Search:
        for _ in range(3):
            steps[turn] += 1
            yield
        return []

    monkeypatch.setattr(broker.store.keys, "find", search)
    counting = asyncio.create_task(count_turns())
    answers = await asyncio.gather(*(query(peer, "key") for _ in range(50)))
    counting.cancel()
    assert {answer.code for answer in answers} == {ResponseCode.QUERY_NOT_FOUND}
    assert steps.total() == 150
    # One counted iteration can contain the end of one iteration and the start of the next.
    assert max(steps.values()) <= 2


async def test_no_answer_is_larger_than_a_frame(peer: Peer) -> None:
    for _ in range(6):
        assert (await peer.send("orders", bytes(3_900_000), properties={"KEYS": "large"})).code == 0
    response = await query(peer, "large")
    assert response.code == ResponseCode.SUCCESS
    assert [message.queue_offset for message in decode_messages(response.body)] == [2, 3, 4, 5]
