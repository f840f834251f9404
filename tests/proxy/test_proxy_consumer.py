"""ReceiveMessage and further operations on its messages, with a broker."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from calls import RecordedCall
from consumer_support import Parts, bodies, consuming_parts, new_topic, quick_config, send
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError, NoRouteInfo
from gantrymq.protocol.bodies.subscription_group import GroupRetryPolicy, SubscriptionGroupConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pop import PollingInfoRequestHeader, PollingInfoResponseHeader
from gantrymq.proxy.consumer.handle import Handle
from gantrymq.proxy.consumer.receipt_handle_manager import STOP_S
from gantrymq.proxy.statuses import ProxyError, status_of
from gantrymq.proxy.times import to_duration
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc
from gantrymq.testing.embedded import EmbeddedCluster

LEVELS = " ".join(["1s"] * 18)


@pytest.fixture(scope="module")
def name_server() -> Iterator[str]:
    with EmbeddedCluster(message_delay_level=LEVELS) as cluster:
        yield cluster.name_server


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", request.node.name)[:60] + f"_{time.time_ns():x}"


@pytest.fixture
async def producer(name_server: str) -> AsyncIterator[Producer]:
    async with Producer(name_server, "producers") as producer:
        yield producer


@pytest.fixture
async def topic(producer: Producer, unique: str) -> str:
    return await new_topic(producer, unique)


@pytest.fixture
async def parts(name_server: str) -> AsyncIterator[Parts]:
    async with consuming_parts(name_server) as parts:
        yield parts


@pytest.fixture
def group(unique: str) -> str:
    return f"g_{unique}"


@pytest.fixture
async def orderly_group(name_server: str, group: str) -> str:
    """Creates an orderly group. Its messages are redelivered at once, without the broker's interval for revives."""
    async with AdminClient(name_server) as admin:
        await admin.create_group(SubscriptionGroupConfig(group, consume_message_orderly=True), cluster="DefaultCluster")
    return group


async def nothing_more(parts: Parts, topic: str, group: str) -> None:
    with pytest.raises(ProxyError) as error:
        await parts.receive(topic, group)
    assert (error.value.code, str(error.value)) == (pb.MESSAGE_NOT_FOUND, "no new message")


async def until_received(parts: Parts, topic: str, group: str) -> list[pb.Message]:
    """Returns the next messages, and waits for them if necessary."""

    return await until(lambda: receive_if_any(parts, topic, group, poll_ms=500))


async def receive_if_any(parts: Parts, topic: str, group: str, poll_ms: int = 0) -> list[pb.Message]:
    try:
        return await parts.receive(topic, group, poll_ms=poll_ms)
    except ProxyError as e:
        if e.code != pb.MESSAGE_NOT_FOUND:
            raise
        return []


async def test_receives_and_acknowledges(parts: Parts, producer: Producer, topic: str, group: str) -> None:
    await send(producer, topic, ["1", "2", "3"], tags="t")
    messages = await parts.receive(topic, group)
    assert bodies(messages) == ["1", "2", "3"]
    system = messages[0].system_properties
    assert (system.tag, system.delivery_attempt, system.queue_offset) == ("t", 1, 0)
    assert len(system.receipt_handle.split(" ")) == 9
    answer = await parts.ack(topic, group, *messages)
    assert answer.status == pb.Status(code=pb.OK, message="OK")
    assert [entry.message_id for entry in answer.entries] == [m.system_properties.message_id for m in messages]
    assert {entry.status.code for entry in answer.entries} == {pb.OK}
    await nothing_more(parts, topic, group)


async def test_as_many_as_are_wanted(parts: Parts, producer: Producer, topic: str, group: str) -> None:
    await send(producer, topic, ["1", "2", "3"])
    assert bodies(await parts.receive(topic, group, batch_size=2)) == ["1", "2"]
    assert bodies(await parts.receive(topic, group, batch_size=1000)) == ["3"]


async def test_waits_for_messages(parts: Parts, producer: Producer, topic: str, group: str) -> None:
    receiving = asyncio.ensure_future(parts.receive(topic, group, poll_ms=15_000))
    await asyncio.sleep(0)
    await send(producer, topic, ["late"])
    assert bodies(await receiving) == ["late"]


async def test_comes_again_and_says_how_often(parts: Parts, producer: Producer, topic: str, group: str) -> None:
    await send(producer, topic, ["again"])
    (first,) = await parts.receive(topic, group)
    changed = await parts.change(topic, group, first, 100)
    assert changed.status.code == pb.OK
    assert changed.receipt_handle != first.system_properties.receipt_handle
    (second,) = await until_received(parts, topic, group)
    assert second.topic.name == topic
    assert second.system_properties.delivery_attempt == 2
    assert second.system_properties.message_id == first.system_properties.message_id
    assert (await parts.ack(topic, group, second)).status.code == pb.OK
    await nothing_more(parts, topic, group)


async def test_acknowledged_by_the_new_handle(parts: Parts, producer: Producer, topic: str, group: str) -> None:
    await send(producer, topic, ["once"])
    (message,) = await parts.receive(topic, group)
    message.system_properties.receipt_handle = (await parts.change(topic, group, message, 1000)).receipt_handle
    assert (await parts.ack(topic, group, message)).status.code == pb.OK
    await asyncio.sleep(1.5)  # There is no event for a message that does not arrive.
    await nothing_more(parts, topic, group)


async def test_a_group_has_so_many_attempts(
    parts: Parts, producer: Producer, topic: str, group: str, name_server: str
) -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_group(SubscriptionGroupConfig(group, retry_max_times=0), cluster="DefaultCluster")
    await send(producer, topic, ["bad"])
    (message,) = await parts.receive(topic, group)
    await parts.change(topic, group, message, 100)

    async def letters() -> list[pb.Message]:
        assert await receive_if_any(parts, topic, group) == []
        return await dead_letters(parts, group)

    (letter,) = await until(letters)
    assert letter.body == b"bad"


async def dead_letters(parts: Parts, group: str) -> list[pb.Message]:
    """Returns the dead-letter messages of a group."""
    call = RecordedCall("PullMessage")
    try:
        await parts.brokers.routes.refresh(f"%DLQ%{group}")
    except NoRouteInfo:
        return []
    queue = pb.MessageQueue(topic=pb.Resource(name=f"%DLQ%{group}"), broker=pb.Broker(name="broker-a"))
    await parts.pulling.pull_message(
        call, rpc.PullMessageRequest(group=pb.Resource(name="reader"), message_queue=queue, batch_size=32)
    )
    return [response.message for response in call.written if response.WhichOneof("content") == "message"]


async def test_a_client_gives_a_message_up(parts: Parts, producer: Producer, topic: str, group: str) -> None:
    await send(producer, topic, ["bad"])
    (message,) = await parts.receive(topic, group)
    request = rpc.ForwardMessageToDeadLetterQueueRequest(
        group=pb.Resource(name=group),
        topic=pb.Resource(name=topic),
        receipt_handle=message.system_properties.receipt_handle,
        message_id=message.system_properties.message_id,
    )
    answer = await parts.acks.forward_message_to_dead_letter_queue(RecordedCall(), request)
    assert answer.status.code == pb.OK

    (letter,) = await until(lambda: dead_letters(parts, group))
    assert letter.body == b"bad"
    assert (await parts.ack(topic, group, message)).status.code == pb.OK
    await nothing_more(parts, topic, group)


@pytest.mark.parametrize(("expression", "sql"), [("a || c", False), ("TAGS in ('a', 'c')", True)], ids=["tags", "sql"])
async def test_filters(parts: Parts, producer: Producer, topic: str, group: str, expression: str, sql: bool) -> None:
    for tag in "abcd":
        await send(producer, topic, [tag], tags=tag)
    assert bodies(await parts.receive(topic, group, expression=expression, sql=sql)) == ["a", "c"]


async def test_another_tag_of_the_same_hash_code_is_acknowledged(
    parts: Parts, producer: Producer, topic: str, group: str
) -> None:
    await send(producer, topic, ["other"], tags="BB")
    with pytest.raises(ProxyError, match="no match message"):
        await parts.receive(topic, group, expression="Aa")
    await send(producer, topic, ["mine"], tags="Aa")
    assert bodies(await parts.receive(topic, group, expression="Aa")) == ["mine"]


async def test_in_order(parts: Parts, producer: Producer, topic: str, orderly_group: str) -> None:
    group = orderly_group
    await send(producer, topic, ["1", "2", "3"], sharding_key="g")
    first, second = await parts.receive(topic, group, batch_size=2, attempt_id="x")
    assert bodies([first, second]) == ["1", "2"]
    assert first.system_properties.message_group == "g"
    # Further messages are blocked. A client that lost the response gets the same messages again.
    await nothing_more(parts, topic, group)
    assert bodies(await parts.receive(topic, group, batch_size=2, attempt_id="x")) == ["1", "2"]
    again = await parts.receive(topic, group, batch_size=2, attempt_id="x")
    assert [message.system_properties.delivery_attempt for message in again] == [1, 1]
    await parts.ack(topic, group, again[0])
    await nothing_more(parts, topic, group)
    await parts.ack(topic, group, again[1])
    assert bodies(await parts.receive(topic, group)) == ["3"]


async def test_goes_on_with_the_one_that_failed(
    parts: Parts, producer: Producer, topic: str, orderly_group: str
) -> None:
    await send(producer, topic, ["1", "2"])
    (first,) = await parts.receive(topic, orderly_group, batch_size=1)
    await parts.change(topic, orderly_group, first, 100)
    first, second = await until_received(parts, topic, orderly_group)
    assert bodies([first, second]) == ["1", "2"]
    assert (first.system_properties.delivery_attempt, second.system_properties.delivery_attempt) == (2, 1)


# -- slow consumers ---------------------------------------------------------------------------------------------------


async def test_a_slow_consumer_keeps_its_message(name_server: str, producer: Producer, topic: str, group: str) -> None:
    config = quick_config()
    config.default_invisible_time_mills, config.renew_ahead_time_millis = 2000, 1500
    async with consuming_parts(name_server, config) as parts:
        parts.join(group)
        await send(producer, topic, ["slow"])
        (message,) = await parts.receive(topic, group, auto_renew=True, invisible_ms=0)
        (entry,) = parts.receipt_handles.in_flight.remove_all()
        parts.receipt_handles.in_flight.add(entry)
        await until(lambda: entry.renew_times >= 1)
        assert entry.handle.receipt.invisible_time == 60_000
        # The client has the first handle, whose invisible duration ends soon.
        await asyncio.sleep(2.1)
        await nothing_more(parts, topic, group)
        assert (await parts.ack(topic, group, message)).status.code == pb.OK
        assert len(parts.receipt_handles.in_flight) == 0
        assert (await parts.ack(topic, group, message)).status.code == pb.INVALID_RECEIPT_HANDLE


async def test_an_error_that_nobody_foresaw_ends_no_renewal(
    monkeypatch: pytest.MonkeyPatch, name_server: str, producer: Producer, topic: str, group: str
) -> None:
    config = quick_config()
    config.default_invisible_time_mills, config.renew_ahead_time_millis = 60_000, 60_000
    async with consuming_parts(name_server, config) as parts:
        change = parts.requests.change_invisible_time
        failed = []

        async def change_later(handle: Handle, group: str, topic: str, invisible_ms: int) -> Handle:
            if len(failed) < 2:
                failed.append(handle)
                raise RuntimeError("nobody foresaw it")
            return await change(handle, group, topic, invisible_ms)

        monkeypatch.setattr(parts.requests, "change_invisible_time", change_later)
        parts.join(group)
        await send(producer, topic, ["slow"])
        (message,) = await parts.receive(topic, group, auto_renew=True, invisible_ms=0)
        (entry,) = parts.receipt_handles.in_flight.remove_all()
        parts.receipt_handles.in_flight.add(entry)
        await until(lambda: entry.renew_times)
        assert len(failed) == 2
        assert (await parts.ack(topic, group, message)).status.code == pb.OK


async def test_what_a_client_had_is_for_others_when_it_goes(
    parts: Parts, producer: Producer, topic: str, orderly_group: str
) -> None:
    parts.join(orderly_group)
    await send(producer, topic, ["left"])
    await parts.receive(topic, orderly_group, auto_renew=True)
    assert len(parts.receipt_handles.in_flight) == 1
    parts.clients.remove("client-1")
    assert len(parts.receipt_handles.in_flight) == 0
    (message,) = await until_received(parts, topic, orderly_group)
    assert (message.body, message.system_properties.delivery_attempt) == (b"left", 2)


async def test_what_clients_have_is_for_others_when_the_proxy_stops(
    parts: Parts, name_server: str, producer: Producer, topic: str, orderly_group: str
) -> None:
    await send(producer, topic, ["left"])
    async with consuming_parts(name_server) as stopping:
        stopping.join(orderly_group)
        await stopping.receive(topic, orderly_group, auto_renew=True)
    assert bodies(await until_received(parts, topic, orderly_group)) == ["left"]


async def test_stops_though_a_broker_says_nothing(
    name_server: str, producer: Producer, topic: str, orderly_group: str
) -> None:
    await send(producer, topic, ["left"])
    async with consuming_parts(name_server) as parts:
        parts.join(orderly_group)
        await parts.receive(topic, orderly_group, auto_renew=True)
        (entry,) = parts.receipt_handles.in_flight.remove_all()
        # The return waits for this renewal, which never completes.
        entry.renewal = asyncio.get_running_loop().create_future()
        parts.receipt_handles.give_back([entry])
        async with asyncio.timeout(STOP_S + 5):
            await parts.receipt_handles.stop()


async def test_a_client_that_nobody_knows_gets_nothing_to_keep(
    parts: Parts, producer: Producer, topic: str, orderly_group: str
) -> None:
    await send(producer, topic, ["1"])
    with pytest.raises(ProxyError) as error:
        await parts.receive(topic, orderly_group, auto_renew=True)
    assert (error.value.code, str(error.value)) == (pb.MESSAGE_NOT_FOUND, "The client [client-1] is disconnected.")
    assert bodies(await until_received(parts, topic, orderly_group)) == ["1"]


async def test_a_message_that_is_given_hours_comes_again(
    name_server: str, producer: Producer, topic: str, group: str
) -> None:
    config = quick_config()
    config.default_invisible_time_mills, config.renew_ahead_time_millis, config.renew_max_time_millis = 5000, 4900, 0
    async with consuming_parts(name_server, config) as parts, AdminClient(name_server) as admin:
        policy = GroupRetryPolicy(customized_retry_policy={"next": [1, 1, 300]})
        await admin.create_group(SubscriptionGroupConfig(group, group_retry_policy=policy), cluster="DefaultCluster")
        parts.join(group)
        await send(producer, topic, ["forgotten"])
        await parts.receive(topic, group, auto_renew=True)
        await until(lambda: not len(parts.receipt_handles.in_flight))
        (message,) = await until_received(parts, topic, group)
        assert message.system_properties.delivery_attempt == 2


# -- disconnected clients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [0, 1, 2])
async def test_what_was_not_written_is_for_others(
    parts: Parts, producer: Producer, topic: str, orderly_group: str, written: int
) -> None:
    parts.join(orderly_group)
    await send(producer, topic, ["1", "2"])
    call = RecordedCall(cancel_at=written)
    with pytest.raises(asyncio.CancelledError):
        await parts.receive(topic, orderly_group, call=call, auto_renew=True)
    # The first written response is the status.
    received = [response.message for response in call.written[1:]]
    assert len(parts.receipt_handles.in_flight) == len(received)
    if received:
        assert (await parts.ack(topic, orderly_group, *received)).status.code == pb.OK
    rest = ["1", "2"][len(received) :]
    assert bodies(await until_received(parts, topic, orderly_group)) == rest


async def test_what_comes_when_nobody_waits_any_more_is_for_others(
    parts: Parts, producer: Producer, topic: str, orderly_group: str
) -> None:
    receiving = asyncio.ensure_future(parts.receive(topic, orderly_group, poll_ms=15_000, invisible_ms=60_000))

    async def is_waiting() -> bool:
        header = PollingInfoRequestHeader(consumer_group=orderly_group, topic=topic, queue_id=-1)
        request = RemotingCommand.request(RequestCode.POLLING_INFO, header)
        answer = await parts.brokers.remoting.call(await parts.brokers.master("broker-a"), request)
        return answer.read_header(PollingInfoResponseHeader).polling_num > 0

    await until(is_waiting)
    receiving.cancel()
    await asyncio.wait([receiving])
    await send(producer, topic, ["late"])
    assert bodies(await until_received(parts, topic, orderly_group)) == ["late"]


# -- bad requests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": ""}, pb.ILLEGAL_TOPIC),
        ({"topic": "rmq_sys_x"}, pb.ILLEGAL_TOPIC),
        ({"group": ""}, pb.ILLEGAL_CONSUMER_GROUP),
        ({"invisible_ms": 999_999_999}, pb.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_ms": -1}, pb.ILLEGAL_INVISIBLE_TIME),
        ({"expression": "||"}, pb.ILLEGAL_FILTER_EXPRESSION),
        ({"expression": "", "sql": True}, pb.ILLEGAL_FILTER_EXPRESSION),
        ({"expression": "a >", "sql": True}, pb.ILLEGAL_FILTER_EXPRESSION),
        ({"batch_size": 0}, pb.BAD_REQUEST),
        ({"batch_size": -1}, pb.BAD_REQUEST),
    ],
    ids=str,
)
async def test_bad_requests(parts: Parts, topic: str, group: str, changes: dict[str, object], code: pb.Code) -> None:
    asked: dict[str, object] = {"topic": topic, "group": group, **changes}
    with pytest.raises(GantryError) as error:
        await parts.receive(**asked)  # type: ignore[arg-type]
    # The status code that the client gets.
    assert status_of(error.value).code == code


async def test_too_short_a_time(parts: Parts, topic: str, group: str) -> None:
    parts.config.min_invisible_time_mills_for_recv = 10_000
    with pytest.raises(ProxyError, match="the invisibleTime is too small"):
        await parts.receive(topic, group, invisible_ms=9999)


@pytest.mark.parametrize(
    ("version", "code"), [("5.0.3", pb.ILLEGAL_POLLING_TIME), ("5.0.2", pb.BAD_REQUEST), ("", pb.BAD_REQUEST)]
)
async def test_too_little_time_to_wait(parts: Parts, topic: str, group: str, version: str, code: pb.Code) -> None:
    parts.config.grpc_client_consumer_min_long_polling_timeout_millis = 5000
    with pytest.raises(ProxyError) as error:
        await parts.receive(topic, group, call=RecordedCall(remaining_ms=4999, version=version))
    assert error.value.code == code


async def test_no_such_topic(parts: Parts, unique: str, group: str) -> None:
    with pytest.raises(NoRouteInfo):
        await parts.receive(f"no_{unique}", group)


@pytest.mark.parametrize(
    "handle", ["", "x", "1 2 3 4 0 broker-a 0 0", "{0} {0} 60000 0 0 nobody 0 0 0", "0 {0} 60000 0 9 broker-a 0 0 0"]
)
async def test_handles_of_no_message(parts: Parts, topic: str, group: str, handle: str) -> None:
    message = pb.Message()
    message.system_properties.receipt_handle = handle.format(time.time_ns() // 1_000_000)
    (entry,) = (await parts.ack(topic, group, message)).entries
    assert entry.status.code == pb.INVALID_RECEIPT_HANDLE
    with pytest.raises(ProxyError) as error:
        await parts.change(topic, group, message, 1000)
    assert error.value.code == pb.INVALID_RECEIPT_HANDLE


async def test_each_entry_has_its_status(parts: Parts, producer: Producer, topic: str, group: str) -> None:
    await send(producer, topic, ["1"])
    (message,) = await parts.receive(topic, group)
    bad = pb.Message(system_properties=pb.SystemProperties(message_id="other", receipt_handle="x"))
    answer = await parts.ack(topic, group, bad, message)
    assert answer.status == pb.Status(code=pb.MULTIPLE_RESULTS, message="MULTIPLE_RESULTS")
    assert [entry.status.code for entry in answer.entries] == [pb.INVALID_RECEIPT_HANDLE, pb.OK]
    assert [entry.message_id for entry in answer.entries] == ["other", message.system_properties.message_id]


async def test_nothing_to_acknowledge(parts: Parts, topic: str, group: str) -> None:
    with pytest.raises(ProxyError, match="ack message result is empty"):
        await parts.ack(topic, group)


async def test_times_no_broker_takes(parts: Parts, producer: Producer, topic: str, group: str) -> None:
    await send(producer, topic, ["1"])
    (message,) = await parts.receive(topic, group)
    for seconds in (-1, 2**62):
        request = rpc.ChangeInvisibleDurationRequest(
            group=pb.Resource(name=group),
            topic=pb.Resource(name=topic),
            receipt_handle=message.system_properties.receipt_handle,
            invisible_duration=to_duration(1000 * seconds),
        )
        with pytest.raises(ProxyError) as error:
            await parts.acks.change_invisible_duration(RecordedCall(), request)
        assert error.value.code == pb.ILLEGAL_INVISIBLE_TIME
