"""Pulls, long polling, and the response code for each state of a queue."""

from __future__ import annotations

import asyncio

import pytest
from broker_support import Peer, requests_in_memory, server_of, set_request_slice, until_freed, weak
from constants import change_constant
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.errors import ConnectionLost
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.sys_flag import PULL_SUBSCRIPTION, PULL_SUSPEND
from gantrymq.remoting.client import RemotingClient


def bodies(body: bytes) -> list[bytes]:
    return [message.body for message in decode_messages(body)]


async def test_found(peer: Peer) -> None:
    for i in range(5):
        await peer.send("orders", b"%d" % i)
    response = await peer.pull("orders", 2)
    assert response.code == ResponseCode.SUCCESS
    assert response.remark == "FOUND"
    assert bodies(response.body) == [b"2", b"3", b"4"]
    fields = response.ext_fields
    assert (fields["nextBeginOffset"], fields["minOffset"], fields["maxOffset"]) == ("5", "0", "5")


async def test_count_and_byte_limits(peer: Peer) -> None:
    for i in range(10):
        await peer.send("orders", b"%d" % i * 1000)
    assert len(bodies((await peer.pull("orders", max_msg_nums=3)).body)) == 3
    assert len(bodies((await peer.pull("orders", max_msg_bytes=2500)).body)) in (1, 2)
    assert len(bodies((await peer.pull("orders", max_msg_bytes=1)).body)) == 1


async def test_bulk_readers_say_so(peer: Peer, broker: Broker) -> None:
    """The limits for bulk reads apply only to pulls that request them. All other pulls get Java's limits."""
    for i in range(50):
        await peer.send("orders", b"%d" % i)
    assert len(bodies((await peer.pull("orders", max_msg_nums=50)).body)) == 32
    bulk = await peer.pull("orders", max_msg_nums=1, bulk_msg_nums=50, bulk_msg_bytes=1 << 20)
    assert bodies(bulk.body) == [b"%d" % i for i in range(50)]
    broker.config.store.max_bulk_transfer_count = 40
    assert len(bodies((await peer.pull("orders", bulk_msg_nums=50)).body)) == 40
    size = len(bulk.body) // 50
    broker.config.store.max_bulk_transfer_bytes = 10 * size
    assert len(bodies((await peer.pull("orders", bulk_msg_nums=50, bulk_msg_bytes=1 << 20)).body)) <= 10


async def test_tags_are_filtered_by_hash(peer: Peer) -> None:
    for i in range(10):
        await peer.send("orders", b"%d" % i, properties={"TAGS": "abc"[i % 3]})
    assert bodies((await peer.pull("orders", subscription="a || c")).body) == [b"0", b"2", b"3", b"5", b"6", b"8", b"9"]
    none = await peer.pull("orders", subscription="x")
    assert (none.code, none.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "10")


async def test_offsets_outside_the_queue(peer: Peer) -> None:
    await peer.send("orders", b"x")
    assert (await peer.pull("orders", 1)).code == ResponseCode.PULL_NOT_FOUND
    beyond = await peer.pull("orders", 100)
    assert (beyond.code, beyond.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    below = await peer.pull("orders", -5)
    assert (below.code, below.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert (await peer.pull("orders", 0, queue_id=1)).code == ResponseCode.PULL_NOT_FOUND
    assert (await peer.pull("orders", 7, queue_id=1)).code == ResponseCode.PULL_OFFSET_MOVED


async def test_long_poll_is_answered_by_an_arrival(peer: Peer, broker: Broker) -> None:
    await peer.send("orders", b"first")
    waiting = asyncio.create_task(peer.pull("orders", 1, suspend_ms=15_000))
    await until(lambda: len(broker.polling) == 1)
    assert not waiting.done()
    await peer.send("orders", b"second")
    async with asyncio.timeout(10):
        response = await waiting
    assert bodies(response.body) == [b"second"]
    assert len(broker.polling) == 0


async def test_a_pull_that_waits_keeps_nothing_of_its_request(peer: Peer, broker: Broker) -> None:
    """A pending pull keeps only the header of its request."""
    await peer.send("orders", b"x")
    before = requests_in_memory()
    waiting = asyncio.ensure_future(peer.pull("orders", 1, suspend_ms=10_000))
    await until(lambda: len(broker.polling) == 1)
    assert requests_in_memory(before) == []
    await peer.send("orders", b"y")
    [message] = decode_messages((await waiting).body)
    assert message.body == b"y"


async def test_long_poll_passes_over_other_tags(peer: Peer, broker: Broker) -> None:
    await peer.send("orders", b"first", properties={"TAGS": "a"})
    waiting = asyncio.create_task(peer.pull("orders", 1, suspend_ms=15_000, subscription="b"))
    await until(lambda: len(broker.polling) == 1)
    await peer.send("orders", b"not this", properties={"TAGS": "a"})
    await peer.send("orders", b"this", properties={"TAGS": "b"})
    async with asyncio.timeout(10):
        assert bodies((await waiting).body) == [b"this"]


async def test_long_poll_ends_with_its_time(peer: Peer, broker: Broker) -> None:
    await peer.send("orders", b"first")
    started = asyncio.get_running_loop().time()
    response = await peer.pull("orders", 1, suspend_ms=300)
    assert response.code == ResponseCode.PULL_NOT_FOUND
    assert 0.3 <= asyncio.get_running_loop().time() - started < 4


async def test_client_that_dies_in_a_long_poll_leaves_nothing(peer: Peer, broker: Broker) -> None:
    await peer.send("orders", b"first")
    other = RemotingClient()
    dying = Peer(await other.connection(f"127.0.0.1:{broker.port}"))
    waiting = asyncio.create_task(dying.pull("orders", 1, suspend_ms=15_000))
    await until(lambda: len(broker.polling) == 1)
    dying.connection.abort()
    with pytest.raises(ConnectionLost):
        await waiting
    await until(lambda: len(broker.polling) == 0)
    assert (await peer.send("orders", b"second")).code == ResponseCode.SUCCESS


async def test_lost_connection_takes_its_own_pulls_only(peer: Peer, broker: Broker) -> None:
    await peer.send("orders", b"first")
    dying = Peer(await RemotingClient().connection(f"127.0.0.1:{broker.port}"))
    lost = [asyncio.create_task(dying.pull("orders", 1, suspend_ms=15_000)) for _ in range(2)]
    waiting = asyncio.create_task(peer.pull("orders", 1, suspend_ms=15_000))
    await until(lambda: len(broker.polling) == 3)
    _, *closed = weak(server_of(broker).connections)
    dying.connection.abort()
    await asyncio.gather(*lost, return_exceptions=True)
    await until(lambda: len(broker.polling) == 1)
    await peer.send("orders", b"second")
    assert bodies((await waiting).body) == [b"second"]
    # The broker keeps no entry for a closed connection.
    await until_freed(*closed)


async def test_refused(peer: Peer) -> None:
    assert (await peer.pull("nothing")).code == ResponseCode.TOPIC_NOT_EXIST
    await peer.send("orders", b"x")
    assert (await peer.pull("orders", queue_id=99)).code == ResponseCode.INVALID_PARAMETER
    assert (await peer.pull("orders", group="bad group!")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert (await peer.pull("orders", expression_type="SQL92")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert (await peer.pull("orders", sys_flag=0, group="strangers")).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    absurd = await peer.pull("orders", max_msg_nums=2**31 - 1, max_msg_bytes=2**31 - 1)
    assert bodies(absurd.body) == [b"x"]


async def test_stop_answers_who_waits(peer: Peer, broker: Broker) -> None:
    await peer.send("orders", b"first")
    waiting = asyncio.create_task(peer.pull("orders", 1, suspend_ms=15_000))
    await until(lambda: len(broker.polling) == 1)
    await broker.polling.stop()
    async with asyncio.timeout(10):
        assert (await waiting).code == ResponseCode.PULL_NOT_FOUND


async def test_many_long_polls_of_a_peer_that_does_not_read(peer: Peer, broker: Broker) -> None:
    await peer.send("orders", b"first")
    pulls = 30
    header = PullMessageRequestHeader(
        consumer_group="consumers",
        topic="orders",
        queue_id=0,
        queue_offset=1,
        max_msg_nums=32,
        sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND,
        commit_offset=0,
        suspend_timeout_millis=15_000,
        sub_version=0,
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port, limit=65536)
    try:
        for opaque in range(pulls):
            request = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
            request.opaque = opaque
            writer.write(request.encode())
        await until(lambda: len(broker.polling) == pulls)
        large = bytes(2 * 1024 * 1024)
        await peer.send("orders", large)
        await until(lambda: len(broker.polling) == 0)

        frames, answers = FrameReader(), []
        async with asyncio.timeout(10):
            while len(answers) < pulls:
                answers += frames.feed(await reader.read(1 << 20))
        # The first responses fill the write buffer. The other pulls must be repeated at the same offset.
        found = [answer for answer in answers if answer.code == ResponseCode.SUCCESS]
        assert 0 < len(found) < 15
        assert {len(answer.body) > len(large) for answer in found} == {True}
        others = [answer for answer in answers if answer.code != ResponseCode.SUCCESS]
        assert {(a.code, a.ext_fields["nextBeginOffset"]) for a in others} == {
            (ResponseCode.PULL_RETRY_IMMEDIATELY, "1")
        }
    finally:
        writer.close()


async def test_waiting_pulls_are_bounded(peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "processor.WAITING_PULLS_OF_ONE", 3)
    await peer.send("orders", b"x")
    waiting = [asyncio.create_task(peer.pull("orders", 1, suspend_ms=15_000)) for _ in range(3)]
    await until(lambda: len(broker.polling) == 3)
    assert broker.polling.count_of(next(iter(server_of(broker).connections))) == 3
    refused = await peer.pull("orders", 1, suspend_ms=15_000)
    assert (refused.code, "3 pulls wait" in (refused.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
    # Pulls that do not wait are still served.
    assert (await peer.pull("orders", 1)).code == ResponseCode.PULL_NOT_FOUND
    await peer.send("orders", b"y")
    assert {response.code for response in await asyncio.gather(*waiting)} == {ResponseCode.SUCCESS}
    assert len(broker.polling) == 0


async def test_an_arrival_has_many_pulls_answered_bit_by_bit(
    peer: Peer, broker: Broker, remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new message is delivered to many pending pulls in steps. Other clients are served in between."""
    set_request_slice(monkeypatch, 0.0001)
    await peer.send("orders", b"x")
    waiting = [asyncio.create_task(peer.pull("orders", 1, suspend_ms=15_000)) for _ in range(500)]
    await until(lambda: len(broker.polling) == 500)
    other = Peer(await remoting.connection(f"localhost:{broker.port}"))
    await other.send("orders", b"y")
    answered = set()
    while not all(pull.done() for pull in waiting):
        await other.pull("orders", 0)
        answered.add(sum(pull.done() for pull in waiting))
    assert len(answered) > 2
    assert {bodies(pull.result().body)[0] for pull in waiting} == {b"y"}
