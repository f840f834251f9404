"""Memory that servers allocate for clients: all of it is limited, and small requests still succeed."""

from __future__ import annotations

import asyncio
import socket
import zlib
from pathlib import Path

import pytest
from hostile_support import Target, UnderAttack, flood, frame, pull_header, send_header
from small_disk import small_disk
from test_stalls import heartbeat, pop_header
from wait_until import until

from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.namesrv import RegisterBrokerRequestHeader

_MIB = 1 << 20


@pytest.mark.parametrize(("connections", "size"), [(60, 15 * _MIB), (1000, 900_000)])
async def test_frames_that_never_end(under_attack: UnderAttack, connections: int, size: int) -> None:
    """The frames announce 16 MiB, and their end is missing."""
    begin = frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), bytes(15 * _MIB + 1000))[:size]
    async with under_attack() as broker:
        sockets = [broker.socket() for _ in range(connections)]
        await asyncio.gather(*(flood(one, begin) for one in sockets))
        for one in sockets:
            one.close()


async def test_a_large_frame_comes_through_when_others_never_end(under_attack: UnderAttack) -> None:
    """The large frame succeeds within the client's timeout."""
    begin = frame(RequestCode.SEND_MESSAGE_V2, send_header("orders"), bytes(15 * _MIB))[:-1000]
    async with under_attack() as broker:
        sockets = [broker.socket() for _ in range(60)]
        await asyncio.gather(*(flood(one, begin) for one in sockets))
        peer = await broker.peer()
        sent = peer.ask(RequestCode.SEND_MESSAGE_V2, send_header("orders"), bytes(3 * _MIB), timeout_ms=3_000)
        assert (await sent).code == ResponseCode.SUCCESS
        for one in sockets:
            one.close()


#: Requests with large responses.
_ANSWERS = {
    "messages": frame(RequestCode.PULL_MESSAGE, pull_header("orders", max_msg_nums=1)),
    "many messages": frame(
        RequestCode.PULL_MESSAGE, pull_header("small-0", bulk_msg_nums=10_000, bulk_msg_bytes=4 * _MIB)
    ),
    "topics": frame(RequestCode.GET_ALL_TOPIC_CONFIG),
}


@pytest.mark.parametrize(("kind", "connections"), [("messages", 60), ("many messages", 600), ("topics", 60)])
async def test_answers_that_nobody_reads(under_attack: UnderAttack, kind: str, connections: int) -> None:
    async with under_attack(log_may_have=["has taken nothing of"]) as broker:
        peer = await broker.peer()
        await peer.send("orders", bytes(3 * _MIB))
        # The messages are not adjacent in the log, so that a response is a copy of them.
        await asyncio.gather(*(peer.send(f"small-{number % 2}", bytes(1000)) for number in range(8000)))
        for number in range(1000):
            await peer.send(f"topic-with-a-name-of-some-length-so-that-the-answer-is-large-{number}", b"x")
        sockets = [small_window(broker) for _ in range(connections)]
        await asyncio.gather(*(flood(one, _ANSWERS[kind] * 400) for one in sockets))
        await works_on_nothing_more(broker)
        for one in sockets:
            one.close()


async def works_on_nothing_more(broker: Target) -> None:
    """Waits until the broker has sent or deferred all responses."""
    memory, steady = 0, 0

    async def is_steady() -> bool:
        nonlocal memory, steady
        before, memory = memory, broker.status("VmRSS")
        steady = steady + 1 if abs(memory - before) < 1024 else 0
        return steady > 50

    await until(is_steady, 60)


def small_window(broker: Target) -> socket.socket:
    """Returns a connection with a small kernel buffer, so that the responses stay in the broker."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = broker.address.rsplit(":", 1)
    one.connect((host, int(port)))
    return one


async def test_sends_that_are_refused_while_the_disk_is_full(under_attack: UnderAttack, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 48 * _MIB) as disk:
        async with under_attack(
            disk=disk,
            properties={"mappedFileSizeCommitLog": str(4 * _MIB)},
            inevitable=[ResponseCode.SERVICE_NOT_AVAILABLE],
            log_may_have=["messages are rejected"],
        ) as broker:
            peer = await broker.peer()
            disk.fill(leave=2 * _MIB)

            async def is_full() -> bool:
                # Lets the broker check the disk usage.
                await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
                return (await peer.send("orders", b"x")).code != ResponseCode.SUCCESS

            await until(is_full, 30)
            for _ in range(2000):
                assert (await peer.send("orders", bytes(300_000))).code == ResponseCode.SERVICE_NOT_AVAILABLE
            disk.empty()

            async def has_room() -> bool:
                await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
                return (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS

            await until(has_room, 30)


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE], ids=["pulls", "pops"])
async def test_what_waiting_requests_want(under_attack: UnderAttack, code: RequestCode) -> None:
    """Each request names thousands of tags. Half of the requests name a tag that no earlier one names."""
    tags = "||".join(f"{n:x}" for n in range(3000))

    def request(number: int) -> bytes:
        wanted = f"{tags}||t{number % 2 * number}"
        if code == RequestCode.PULL_MESSAGE:
            return frame(code, pull_header("orders", 1, suspend_ms=60_000, subscription=wanted))
        return frame(code, pop_header("orders", poll_time=60_000, exp=wanted, exp_type="TAG"))

    async with under_attack() as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x")
        await peer.ask(RequestCode.POP_MESSAGE, pop_header("orders"))
        with broker.socket() as attacker:
            await flood(attacker, b"".join(map(request, range(2000))))
            assert (await peer.send("others", b"x")).code == ResponseCode.SUCCESS


async def test_ever_new_client_ids_on_one_connection(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        peer = await broker.peer()
        for number in range(300):
            ids = [f"{number}-{i}-{'x' * 20_000}" for i in range(100)]
            beats = [HeartbeatData(one, producer_data_set=[ProducerData("attackers")]) for one in ids]
            await asyncio.gather(*(peer.ask(RequestCode.HEART_BEAT, body=encode_json(data)) for data in beats))


@pytest.mark.parametrize("kind", ["producers", "consumers"])
async def test_ever_new_groups_on_one_connection(under_attack: UnderAttack, kind: str) -> None:
    async with under_attack() as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x")
        for number in range(25 if kind == "consumers" else 300):
            names = [f"{number}-{i}-{'x' * 80}" for i in range(4000)]
            if kind == "consumers":
                body = heartbeat("attacker@1", names)
            else:
                body = encode_json(HeartbeatData("attacker@1", producer_data_set=[*map(ProducerData, names)]))
            await peer.ask(RequestCode.HEART_BEAT, body=body)


async def test_large_heartbeats_of_many_connections(under_attack: UnderAttack) -> None:
    subscriptions = [SubscriptionData(f"topic-{i}", "x" * 5000) for i in range(180)]
    async with under_attack() as broker:
        await (await broker.peer()).send("orders", b"x")
        for number in range(600):
            group = ConsumerData(f"group-{number}", subscription_data_set=subscriptions)
            body = encode_json(HeartbeatData(f"attacker@{number}", consumer_data_set=[group]))
            await (await broker.peer()).ask(RequestCode.HEART_BEAT, body=body)


async def test_a_registration_that_inflates(under_attack: UnderAttack) -> None:
    """15 MiB of zlib data inflate to 15 GiB of blanks."""
    packer = zlib.compressobj(9)
    begin = packer.compress(b'{"topicConfigSerializeWrapper":') + packer.flush(zlib.Z_FULL_FLUSH)
    # After a full flush, the next block is independent and can be repeated.
    blanks = packer.compress(b" " * (16 * _MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    bomb = begin + blanks * (15 * _MIB // len(blanks))
    header = RegisterBrokerRequestHeader(
        broker_name="broker-x",
        broker_addr="127.0.0.1:1",
        cluster_name="DefaultCluster",
        broker_id=0,
        ha_server_addr="",
        compressed=True,
    )
    async with under_attack() as broker:
        peer = await broker.peer_of(broker.name_server)
        for _ in range(5):
            answer = await peer.ask(RequestCode.REGISTER_BROKER, header, bomb)
            assert answer.code != ResponseCode.SUCCESS
