"""Traffic that fills all metrics of a broker, for this project's broker and for Apache's."""

from __future__ import annotations

from administration import commit, send
from pop_support import PopPeer
from transaction_support import Producer

from gantrymq.protocol.bodies.heartbeat import CONSUME_POP, ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.sys_flag import TRANSACTION_ROLLBACK
from gantrymq.remoting.client import RemotingClient

TOPIC = "orders"
PULLERS = "consumers"
POPPERS = "poppers"


async def fill_metrics(port: int, remoting: RemotingClient) -> None:
    """Sends, delays, pulls, pops, rejects, commits and rolls back messages on the broker at `port`."""
    peer = PopPeer(await remoting.connection(f"127.0.0.1:{port}"))
    data = HeartbeatData(
        "traffic",
        [ProducerData("producers")],
        [
            ConsumerData(PULLERS, subscription_data_set=[SubscriptionData.parse(TOPIC, "*")]),
            ConsumerData(POPPERS, CONSUME_POP, subscription_data_set=[SubscriptionData.parse(TOPIC, "*")]),
        ],
    )
    header = CreateTopicRequestHeader(
        topic=TOPIC,
        default_topic="TBW102",
        read_queue_nums=1,
        write_queue_nums=1,
        perm=6,
    )
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
    group = encode_json(SubscriptionGroupConfig(PULLERS))
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)).code == 0
    await send(peer, 4, topic=TOPIC)
    await peer.ask(RequestCode.HEART_BEAT, body=encode_json(data))
    for properties in (
        {"__SHARDINGKEY": "one"},
        {"DELAY": "1"},
        {"TIMER_DELAY_SEC": "1"},
        {"TIMER_DELAY_SEC": "3600"},
    ):
        response = await peer.send(TOPIC, b"body", properties=properties)
        assert response.code == 0, response.remark
    producer = await Producer().connect(port)
    halves = [await producer.prepare(TOPIC, b"half") for _ in range(3)]
    await producer.end(halves[0])
    await producer.end(halves[1], TRANSACTION_ROLLBACK)
    await commit(peer, 0, group=PULLERS, topic=TOPIC)
    pulled = list(decode_messages((await peer.pull(TOPIC, max_msg_nums=2, group=PULLERS)).body))
    dead = ConsumerSendMsgBackRequestHeader(
        offset=pulled[0].commit_log_offset, group=PULLERS, delay_level=-1, origin_topic=TOPIC
    )
    assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, dead)).code == 0
    # The first pop is acknowledged. The second one is revived, because its invisible duration ends.
    for message in await peer.messages(TOPIC, group=POPPERS, count=1):
        await peer.ack(message, POPPERS)
    assert await peer.messages(TOPIC, group=POPPERS, count=1, invisible_ms=1000)
    await producer.client.close()
