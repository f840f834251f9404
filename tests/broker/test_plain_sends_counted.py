"""Messages that native code stores are counted, found and shown like those that Python stores."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from broker_support import Peer
from plain_sends_support import Client, frame, known, properties_of, running
from ports import free_port
from wait_until import until

from gantrymq.broker.append.put_times import PERIOD_S
from gantrymq.broker.broker import Broker
from gantrymq.broker.metrics.broker_metrics import BrokerMetrics
from gantrymq.broker.send import fast_path
from gantrymq.kernels import native
from gantrymq.metrics import render
from gantrymq.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.remoting.client import RemotingClient

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")

#: Runtime values that depend on the messages only, and not on the port, the disk or the time.
OF_MESSAGES = (
    "putMessageTimesTotal",
    "putMessageSizeTotal",
    "putMessageAverageSize",
    "msgPutTotalTodayNow",
    "commitLogMinOffset",
    "commitLogMaxOffset",
    "earliestMessageTimeStamp",
    "dispatchBehindBytes",
)

RATE = re.compile(rb'"topicPutTps":([\d.e-]+)')


def sends() -> Iterator[bytes]:
    """Yields reads with plain sends to both topics."""
    opaque = 0
    for topic in ("orders", "trades"):
        for count in (1, 1, 30, 20):
            frames = []
            for _ in range(count):
                opaque += 1
                keys = properties_of(f"UNIQ_KEY\x01{opaque:032X}", f"KEYS\x01order{opaque}", "TAGS\x01red")
                if opaque % 3 == 0:
                    keys += properties_of("__SHARDINGKEY\x01one")
                elif opaque % 3 == 1:
                    # Only whole names count.
                    keys += properties_of("X__SHARDINGKEY\x01one")
                frames.append(frame("java", opaque, b"x" * opaque, keys, b=topic, e=1))
            yield b"".join(frames)


async def peer_of(broker: Broker, remoting: RemotingClient) -> Peer:
    return Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))


def of_messages(broker: Broker) -> dict[str, float]:
    """Returns the Prometheus metrics for messages."""
    [metrics] = [part for part in broker.features.all if isinstance(part, BrokerMetrics)]
    names = (
        "rocketmq_messages_in_total",
        "rocketmq_throughput_in_total",
        "rocketmq_message_size",
        "rocketmq_rpc_latency_milliseconds_count",
        "gantry_commit_log_bytes",
    )
    lines = [line for line in render(metrics.collect()).decode().splitlines() if line.startswith(names)]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def told_of(broker: Broker, peer: Peer) -> dict[str, object]:
    """Returns the data about messages in responses to tools and in Prometheus metrics."""
    while broker.runtime.sample() is not None:
        pass
    table = broker.runtime.table()
    seen: dict[str, object] = {name: table[name] for name in OF_MESSAGES}
    seen["was put lately"] = [float(rate) > 0 for rate in table["putTps"].split()]
    seen["metrics"] = of_messages(broker)
    for topic in ("orders", "trades"):
        of_topic = {"topic": topic, "queueId": "1", "timestamp": "1600000000000"}
        of_topic |= {"statsName": "TOPIC_PUT_NUMS", "statsKey": topic}
        stats = await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, fields=of_topic)
        seen[f"{topic}, lately"] = [part.partition(b",")[0] for part in stats.body.split(b'"sum":')[1:]]
        for code in (
            RequestCode.GET_TOPIC_STATS_INFO,
            RequestCode.GET_MAX_OFFSET,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        ):
            answer = await peer.ask(code, fields=of_topic)
            # The rate depends on the speed of the machine.
            body = RATE.sub(lambda rate: b"stored lately: %d" % (float(rate[1]) > 0), answer.body)
            seen[f"{topic}, {code.name}"] = answer.code, answer.ext_fields, body
    return seen


async def test_tools_and_metrics_see_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remoting: RemotingClient
) -> None:
    seen = []
    for natively in (False, True):
        async with running(
            tmp_path / str(natively), monkeypatch, natively=natively, metrics_port=free_port()
        ) as broker:
            client = Client(broker)
            for data in sends():
                assert {answer.code for answer in client.answers(data)} == {ResponseCode.SUCCESS}
            assert not natively or known(broker) == 2
            seen.append(await told_of(broker, await peer_of(broker, remoting)))
    by_python, by_native = seen
    assert by_native == by_python
    assert by_native["putMessageTimesTotal"] == "104"
    assert by_native["was put lately"] == [True, True, True]
    counted = [value for name, value in by_native["metrics"].items() if name.startswith("rocketmq_messages_in")]  # type: ignore[attr-defined]
    assert counted == [35.0, 35.0, 17.0, 17.0]
    assert b'"maxOffset":52' in by_native["orders, GET_TOPIC_STATS_INFO"][2]  # type: ignore[index]
    assert b"stored lately: 1" in by_native["orders, GET_TOPIC_STATS_INFO"][2]  # type: ignore[index]
    assert by_native["orders, lately"] == [b"52"] * 3


async def test_each_send_of_a_read_counts_with_its_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client, times = Client(broker), broker.appender.put_times
        for opaque in (1, 2):
            client.read(frame("java", opaque))
        assert known(broker) == 1
        times.sample(monotonic() + PERIOD_S)
        # The native call takes 10 ms by this clock.
        monkeypatch.setattr(fast_path, "monotonic", itertools.count(0.0, 0.01).__next__)
        client.read(b"".join(frame("java", opaque) for opaque in range(3, 23)))
        times.sample(monotonic() + 3 * PERIOD_S)
        assert times.distribution().startswith("[<=0ms]:20 [0~10ms]:0 ")


async def test_messages_are_found_by_their_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remoting: RemotingClient
) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client, peer = Client(broker), await peer_of(broker, remoting)
        for data in sends():
            client.read(data)
        for key, is_unique in (("order50", "false"), (f"{50:032X}", "true")):
            asked = {"topic": "orders", "key": key, "maxNum": "4", "_UNIQUE_KEY_QUERY": is_unique}
            asked |= {"beginTimestamp": "0", "endTimestamp": "9000000000000"}

            async def is_found(asked: dict[str, str] = asked) -> bool:
                return b"x" * 50 in (await peer.ask(RequestCode.QUERY_MESSAGE, fields=asked)).body

            await until(is_found)


async def test_a_heartbeat_between_sends_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remoting: RemotingClient
) -> None:
    """All requests in one read are answered in order."""
    async with running(tmp_path, monkeypatch) as broker:
        client = Client(broker)
        for opaque in (1, 2):
            client.read(frame("java", opaque))
        data = HeartbeatData("client-1", [ProducerData("producers")], [])
        heartbeat = RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_json(data))
        heartbeat.opaque = 5
        answers = client.answers(frame("java", 3) + frame("java", 4) + heartbeat.encode() + frame("java", 6))
        assert [answer.opaque for answer in answers] == [3, 4, 5, 6]
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        peer = await peer_of(broker, remoting)
        members = await peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, fields={"producerGroup": "producers"})
        assert b"client-1" in members.body
