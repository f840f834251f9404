"""Message bodies that contain the bytes of a record.

A client that names their position in the log gains nothing.
"""

from __future__ import annotations

import pytest
from administration import beat, create_group
from broker_support import Peer

from gantrymq.broker.broker import Broker
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.message_id import decode_offset_message_id, encode_offset_message_id
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import encode_host, encode_record

#: Size of a record before its body, in bytes.
TO_BODY = 88
HOST = encode_host("127.0.0.1", 1)
REAL = {"REAL_TOPIC": "secret", "REAL_QID": "0", "PGROUP": "producers"}


async def forge(peer: Peer, topic: str, properties: dict[str, str], queue_offset: int = 0) -> int:
    """Sends a message whose body looks like a record of `topic`, and returns the log offset of that record.

    The offset is computed from two message ids, because these contain log offsets.
    """
    places = [place_of(await peer.send("orders", b"where are we?")) for _ in range(2)]
    at = places[1] + (places[1] - places[0]) + TO_BODY
    record = encode_record(
        0, 0, queue_offset, at, 0, 0, HOST, 0, HOST, 0, 0, b"forged", topic.encode(), encode_properties(properties)
    )
    assert place_of(await peer.send("orders", record)) + TO_BODY == at
    return at


def place_of(sent: RemotingCommand) -> int:
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    return decode_offset_message_id(sent.ext_fields["msgId"].split(",")[-1])[1]


async def test_is_not_shown(peer: Peer, broker: Broker) -> None:
    at = await forge(peer, "secret", {})
    # Everything in this record is valid, except that no queue refers to it.
    assert broker.store.read_record(at).body == b"forged"
    answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, fields={"offset": str(at)})
    assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")
    assert f"what is at {at} is in no queue" in str(answer.remark)


async def test_is_not_shown_where_its_queue_has_another_message(peer: Peer, broker: Broker) -> None:
    await peer.send("secret", b"real")
    at = await forge(peer, "secret", {})
    answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, fields={"offset": str(at)})
    assert answer.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("there_are_halves", [False, True])
async def test_is_not_committed(peer: Peer, broker: Broker, there_are_halves: bool) -> None:
    if there_are_halves:
        await peer.send("orders", b"half", properties={"TRAN_MSG": "true", "PGROUP": "producers"})
    at = await forge(peer, "RMQ_SYS_TRANS_HALF_TOPIC", REAL)
    end = {"producerGroup": "producers", "tranStateTableOffset": "0", "commitLogOffset": str(at), "msgId": "K"}
    for verdict in ("8", "12"):
        answer = await peer.ask(RequestCode.END_TRANSACTION, fields=end | {"commitOrRollback": verdict})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "Find prepared transaction message failed" in str(answer.remark)
    assert broker.store.find_queue("secret", 0) is None
    assert not broker.features.transactions.ops


async def test_is_not_given_back(peer: Peer, broker: Broker) -> None:
    await create_group(peer, "readers")
    at = await forge(peer, "secret", {})
    end = broker.store.max_physical_offset
    back = {"offset": str(at), "group": "readers", "delayLevel": "0"}
    answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields=back)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert broker.store.max_physical_offset == end


async def test_is_not_asked_about_again(peer: Peer, broker: Broker) -> None:
    at = await forge(peer, "TRANS_CHECK_MAX_TIME_TOPIC", REAL)
    message_id = encode_offset_message_id(HOST, at)
    answer = await peer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, fields={"msgId": message_id})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert broker.store.queue("RMQ_SYS_TRANS_HALF_TOPIC", 0).max_offset == 0


async def test_is_not_consumed(peer: Peer, broker: Broker) -> None:
    await create_group(peer, "readers")
    await beat(peer, "c", "readers")
    at = await forge(peer, "secret", {})
    asked = {"consumerGroup": "readers", "clientId": "c", "msgId": encode_offset_message_id(HOST, at)}
    answer = await peer.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields=asked)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "can not find message by the offset" in str(answer.remark)


async def test_a_message_in_no_queue_is_not_shown(peer: Peer) -> None:
    """A message that is in no queue is not returned.

    It has the flag of a half message but no transaction, so no consumer receives it either.
    """
    place = place_of(await peer.send("orders", b"x", sys_flag=4))
    answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, fields={"offset": str(place)})
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_messages_are_shown_wherever_they_wait(peer: Peer) -> None:
    batch = encode_batch([(0, b"first", b""), (0, b"last of a batch", b"")])
    sent = {
        b"at once": await peer.send("orders", b"at once"),
        b"last of a batch": await peer.send("orders", batch, code=RequestCode.SEND_BATCH_MESSAGE),
        b"a second": await peer.send("orders", b"a second", properties={"DELAY": "2"}),
        b"an hour": await peer.send("orders", b"an hour", properties={"TIMER_DELAY_SEC": "3600"}),
        b"a half": await peer.send("orders", b"a half", properties={"TRAN_MSG": "true", "PGROUP": "producers"}),
    }
    for body, answer in sent.items():
        shown = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, fields={"offset": str(place_of(answer))})
        assert [message.body for message in decode_messages(shown.body)] == [body]
