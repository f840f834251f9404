"""Rate limits of topics, groups and client hosts: the buckets, and a broker with a clock that the test sets."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from broker_support import Peer, config
from plain_sends_support import Client, frame, known, running
from pop_support import PopPeer
from ports import free_port
from wait_until import until

from gantrymq.broker import context as context_module
from gantrymq.broker.broker import Broker
from gantrymq.broker.tables.rate_limits import HostLimits, RateLimits, Rates, TokenBucket
from gantrymq.errors import RefusalReason, RequestRefused
from gantrymq.kernels import native
from gantrymq.limits import RATE_LIMITED_HOSTS
from gantrymq.protocol.batch import count_messages, encode_batch
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.private_fields import REASON_FIELD, RETRY_AFTER_FIELD
from gantrymq.remoting.client import RemotingClient

MESSAGES, BYTES = "rate.limit.messages", "rate.limit.bytes"
BUSY, FLOW = ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL


class Clock:
    """A clock that only `forward` moves, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


class Host:
    """The part of a Connection that the limits use."""

    def __init__(self, host: str) -> None:
        self.address = f"{host}:54321"


def host(number: int) -> Any:
    return Host(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(context_module, "RateLimits", partial(RateLimits, clock=clock))
    return clock


@pytest.fixture
async def broker(clock: Clock, tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(config(tmp_path / "store", metrics_port=free_port()))
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
async def peer(broker: Broker, remoting: RemotingClient) -> PopPeer:
    return PopPeer(await remoting.connection(f"127.0.0.1:{broker.port}"))


def limit_topic(broker: Broker, **attributes: int) -> None:
    """Sets the attributes of the topic "orders", with the last part of their names."""
    broker.topics.put(TopicConfig("orders", 4, 4, attributes=_attributes(attributes)))


def limit_group(broker: Broker, **attributes: int) -> None:
    broker.groups.put([SubscriptionGroupConfig("consumers", attributes=_attributes(attributes))])


def _attributes(limits: dict[str, int]) -> dict[str, str]:
    return {f"rate.limit.{name}": str(limit) for name, limit in limits.items()}


def wait_s(refused: RemotingCommand) -> float:
    """Returns the time to wait of a refusal, after checking the response."""
    assert refused.ext_fields[REASON_FIELD] == RefusalReason.RATE_LIMITED
    assert f"try again in {refused.ext_fields[RETRY_AFTER_FIELD]} ms" in (refused.remark or "")
    return int(refused.ext_fields[RETRY_AFTER_FIELD]) / 1000


def messages_in(response: RemotingCommand) -> int:
    return len(list(decode_messages(response.body)))


async def taken_in(
    seconds: float, clock: Clock, attempt: Callable[[], Any], code: ResponseCode, size: Callable[[RemotingCommand], int]
) -> int:
    """Repeats `attempt` as often as a limit admits it. Returns the sum of `size` of the responses."""
    end, total = clock.now + seconds, 0
    while clock.now < end:
        response = await attempt()
        if response.code == ResponseCode.SUCCESS:
            total += size(response)
        else:
            assert response.code == code, response.remark
            clock.forward(wait_s(response))
    return total


# -- buckets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1, 7, 100, 12_345, 10**9])
@pytest.mark.parametrize("units", [1, 5, 32])
def test_a_bucket_keeps_its_rate(rate: int, units: int) -> None:
    """Over any longer time, the units that are taken are those of the rate, a burst, and at most one request."""
    seconds = 3.0 + 100 * units / rate
    now = 0.0
    bucket, taken = TokenBucket(rate, now), 0
    for _ in range(10_000):
        while (wait := bucket.wait_s(now)) == 0 and now < seconds:
            bucket.take(max(units, rate // 1000))
            taken += max(units, rate // 1000)
        now += wait
        if now >= seconds:
            break
    assert taken == pytest.approx(rate * seconds, rel=0.1, abs=units)


def test_a_bucket_that_nobody_uses_does_not_grow() -> None:
    bucket = TokenBucket(100, 0.0)
    assert bucket.level(3600.0) == bucket.level(0.0) == 10.0
    bucket.take(15)
    assert (bucket.level(3600.0), bucket.wait_s(3600.0)) == (-5.0, 0.1)
    # A clock that is set back adds nothing.
    assert bucket.level(3500.0) == -5.0


@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_messages_of_a_batch_are_counted(count: int) -> None:
    batch = encode_batch((0, b"x" * number, b"KEYS\x01a\x02") for number in range(count))
    assert count_messages(batch) == count


@pytest.mark.parametrize("batch", [b"\x00\x00\x00\x00" * 9, b"\xff" * 40, b"\x7f\xff\xff\xff" + b"x" * 50])
def test_an_illegal_batch_is_one_message(batch: bytes) -> None:
    assert count_messages(batch) == 1


# -- sends ------------------------------------------------------------------------------------------------------------


async def test_sends_of_a_topic_in_messages(broker: Broker, peer: PopPeer, clock: Clock) -> None:
    limit_topic(broker, messages=100)
    sent = await taken_in(4.0, clock, lambda: peer.send("orders", b"x"), BUSY, lambda _: 1)
    assert sent == pytest.approx(400, rel=0.1)
    assert sum(broker.store.queue("orders", n).max_offset for n in range(4)) == sent
    # Other topics have no limit.
    for _ in range(50):
        assert (await peer.send("free", b"x")).code == ResponseCode.SUCCESS


async def test_sends_of_a_topic_in_bytes(broker: Broker, peer: PopPeer, clock: Clock) -> None:
    limit_topic(broker, bytes=20_000)
    sent = await taken_in(4.0, clock, lambda: peer.send("orders", b"x" * 500), BUSY, lambda _: 500)
    assert sent == pytest.approx(80_000, rel=0.1)


@pytest.mark.parametrize(("limits", "expected"), [({"messages": 100}, 500), ({"bytes": 2_000}, 500)])
async def test_batches_count_with_all_their_messages(
    broker: Broker, peer: PopPeer, clock: Clock, limits: dict[str, int], expected: int
) -> None:
    limit_topic(broker, **limits)
    # A batch of ten messages has 200 bytes.
    batch = encode_batch([(0, b"", b"")] * 9 + [(0, b"xx", b"")])
    assert len(batch) == 222
    seconds = 5.0 if "messages" in limits else 5.0 * 222 / 200
    sent = await taken_in(
        seconds, clock, lambda: peer.send("orders", batch, code=RequestCode.SEND_BATCH_MESSAGE), BUSY, lambda _: 10
    )
    assert sent == pytest.approx(expected, rel=0.1)


async def test_java_s_clients_see_system_busy_and_a_remark(broker: Broker, peer: PopPeer, clock: Clock) -> None:
    limit_topic(broker, messages=1, bytes=500)
    assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
    refused = await peer.send("orders", b"x")
    assert refused.code == BUSY == 2
    assert refused.remark == (
        "[RATELIMIT]the topic[orders] is limited to 1 messages and 500 bytes a second: try again in 500 ms"
    )
    assert broker.store.queue("orders", 0).max_offset == 1


async def test_changed_attributes_take_effect_at_once(broker: Broker, peer: PopPeer, clock: Clock) -> None:
    assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
    limit_topic(broker, messages=1)
    assert [(await peer.send("orders", b"x")).code for _ in range(2)] == [ResponseCode.SUCCESS, BUSY]
    limit_topic(broker, messages=30)
    assert [(await peer.send("orders", b"x")).code for _ in range(4)] == [ResponseCode.SUCCESS] * 3 + [BUSY]
    # A change of something else does not fill the bucket.
    broker.topics.put(TopicConfig("orders", 8, 8, attributes={MESSAGES: "30"}))
    assert (await peer.send("orders", b"x")).code == BUSY
    limit_topic(broker)
    assert {(await peer.send("orders", b"x")).code for _ in range(100)} == {ResponseCode.SUCCESS}


async def test_a_deleted_topic_has_no_limit(broker: Broker, peer: PopPeer, clock: Clock) -> None:
    limit_topic(broker, messages=1)
    await peer.send("orders", b"x")
    assert len(list(broker.context.rate_limits.refused())) == 1
    broker.context.events.topics_deleted.publish(["orders"], [])
    broker.topics.remove("orders")
    assert not list(broker.context.rate_limits.refused())


@pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")
async def test_native_code_stores_only_sends_of_topics_without_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock, by_python: list[int]
) -> None:
    async with running(tmp_path / "store", monkeypatch) as broker:
        limit_topic(broker, messages=1000)
        await broker.topics.written()
        client = Client(broker)
        for opaque in range(1, 11):
            (answer,) = client.answers(frame("binary", opaque, b="orders" if opaque % 2 else "trades"))
            assert answer.code == ResponseCode.SUCCESS
        assert (known(broker), by_python) == (1, [1, 2, 3, 5, 7, 9])
        # Without the limit, the first message goes through Python, as after each change of a topic.
        limit_topic(broker)
        await broker.topics.written()
        by_python.clear()
        for opaque in range(11, 15):
            client.read(frame("binary", opaque))
        assert (known(broker), by_python) == (1, [11])
        # A limit for clients turns native code off for all topics.
        broker.config.client_rate_limit_bytes = 10**9
        broker.context.events.config_changed.publish()
        by_python.clear()
        for opaque in range(15, 19):
            client.read(frame("binary", opaque))
        assert (known(broker), by_python) == (0, [15, 16, 17, 18])


# -- deliveries -------------------------------------------------------------------------------------------------------


async def _filled(peer: Peer, count: int, size: int = 1) -> None:
    batch = encode_batch([(0, b"x" * size, b"")] * count)
    response = await peer.send("orders", batch, code=RequestCode.SEND_BATCH_MESSAGE)
    assert response.code == ResponseCode.SUCCESS, response.remark


@pytest.mark.parametrize("bulk", [False, True])
async def test_pulls_of_a_group_in_messages(broker: Broker, peer: PopPeer, clock: Clock, bulk: bool) -> None:
    await _filled(peer, 2000)
    limit_group(broker, messages=100)
    offset, options = 0, {"bulk_msg_nums": 1000, "bulk_msg_bytes": 1 << 20} if bulk else {}

    async def pull() -> RemotingCommand:
        nonlocal offset
        response = await peer.pull("orders", offset, **options)
        if response.code == ResponseCode.SUCCESS:
            offset = int(response.ext_fields["nextBeginOffset"])
        return response

    pulled = await taken_in(4.0, clock, pull, FLOW, messages_in)
    assert offset == pulled == pytest.approx(400, rel=0.1)
    # Other groups have no limit.
    for _ in range(50):
        assert (await peer.pull("orders", group="others")).code == ResponseCode.SUCCESS


async def test_pulls_of_a_group_in_bytes(broker: Broker, peer: PopPeer, clock: Clock) -> None:
    await _filled(peer, 500, 900)
    limit_group(broker, bytes=30_000)
    pulled = await taken_in(4.0, clock, lambda: peer.pull("orders"), FLOW, lambda response: len(response.body))
    assert pulled == pytest.approx(120_000, rel=0.1)


async def test_pulls_with_a_sql92_filter(broker: Broker, peer: PopPeer, clock: Clock) -> None:
    await _filled(peer, 1000)
    limit_group(broker, messages=100)
    pulled = await taken_in(
        4.0,
        clock,
        lambda: peer.pull("orders", subscription="a IS NULL", expression_type="SQL92"),
        FLOW,
        messages_in,
    )
    assert pulled == pytest.approx(400, rel=0.1)


async def test_pops_of_a_group(broker: Broker, peer: PopPeer, clock: Clock) -> None:
    await _filled(peer, 1000)
    limit_group(broker, messages=100)
    popped = await taken_in(
        4.0,
        clock,
        lambda: peer.pop("orders", group="consumers", init_mode=0),
        FLOW,
        messages_in,
    )
    assert popped == pytest.approx(400, rel=0.1)


async def test_a_waiting_pull_is_refused_when_messages_arrive(broker: Broker, peer: PopPeer, clock: Clock) -> None:
    limit_group(broker, messages=1)
    broker.topics.put(TopicConfig("orders", 4, 4))
    await broker.topics.written()
    pulls = [peer.pull("orders", queue_id=queue_id, suspend_ms=20_000) for queue_id in (0, 1)]
    tasks = [asyncio.create_task(pull) for pull in pulls]
    await until(lambda: len(broker.polling) == 2)
    await peer.send("orders", b"x", queue_id=0)
    assert (await tasks[0]).code == ResponseCode.SUCCESS
    await peer.send("orders", b"x", queue_id=1)
    refused = await tasks[1]
    assert (refused.code, wait_s(refused)) == (FLOW, 0.5)
    clock.forward(0.5)
    assert (await peer.pull("orders", queue_id=1)).code == ResponseCode.SUCCESS


async def test_a_refused_pull_commits_its_offset(broker: Broker, peer: PopPeer, clock: Clock) -> None:
    await _filled(peer, 10)
    limit_group(broker, messages=1)
    for offset, code in ((1, ResponseCode.SUCCESS), (2, FLOW)):
        # PULL_COMMIT_OFFSET and PULL_SUBSCRIPTION.
        response = await peer.pull("orders", offset, sys_flag=1 | 4, commit_offset=offset)
        assert response.code == code
        assert broker.context.offsets.query("consumers", "orders", 0) == offset


async def test_changed_attributes_of_a_group_take_effect_at_once(broker: Broker, peer: PopPeer, clock: Clock) -> None:
    await _filled(peer, 10)
    assert (await peer.pull("orders")).code == ResponseCode.SUCCESS
    limit_group(broker, messages=1)
    assert [(await peer.pull("orders")).code for _ in range(2)] == [ResponseCode.SUCCESS, FLOW]
    limit_group(broker)
    assert {(await peer.pull("orders")).code for _ in range(20)} == {ResponseCode.SUCCESS}


# -- clients ----------------------------------------------------------------------------------------------------------


async def test_a_client_host_has_one_limit_for_all_its_connections(broker: Broker, peer: PopPeer, clock: Clock) -> None:
    broker.config.client_rate_limit_messages = 50
    broker.context.events.config_changed.publish()
    other = RemotingClient()
    try:
        second = Peer(await other.connection(f"127.0.0.1:{broker.port}"))
        sent = await taken_in(
            4.0, clock, lambda: (peer if int(clock.now * 1000) % 2 else second).send("orders", b"x"), BUSY, lambda _: 1
        )
        assert sent == pytest.approx(200, rel=0.1)
        # Deliveries have a bucket of their own.
        assert (await peer.pull("orders")).code == ResponseCode.SUCCESS
        refused = [await second.pull("orders") for _ in range(10)][-1]
        assert refused.code == FLOW
        assert "the client[127.0.0.1] is limited to 50 messages" in (refused.remark or "")
    finally:
        await other.close()
    broker.config.client_rate_limit_messages = 0
    broker.context.events.config_changed.publish()
    assert {(await peer.send("orders", b"x")).code for _ in range(50)} == {ResponseCode.SUCCESS}


def test_hosts_do_not_fill_the_memory() -> None:
    hosts = HostLimits(Rates(10, None), 0.0, max_hosts=100)
    for number in range(100):
        hosts.of(host(number), 0.0).take(1, 1)
    # No host is idle, so all further hosts share one limit.
    shared = {hosts.of(host(number), 0.01) for number in range(100, 10_000)}
    assert (len(hosts), len(shared)) == (100, 1)
    # A host of the table keeps its own.
    assert hosts.of(host(7), 0.01) not in shared
    # Buckets that are full again are forgotten, and a new host gets its own limit.
    assert hosts.of(host(10_000), 5.0) not in shared
    assert len(hosts) == 1


def test_the_table_of_hosts_has_a_limit_by_default(tmp_path: Path) -> None:
    clock = Clock()
    limits = RateLimits(config(tmp_path, client_rate_limit_messages=1), clock)
    topic = TopicConfig("orders")
    admitted = 0
    for number in range(RATE_LIMITED_HOSTS + 500):
        try:
            limits.admit_send(topic, host(number), b"x", is_batch=False)
            admitted += 1
        except RequestRefused:
            pass
    # The first of the further hosts uses up the limit that they share.
    assert admitted == RATE_LIMITED_HOSTS + 1


def test_a_send_that_one_limit_refuses_counts_in_none(tmp_path: Path) -> None:
    clock = Clock()
    limits = RateLimits(config(tmp_path, client_rate_limit_messages=1), clock)
    topic = TopicConfig("orders", attributes={MESSAGES: "20"})
    limits.admit_send(topic, host(1), b"x", is_batch=False)
    for _ in range(3):
        with pytest.raises(RequestRefused, match=r"the client\[10.0.0.1\]"):
            limits.admit_send(topic, host(1), b"x", is_batch=False)
    # The topic has a burst of two messages, of which one is left.
    limits.admit_send(topic, host(2), b"x", is_batch=False)
    with pytest.raises(RequestRefused, match=r"the topic\[orders\]"):
        limits.admit_send(topic, host(3), b"x", is_batch=False)
    assert sorted(limits.refused()) == [("client", "", 3), ("topic", "orders", 1)]


@pytest.mark.parametrize("text", ["", "0", "-5", "ten", "1.5", "9" * 20])
def test_an_attribute_of_another_broker_that_is_no_rate_is_no_limit(tmp_path: Path, text: str) -> None:
    limits = RateLimits(config(tmp_path), Clock())
    assert not limits.limits_sends(TopicConfig("orders", attributes={MESSAGES: text, BYTES: text}))


# -- metrics ----------------------------------------------------------------------------------------------------------


async def test_metrics_count_refused_requests(broker: Broker, peer: PopPeer, clock: Clock) -> None:
    await _filled(peer, 10)
    limit_topic(broker, messages=1)
    limit_group(broker, messages=1)
    for _ in range(4):
        await peer.send("orders", b"x")
    for _ in range(3):
        await peer.pull("orders")
    url = f"http://127.0.0.1:{broker.config.metrics_port}/metrics"
    page = (await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=20).read())).decode()
    found = {}
    for line in page.splitlines():
        if line.startswith("gantry_rate_limited_requests_total{"):
            labels, _, value = line.rpartition(" ")
            found["topic" if 'limit="topic"' in labels else "group"] = ('name="' in labels, float(value))
            assert 'name="orders"' in labels or 'name="consumers"' in labels
    assert found == {"topic": (True, 3.0), "group": (True, 2.0)}
