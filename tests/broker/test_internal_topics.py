"""Topics that only the broker writes to.

No request can put a client's message into one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_support import Peer, config
from transaction_support import end_header

from gantrymq.broker.broker import Broker
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.timer import RecallMessageRequestHeader
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.recall_handle import RecallHandle
from gantrymq.protocol.record import encode_host
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED
from gantrymq.protocol.topic_name import SEND_FORBIDDEN_TOPICS, TRANSACTION_HALF_TOPIC
from gantrymq.remoting.client import RemotingClient
from gantrymq.system.clock import now_ms

INTERNAL = [
    *sorted(SEND_FORBIDDEN_TOPICS),
    "rmq_sys_wheel_timer",
    "rmq_sys_gantry_delivery_journal",
    "rmq_sys_REVIVE_LOG_DefaultCluster",
    "rmq_sys_SYNC_BROKER_MEMBER_broker-a",
]


@pytest.mark.parametrize("topic", INTERNAL)
async def test_no_request_writes_to_it(broker: Broker, peer: Peer, topic: str) -> None:
    soon = str(now_ms() + 1000)
    delays: list[dict[str, str]] = [{}, {"DELAY": "1"}, {"TIMER_DELIVER_MS": soon}]
    answers = [await peer.send(topic, b"x", properties=properties) for properties in delays]
    # A message whose properties say that its delay has passed is not delivered either.
    answers.append(await peer.send(topic, b"x", properties={"TIMER_DELIVER_MS": soon, "TIMER_OUT_MS": soon}))
    answers.append(await peer.send(topic, encode_batch([(0, b"x", b"")]), code=RequestCode.SEND_BATCH_MESSAGE))
    answers.append(
        await peer.send(topic, b"x", properties={"TRAN_MSG": "true", "PGROUP": "p"}, sys_flag=TRANSACTION_PREPARED)
    )
    answers.append(
        await peer.send(topic, b"x", code=RequestCode.SEND_REPLY_MESSAGE_V2, properties={"REPLY_TO_CLIENT": "c"})
    )
    for answer in answers:
        assert (answer.code, answer.remark) == (
            ResponseCode.NO_PERMISSION,
            f"Sending message to topic[{topic}] is forbidden.",
        )
    assert broker.store.max_physical_offset == 0


async def test_what_the_broker_noted_about_pops_is_not_recalled(tmp_path: Path, remoting: RemotingClient) -> None:
    broker = Broker(config(tmp_path / "store", recall_message_enable=True))
    await broker.start()
    try:
        peer = Peer(await remoting.connection(broker.address))
        topic = "rmq_sys_REVIVE_LOG_DefaultCluster"
        handle = RecallHandle(topic, "broker-a", now_ms() + 60_000, "t@0@0@g@1@broker-a@ck").encode()
        header = RecallMessageRequestHeader(topic=topic, recall_handle=handle)
        assert (await peer.ask(RequestCode.RECALL_MESSAGE, header)).code == ResponseCode.NO_PERMISSION
        assert broker.store.max_physical_offset == 0
    finally:
        await broker.stop()


@pytest.mark.parametrize("topic", INTERNAL)
async def test_a_forged_half_message_is_not_committed_to_it(broker: Broker, peer: Peer, topic: str) -> None:
    """A forged half message for an internal topic is not committed. An older broker can have stored one."""
    with broker.store.waiting():
        half = broker.store.append(
            broker.store.queue(TRANSACTION_HALF_TOPIC, 0),
            0,
            0,
            now_ms(),
            encode_host("127.0.0.1", 1),
            0,
            b"x",
            encode_properties({"REAL_TOPIC": topic, "REAL_QID": "0", "PGROUP": "producers"}),
            0,
        )
    end = broker.store.max_physical_offset
    header = end_header(half.queue_offset, half.physical_offset, TRANSACTION_COMMIT)
    assert (await peer.ask(RequestCode.END_TRANSACTION, header)).code == ResponseCode.SYSTEM_ERROR
    assert broker.store.max_physical_offset == end
