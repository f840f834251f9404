"""A valid request with all fields for each request code of the broker.

All requests concern one topic and one group.
"""

from __future__ import annotations

from typing import NamedTuple

from gantrymq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo
from gantrymq.protocol.bodies.connection import CheckClientRequestBody
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.protocol.bodies.pop import BatchAck, BatchAckBody
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.half_ranges import HalfRange, encode_half_ranges


class Places(NamedTuple):
    """Positions of messages of the topic, as (physical offset, offset message id).

    There is a normal message, a half message of the producer group `producers`, and a half message in
    `TRANS_CHECK_MAX_TIME_TOPIC`.
    """

    message: tuple[int, str]
    half: tuple[int, str]
    half_queue_offset: int
    discarded: tuple[int, str]


class Asked(NamedTuple):
    fields: dict[str, str]
    body: bytes = b""


def every_request(topic: str, group: str, places: Places) -> dict[int, Asked]:
    """Returns the requests by code.

    Each one is valid, so only missing permissions can cause a refusal.
    """
    code = RequestCode
    both = {"topic": topic, "consumerGroup": group}
    queue = {"topic": topic, "queueId": "0"}
    of_group = {"group": group, "topic": topic}
    sent = {"producerGroup": "producers", **queue, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
    sent |= {"sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0", "properties": "a\x01b\x02"}
    short = dict(zip("abcdefghi", ("producers", topic, "TBW102", "4", "0", "0", "1700000000000", "0", ""), strict=True))
    pulled = both | {"queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0"}
    pulled |= {"suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*"}
    popped = both | {"queueId": "0", "maxMsgNums": "1", "invisibleTime": "60000", "pollTime": "0", "initMode": "0"}
    acked = both | {"queueId": "0", "offset": "0", "extraInfo": "0 0 60000 0 0 broker-a 0 0"}
    locked = encode_json(
        {"consumerGroup": group, "clientId": "c", "mqSet": [{"topic": topic, "brokerName": "broker-a", "queueId": 0}]}
    )
    consumer = ConsumerData(group, subscription_data_set=[SubscriptionData(topic)])
    acl = AclInfo("User:eve", [PolicyInfo(entries=[PolicyEntryInfo("*", ["All"], [], "Allow")])])
    mode = {"topic": topic, "consumerGroup": group}
    no_fields = Asked({})
    new_topic = {"topicName": topic, "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
    subscription = {"action": "PARTIAL_ADD", "clientId": "c", "group": group, "topic": topic}
    return {
        code.SEND_MESSAGE: Asked(sent, b"x"),
        code.SEND_MESSAGE_V2: Asked(short, b"x"),
        code.SEND_BATCH_MESSAGE: Asked(short, b"x"),
        code.SEND_REPLY_MESSAGE: Asked(sent, b"x"),
        code.SEND_REPLY_MESSAGE_V2: Asked(short, b"x"),
        code.RECALL_MESSAGE: Asked({"topic": topic, "recallHandle": "x"}),
        code.END_TRANSACTION: Asked(
            {
                "topic": topic,
                "producerGroup": "producers",
                "tranStateTableOffset": str(places.half_queue_offset),
                "commitLogOffset": str(places.half[0]),
                "commitOrRollback": "8",
                "msgId": "KEY",
            }
        ),
        code.END_HALF_MESSAGES: Asked(
            {"producerGroup": "producers", "topics": topic, "commitOrRollback": "8"},
            encode_half_ranges([HalfRange(places.half_queue_offset, places.half[0], 1)]),
        ),
        code.GET_WRITER_QUEUES: Asked({"topic": topic, "writer": "write-0", "batch": "0"}),
        code.HEART_BEAT: Asked({}, encode_json(HeartbeatData("c", [ProducerData("producers")], [consumer]))),
        code.UNREGISTER_CLIENT: Asked({"clientID": "c", "consumerGroup": group}),
        code.CHECK_CLIENT_CONFIG: Asked({}, encode_json(CheckClientRequestBody("c", group, SubscriptionData(topic)))),
        code.GET_CONSUMER_LIST_BY_GROUP: Asked({"consumerGroup": group}),
        code.LOCK_BATCH_MQ: Asked({}, locked),
        code.UNLOCK_BATCH_MQ: Asked({}, locked),
        code.PULL_MESSAGE: Asked(pulled),
        code.LITE_PULL_MESSAGE: Asked(pulled),
        code.QUERY_CONSUMER_OFFSET: Asked(both | {"queueId": "0"}),
        code.UPDATE_CONSUMER_OFFSET: Asked(both | {"queueId": "0", "commitOffset": "1"}),
        code.CONSUMER_SEND_MSG_BACK: Asked({"offset": str(places.message[0]), "group": group, "delayLevel": "0"}),
        code.QUERY_ASSIGNMENT: Asked({}, encode_json(mode | {"clientId": "c"})),
        code.POP_MESSAGE: Asked(popped),
        code.PEEK_MESSAGE: Asked(popped),
        code.NOTIFICATION: Asked(popped),
        code.POLLING_INFO: Asked(popped),
        code.ACK_MESSAGE: Asked(acked),
        code.BATCH_ACK_MESSAGE: Asked(
            {}, encode_json(BatchAckBody("broker-a", [BatchAck(group, topic, "0", 0, 0, 0, 1, 60_000, b"\x01")]))
        ),
        code.CHANGE_MESSAGE_INVISIBLETIME: Asked(acked | {"invisibleTime": "1000"}),
        code.POP_LITE_MESSAGE: Asked(
            {
                "clientId": "c",
                "consumerGroup": group,
                "topic": topic,
                "maxMsgNum": "1",
                "invisibleTime": "60000",
                "pollTime": "0",
                "bornTime": "0",
            }
        ),
        code.LITE_SUBSCRIPTION_CTL: Asked(
            {}, encode_json({"subscriptionSet": [subscription | {"liteTopicSet": ["one"]}]})
        ),
        code.GET_BROKER_LITE_INFO: no_fields,
        code.GET_PARENT_TOPIC_INFO: Asked({"topic": topic}),
        code.GET_LITE_TOPIC_INFO: Asked({"parentTopic": topic, "liteTopic": "one"}),
        code.GET_LITE_CLIENT_INFO: Asked({"parentTopic": topic, "group": group, "clientId": "c", "maxCount": "1"}),
        code.GET_LITE_GROUP_INFO: Asked({"group": group, "topK": "1"}),
        code.TRIGGER_LITE_DISPATCH: Asked({"group": group}),
        code.QUERY_MESSAGE: Asked(
            {"topic": topic, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9999999999999"}
        ),
        code.VIEW_MESSAGE_BY_ID: Asked({"offset": str(places.message[0]), "topic": topic}),
        code.CONSUME_MESSAGE_DIRECTLY: Asked(both | {"clientId": "c", "msgId": places.message[1]}),
        code.RESUME_CHECK_HALF_MESSAGE: Asked({"topic": topic, "msgId": places.discarded[1]}),
        code.QUERY_CONSUME_QUEUE: Asked(both | {"queueId": "0", "index": "0", "count": "1"}),
        code.SEARCH_OFFSET_BY_TIMESTAMP: Asked(queue | {"timestamp": "0"}),
        code.GET_MAX_OFFSET: Asked(queue),
        code.GET_MIN_OFFSET: Asked(queue),
        code.GET_EARLIEST_MSG_STORETIME: Asked(queue),
        code.UPDATE_AND_CREATE_TOPIC: Asked(
            {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6"}
        ),
        code.UPDATE_AND_CREATE_TOPIC_LIST: Asked({}, encode_json({"topicConfigList": [new_topic]})),
        code.DELETE_TOPIC_IN_BROKER: Asked({"topic": topic}),
        code.GET_TOPIC_CONFIG: Asked({"topic": topic}),
        code.GET_TOPIC_STATS_INFO: Asked({"topic": topic}),
        code.QUERY_TOPIC_CONSUME_BY_WHO: Asked({"topic": topic}),
        code.GET_ALL_TOPIC_CONFIG: no_fields,
        code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: no_fields,
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Asked({}, encode_json({"groupName": group, "retryMaxTimes": 3})),
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Asked(
            {}, encode_json({"groupConfigList": [{"groupName": group, "retryMaxTimes": 3}]})
        ),
        code.DELETE_SUBSCRIPTIONGROUP: Asked({"groupName": group, "cleanOffset": "true"}),
        code.GET_SUBSCRIPTIONGROUP_CONFIG: Asked({"group": group}),
        code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: no_fields,
        code.GET_CONSUMER_CONNECTION_LIST: Asked({"consumerGroup": group}),
        code.GET_CONSUMER_RUNNING_INFO: Asked({"consumerGroup": group, "clientId": "c"}),
        code.QUERY_TOPICS_BY_CONSUMER: Asked({"group": group}),
        code.QUERY_SUBSCRIPTION_BY_CONSUMER: Asked(of_group),
        code.QUERY_CONSUME_TIME_SPAN: Asked(of_group),
        code.GET_CONSUME_STATS: Asked(both),
        code.QUERY_CORRECTION_OFFSET: Asked({"topic": topic, "compareGroup": group, "filterGroups": group}),
        code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Asked(of_group),
        code.INVOKE_BROKER_TO_RESET_OFFSET: Asked(of_group | {"timestamp": "-1", "isForce": "true"}),
        code.CLONE_GROUP_OFFSET: Asked({"srcGroup": group, "destGroup": group, "topic": topic, "offline": "true"}),
        code.UPDATE_AND_GET_GROUP_FORBIDDEN: Asked(of_group | {"readable": "false"}),
        code.SET_MESSAGE_REQUEST_MODE: Asked({}, encode_json(mode | {"mode": "POP"})),
        code.GET_BROKER_CONFIG: no_fields,
        code.GET_BROKER_RUNTIME_INFO: no_fields,
        code.VIEW_BROKER_STATS_DATA: Asked({"statsName": "TOPIC_PUT_NUMS", "statsKey": topic}),
        code.GET_BROKER_CONSUME_STATS: Asked({"isOrder": "false"}),
        code.GET_PRODUCER_CONNECTION_LIST: Asked({"producerGroup": "producers"}),
        code.GET_ALL_PRODUCER_INFO: no_fields,
        code.GET_ALL_CONSUMER_OFFSET: no_fields,
        code.GET_ALL_DELAY_OFFSET: no_fields,
        code.GET_ALL_MESSAGE_REQUEST_MODE: no_fields,
        code.GET_TIMER_CHECK_POINT: no_fields,
        code.GET_TIMER_METRICS: no_fields,
        code.GET_BROKER_HA_STATUS: no_fields,
        code.EXCHANGE_BROKER_HA_INFO: no_fields,
        code.GET_BROKER_EPOCH_CACHE: no_fields,
        code.NOTIFY_BROKER_ROLE_CHANGED: no_fields,
        code.NOTIFY_MIN_BROKER_ID_CHANGE: no_fields,
        code.RESET_MASTER_FLUSH_OFFSET: Asked({"masterFlushOffset": "0"}),
        code.UPDATE_BROKER_CONFIG: Asked({}, b"brokerPermission=4"),
        code.CLEAN_EXPIRED_CONSUMEQUEUE: no_fields,
        code.CLEAN_UNUSED_TOPIC: no_fields,
        code.DELETE_EXPIRED_COMMITLOG: no_fields,
        code.AUTH_GET_USER: Asked({"username": "root"}),
        code.AUTH_LIST_USER: no_fields,
        code.AUTH_GET_ACL: Asked({"subject": "User:eve"}),
        code.AUTH_LIST_ACL: no_fields,
        code.AUTH_CREATE_USER: Asked({"username": "mallory"}, b'{"password":"secret12"}'),
        code.AUTH_UPDATE_USER: Asked({"username": "eve"}, b'{"userType":"Super"}'),
        code.AUTH_DELETE_USER: Asked({"username": "root"}),
        code.AUTH_CREATE_ACL: Asked({"subject": "User:eve"}, encode_json(acl)),
        code.AUTH_UPDATE_ACL: Asked({"subject": "User:eve"}, encode_json(acl)),
        code.AUTH_DELETE_ACL: Asked({"subject": "User:eve"}),
    }
