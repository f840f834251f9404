from __future__ import annotations

from request_caches import send_targets

from gantrymq.client.producing.send_command import rounded_timeout, send_command
from gantrymq.protocol import send_request
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.headers.send import SendMessageRequestHeaderV2
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.private_fields import TIMEOUT_FIELD
from gantrymq.protocol.properties import encode_properties

QUEUE = MessageQueue("topic", "broker-a", 3)
PROPERTIES = encode_properties({"TAGS": "ä", "UNIQ_KEY": "0" * 32})


def received(command: RemotingCommand) -> RemotingCommand:
    (request,) = FrameReader().feed(command.encode())
    return request


def test_header_says_what_a_typed_header_would() -> None:
    request = received(send_command("group", QUEUE, b"body", PROPERTIES, 1_700_000_000_123, flag=7, sys_flag=1))
    assert request.code == RequestCode.SEND_MESSAGE_V2
    assert request.body == b"body"
    assert request.read_header(SendMessageRequestHeaderV2) == SendMessageRequestHeaderV2(
        producer_group="group",
        topic="topic",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=1,
        born_timestamp=1_700_000_000_123,
        flag=7,
        properties=PROPERTIES.decode(),
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name="broker-a",
    )


def test_unit_mode() -> None:
    request = received(send_command("group", QUEUE, b"body", b"", 1, unit_mode=True))
    assert request.read_header(SendMessageRequestHeaderV2).unit_mode


def test_batches_have_their_own_code() -> None:
    request = received(send_command("group", QUEUE, b"batch", b"", 1, batch=True))
    assert request.code == RequestCode.SEND_BATCH_MESSAGE
    header = request.read_header(SendMessageRequestHeaderV2)
    assert header.batch
    assert header.properties is None


def test_has_the_shape_that_brokers_read_fastest() -> None:
    command = send_command("shape", QUEUE, b"body", PROPERTIES, 1_700_000_000_123)
    first = send_request.decode_send_request(received(command))
    # The second time, the broker takes the fields before the born time from its cache.
    assert any(target.producer_group == "shape" for target in send_targets.values())
    assert send_request.decode_send_request(received(command)) == first


def test_hooks_may_add_fields() -> None:
    command = send_command("group", QUEUE, b"body", PROPERTIES, 1)
    command.ext_fields["AccessKey"] = "key"
    fields = received(command).ext_fields
    assert fields["AccessKey"] == "key"
    assert fields["b"] == "topic"


def test_replies_and_retries() -> None:
    reply = received(send_command("group", QUEUE, b"body", PROPERTIES, 1, reply=True))
    assert reply.code == RequestCode.SEND_REPLY_MESSAGE_V2
    retry = received(
        send_command("group", QUEUE, b"body", PROPERTIES, 1, reconsume_times=3, max_reconsume_times=16)
    ).read_header(SendMessageRequestHeaderV2)
    assert (retry.reconsume_times, retry.max_reconsume_times) == (3, 16)


def test_the_timeout_is_named_only_if_it_is_not_the_default() -> None:
    def field(timeout_ms: int) -> str | None:
        command = send_command("group", QUEUE, b"body", b"", 1, timeout_ms=timeout_ms)
        return command.ext_fields.get(TIMEOUT_FIELD)

    assert field(3000) is None
    # A moment after the call, slightly less than the default timeout is left.
    assert field(2993) is None
    assert field(10_000) == "10000"
    assert field(9_400) == "10000"
    assert field(750) == "750"


def test_timeouts_make_few_distinct_headers() -> None:
    headers = {rounded_timeout(timeout_ms) for timeout_ms in range(1, 100_000)}
    assert len(headers) < 20
    # A broker responds after two thirds of the timeout in the request.
    assert all(rounded_timeout(timeout_ms) * 2 / 3 < timeout_ms for timeout_ms in range(70, 100_000))
