"""Tests of `gantry consume`: which messages it writes, in which format, and the offsets that a group commits."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from wait_until import wait_until

from gantrymq import Message, Producer, SyncProducer
from gantrymq.cli.consume_format import formatter
from gantrymq.cli.main import run
from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import ClientError
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.record import Record, encode_host
from gantrymq.testing.embedded import EmbeddedCluster

COMMAND = [sys.executable, "-m", "gantrymq.cli", "consume"]
TIMEOUT_S = 20.0
#: Number of queues of a topic that its first message creates.
QUEUES = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(enable_property_filter=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def producer(cluster: EmbeddedCluster) -> Iterator[SyncProducer]:
    with SyncProducer(Producer(cluster.name_server, "producers")) as producer:
        yield producer


@pytest.fixture
def topic(request: pytest.FixtureRequest, producer: SyncProducer) -> str:
    """Returns a topic with 40 messages, 10 in each queue: bodies 0 to 39, tags even and odd, a property n."""
    topic = f"{request.node.name.partition('[')[0]}_{time.time_ns():x}"
    queues = producer.queues(topic)
    for number in range(40):
        message = Message(
            topic, b"%d" % number, tags=("even", "odd")[number % 2], keys=f"k{number}", properties={"n": str(number)}
        )
        producer.send(message, queue=queues[number % QUEUES])
    return topic


Consume = Callable[..., bytes]


@pytest.fixture
def consume(cluster: EmbeddedCluster, capsysbinary: pytest.CaptureFixture[bytes]) -> Consume:
    """Runs the command in this process and returns its output."""

    def call(*arguments: str) -> bytes:
        assert run(["consume", "-n", cluster.name_server, *arguments]) == 0
        out, err = capsysbinary.readouterr()
        assert err == b""
        return out

    return call


def numbers(output: bytes) -> list[int]:
    return sorted(map(int, output.split()))


# -- format ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def message() -> MessageExt:
    host = encode_host("127.0.0.1", 10911)
    record = Record(
        size=0, queue_id=3, flag=0, queue_offset=42, physical_offset=77, sys_flag=0, born_timestamp=1000,
        born_host=host, store_timestamp=2000, store_host=host, reconsume_times=1, prepared_transaction_offset=0,
        body_crc=0, body=b"body\xff", topic=b"orders", properties="KEYS\x01ключ\x02TAGS\x01T\x02a\x011\x02".encode(),
    )  # fmt: skip
    return MessageExt(record, "broker-a")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (r"%s\n", b"body\xff\n"),
        ("%t/%b/%p/%o", b"orders/broker-a/3/42"),
        ("%k (%K) %g", "ключ (8) T".encode()),
        ("%S %T %B %r", b"5 2000 1000 1"),
        ("%h", "KEYS=ключ,TAGS=T,a=1".encode()),
        (r"100%% %s%%\x00\t", b"100% body\xff%\0\t"),
        ("%i", b"7F00000100002A9F000000000000004D"),
        ("nothing", b"nothing"),
        ("", b""),
    ],
)
def test_format(text: str, written: bytes, message: MessageExt) -> None:
    assert formatter(text)(message) == written


@pytest.mark.parametrize("text", ["%x", "%", "a%", r"\x1", "%s\\"])
def test_bad_format(text: str) -> None:
    with pytest.raises(ClientError, match="the format"):
        formatter(text)


# -- without a group ------------------------------------------------------------------------------------------------


def test_all_of_it(consume: Consume, topic: str) -> None:
    assert numbers(consume(topic, "-e")) == list(range(40))
    # The first run committed no offsets.
    assert numbers(consume(topic, "-e")) == list(range(40))


def test_queues_keep_their_order(consume: Consume, topic: str) -> None:
    lines = [tuple(map(int, line.split())) for line in consume(topic, "-e", "-f", r"%p %o %s\n").splitlines()]
    for queue_id in range(QUEUES):
        assert [(offset, number) for own, offset, number in lines if own == queue_id] == [
            (offset, QUEUES * offset + queue_id) for offset in range(10)
        ]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["-o", "end"], []),
        (["-o", "7"], range(28, 40)),
        (["-o", "-2"], range(32, 40)),
        (["-o", "-99"], range(40)),
        (["-o", "@0"], range(40)),
        (["-p", "2"], range(2, 40, QUEUES)),
        (["--tags", "odd || other"], range(1, 40, 2)),
        (["--sql", "n BETWEEN 5 AND 7 AND TAGS = 'odd'"], [5, 7]),
        (["-p", "1", "-o", "-3", "-c", "1"], [29]),
    ],
)
def test_which_messages(consume: Consume, topic: str, arguments: list[str], wanted: range) -> None:
    assert numbers(consume(topic, "-e", *arguments)) == list(wanted)


def test_from_a_time_on(consume: Consume, topic: str, producer: SyncProducer) -> None:
    last = max(int(line) for line in consume(topic, "-e", "-f", r"%T\n").split())
    while time.time() * 1000 < last + 2:
        time.sleep(0.001)
    producer.send(Message(topic, b"40"))
    assert numbers(consume(topic, "-e", "-o", f"@{last + 1}")) == [40]


def test_json_lines_can_be_sent_again(
    cluster: EmbeddedCluster, consume: Consume, topic: str, producer: SyncProducer
) -> None:
    producer.send(Message(topic, b"\xff\0", properties={"a": 'quo"te\n'}))
    output = consume(topic, "-e", "--json")
    lines = [json.loads(line) for line in output.splitlines()]
    assert len(lines) == 41
    (odd,) = [line for line in lines if "bodyBase64" in line]
    assert (odd["bodyBase64"], odd["properties"]["a"]) == ("/wA=", 'quo"te\n')
    (one,) = [line for line in lines if line.get("body") == "1"]
    assert (one["keys"], one["tags"], one["topic"], one["brokerName"]) == ("k1", "odd", topic, "broker-a")
    assert (one["queueId"], one["queueOffset"], one["msgId"]) == (1, 0, one["properties"]["UNIQ_KEY"])

    copy = f"{topic}_copy"
    command = [*COMMAND[:-1], "produce", "-n", cluster.name_server, "--json", copy]
    assert subprocess.run(command, input=output, timeout=TIMEOUT_S).returncode == 0
    assert sorted(
        (line.get("body"), line.get("bodyBase64"), line.get("keys"), line.get("tags"), line["msgId"])
        for line in map(json.loads, consume(copy, "-e", "--json").splitlines())
        if line.get("body") is not None
    ) == sorted(
        (line["body"], None, line["keys"], line["tags"], line["msgId"]) for line in lines if "body" in line
    )  # fmt: skip


def test_what_comes_later_until_ctrl_c(cluster: EmbeddedCluster, topic: str, producer: SyncProducer) -> None:
    with subprocess.Popen([*COMMAND, "-n", cluster.name_server, topic, "-o", "-1"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert numbers(b"".join(process.stdout.readline() for _ in range(QUEUES))) == list(range(36, 40))
        producer.send(Message(topic, b"new"))
        assert process.stdout.readline() == b"new\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130


def test_a_reader_that_goes_away_is_no_noise(cluster: EmbeddedCluster, topic: str, producer: SyncProducer) -> None:
    with subprocess.Popen(
        [*COMMAND, "-n", cluster.name_server, topic], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        producer.send(Message(topic, b"for nobody"))
        assert process.wait(TIMEOUT_S) == 1
        assert process.stderr.read() == b""


# -- with a group ---------------------------------------------------------------------------------------------------


async def committed(cluster: EmbeddedCluster, topic: str, group: str) -> int:
    async with AdminClient(cluster.name_server) as admin:
        offsets = [
            await transport_of(admin).api.query_offset(cluster.brokers[0], group, topic, queue_id)
            for queue_id in range(QUEUES)
        ]
    return sum(offset or 0 for offset in offsets)


def test_a_group_goes_on_where_it_was(
    cluster: EmbeddedCluster, consume: Consume, topic: str, producer: SyncProducer
) -> None:
    first = numbers(consume(topic, "-g", topic, "-c", "15"))
    assert len(first) == 15
    assert asyncio.run(committed(cluster, topic, topic)) == 15
    producer.send(Message(topic, b"40"))
    second = numbers(consume(topic, "-g", topic, "-e"))
    assert sorted(first + second) == list(range(41))
    assert consume(topic, "-g", topic, "-e") == b""


def test_a_group_that_selects(cluster: EmbeddedCluster, consume: Consume, topic: str) -> None:
    assert numbers(consume(topic, "-g", topic, "-e", "--tags", "odd")) == list(range(1, 40, 2))
    # Messages that the filter excludes count as consumed.
    assert asyncio.run(committed(cluster, topic, topic)) == 40


def test_ctrl_c_commits_what_is_written(cluster: EmbeddedCluster, topic: str) -> None:
    with subprocess.Popen([*COMMAND, "-n", cluster.name_server, topic, "-g", topic], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert numbers(b"".join(process.stdout.readline() for _ in range(40))) == list(range(40))
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130
    assert asyncio.run(committed(cluster, topic, topic)) == 40


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["--tags", "a", "--sql", "b"], ["-o", "nowhere"], ["-o", "@noon"], ["-g", "g", "-p", "1"], ["-g", "g", "-o", "5"],
     ["-c", "0"]],
)  # fmt: skip
def test_impossible_options_are_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["consume", "t", *arguments]) == 2
    assert "Error" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "no route info for topic 'unknown'"),
        (["-g", "g"], "no route info for topic 'unknown'"),
        (["-f", "%x"], "%x in the format '%x'"),
    ],
)
def test_errors_are_1(
    cluster: EmbeddedCluster, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["consume", "unknown", "-e", "-n", cluster.name_server, *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"gantry: {error}")


def test_a_queue_that_is_not_there(cluster: EmbeddedCluster, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["consume", topic, "-p", "17", "-n", cluster.name_server]) == 1
    assert capsys.readouterr().err == f"gantry: topic {topic} has no queue 17, but 0 to {QUEUES - 1}\n"


def test_a_topic_that_cannot_be_read(cluster: EmbeddedCluster, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["admin", "updateTopicPerm", "-n", cluster.name_server, "-c", "DefaultCluster", "-t", topic, "-p", "2"])
        == 0
    )

    def said() -> bool:
        capsys.readouterr()
        return run(["consume", topic, "-e", "-n", cluster.name_server]) == 1

    wait_until(said)
    assert f"gantry: topic {topic} can't be read: none of its queues has the permission" in capsys.readouterr().err


# -- several topics -------------------------------------------------------------------------------------------------


@pytest.fixture
def topics(request: pytest.FixtureRequest, producer: SyncProducer) -> str:
    """Creates three topics with one message each and returns the prefix of their names."""
    prefix = f"{request.node.name.partition('[')[0]}_{time.time_ns():x}"
    for number in range(3):
        producer.send(Message(f"{prefix}-{number}", b"%d" % number))
    return prefix


def test_several_topics_and_patterns(cluster: EmbeddedCluster, consume: Consume, topics: str) -> None:
    assert numbers(consume(f"{topics}-0", f"{topics}-2", "-e")) == [0, 2]
    assert numbers(consume(f"{topics}-*", "-e")) == [0, 1, 2]
    assert numbers(consume(f"{topics}-[01]", f"{topics}-0", f"{topics}-?", "-e")) == [0, 1, 2]
    assert numbers(consume(f"{topics}-*", "-e", "-g", topics)) == [0, 1, 2]
    assert consume(f"{topics}-*", "-e", "-g", topics) == b""
    # A star does not match system topics.
    assert b"%RETRY%" not in consume("*", "-e", "-f", r"%t\n")


def test_a_pattern_that_no_topic_is_like(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["consume", "nothing-*", "-n", cluster.name_server]) == 1
    assert "gantry: no topic is like 'nothing-*'" in capsys.readouterr().err


def test_iso_times(cluster: EmbeddedCluster, consume: Consume, topic: str) -> None:
    assert len(consume(topic, "-e", "-o", "@2001-01-01T00:00").split()) == 40
    assert consume(topic, "-e", "-o", "@2100-01-01T00:00Z") == b""


def test_sigterm_commits_what_is_written(cluster: EmbeddedCluster, topic: str) -> None:
    with subprocess.Popen([*COMMAND, "-n", cluster.name_server, topic, "-g", topic], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert numbers(b"".join(process.stdout.readline() for _ in range(40))) == list(range(40))
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    assert asyncio.run(committed(cluster, topic, topic)) == 40
