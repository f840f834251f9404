"""mqadmin's commands that find and print messages. Source: tools/command/message/*."""

from __future__ import annotations

import base64
import codecs
from collections import Counter
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from gantrymq.cli.admin.command import Topic, command
from gantrymq.cli.admin.output import Column, Output, RowStream, Table, human_time, listing, table, warn
from gantrymq.cli.admin.send_message import send_again
from gantrymq.cli.admin.values import TrueFalse, parse_time
from gantrymq.cli.lazy import new_app
from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.admin.messages import FOREVER_MS, index_key
from gantrymq.client.routes import read_queues
from gantrymq.errors import ClientError
from gantrymq.protocol.bodies.heartbeat import SUBSCRIBE_ALL
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.topic_name import TRACE_TOPIC
from gantrymq.store.dump import dump_compaction_log as dump_file
from gantrymq.times import point_in_time

app = new_app()

Begin = Annotated[int, typer.Option("-b", "--beginTimestamp", min=0, help="Stored at or after, ms.")]
End = Annotated[int, typer.Option("-e", "--endTimestamp", min=0, help="Stored until then, ms.")]
BeginTime = Annotated[str, typer.Option("-b", "--beginTimestamp", help="ms, or yyyy-MM-dd#HH:mm:ss:SSS.")]
EndTime = Annotated[str, typer.Option("-e", "--endTimestamp", help="ms, or yyyy-MM-dd#HH:mm:ss:SSS.")]
Expression = Annotated[str, typer.Option("-s", "--subExpression", help="Tags: 'TagA || TagB'.")]
BodyFormat = Annotated[str | None, typer.Option("-f", "--bodyFormat", help="Print the body as text in this charset.")]
MessageId = Annotated[str, typer.Option("-i", "--msgId", help="Message id.")]
ConsumerGroup = Annotated[str | None, typer.Option("-g", "--consumerGroup", help="With -d: have it consumed.")]
ClientId = Annotated[str | None, typer.Option("-d", "--clientId", help="The consumer to consume it.")]
ClusterName = Annotated[str | None, typer.Option("-c", "--cluster", help="Query only the brokers of this cluster.")]

_PLACE = {"msgId": "Message ID", "queueId": "QID", "queueOffset": "Offset"}


class KeyType(StrEnum):
    """Kinds of index entries (`MessageConst.INDEX_KEY_TYPE`, `INDEX_TAG_TYPE`)."""

    KEYS = "K"
    TAGS = "T"


@command(app, "queryMsgById")
async def query_msg_by_id(
    admin: AdminClient,
    topic: Topic,
    msg_ids: Annotated[str, typer.Option("-i", "--msgId", help="Message ids, separated by commas.")],
    group: ConsumerGroup = None,
    client_id: ClientId = None,
    body_format: BodyFormat = None,
    resend: Annotated[TrueFalse, typer.Option("-s", "--sendMessage", help="Send it again.")] = TrueFalse.FALSE,
    cluster: ClusterName = None,
    unit_name: Annotated[str, typer.Option("-u", "--unitName", help="With -s: unit of the producer.")] = "",
) -> Output:
    """Query Message by Id."""
    charset = _charset(body_format)
    shown = []
    for message_id in filter(None, (part.strip() for part in msg_ids.split(","))):
        message = await admin.message_by_id(topic, message_id, cluster=cluster)
        if message is None:
            raise ClientError(f"topic {topic!r} has no message {message_id}")
        if group and client_id:
            shown.append(await _consumed_directly(admin, group, client_id, message))
        elif resend:
            shown.append(await send_again(admin, message, unit_name))
        else:
            shown.append(await _with_track(admin, message, charset))
    return Output([one.document for one in shown], [part for one in shown for part in one.parts])


@command(app, "queryMsgByUniqueKey")
async def query_msg_by_unique_key(
    admin: AdminClient,
    topic: Topic,
    msg_id: MessageId,
    group: ConsumerGroup = None,
    client_id: ClientId = None,
    show_all: Annotated[bool, typer.Option("-a", "--showAll", help="All that have the id, up to 32.")] = False,
    cluster: ClusterName = None,
    begin: Annotated[str | None, typer.Option("-s", "--startTime", help="Earliest store time.")] = None,
    end: Annotated[str | None, typer.Option("-e", "--endTime", help="Latest store time.")] = None,
) -> Output:
    """Query Message by Unique key."""
    found = await admin.messages_by_unique_key(
        topic,
        msg_id,
        begin=point_in_time(parse_time(begin, "'--startTime'")) if begin is not None else 0,
        end=point_in_time(parse_time(end, "'--endTime'")) if end is not None else FOREVER_MS,
        cluster=cluster,
    )
    if not found:
        raise ClientError(f"topic {topic!r} has no message {msg_id}")
    if group and client_id:
        return await _consumed_directly(admin, group, client_id, found[0])
    shown = [await _with_track(admin, message, None) for message in (found if show_all else found[:1])]
    return Output([one.document for one in shown], [part for one in shown for part in one.parts])


@command(app, "queryMsgByKey")
async def query_msg_by_key(
    admin: AdminClient,
    topic: Topic,
    key: Annotated[str, typer.Option("-k", "--msgKey", help="Message key.")],
    begin: Begin = 0,
    end: End = FOREVER_MS,
    max_num: Annotated[int, typer.Option("-m", "--maxNum", min=1, help="Maximum number for each broker.")] = 64,
    cluster: ClusterName = None,
    key_type: Annotated[KeyType, typer.Option("-p", "--keyType", help="K if -k is a key, T if it is tags.")] = (
        KeyType.KEYS
    ),
    last_key: Annotated[
        str | None,
        typer.Option(
            "-l",
            "--lastKey",
            help="Index key of the last message of the previous query. Only Java brokers with RocksDB use it.",
        ),
    ] = None,
) -> Output:
    """Query Message by Key."""
    found = await admin.messages_by_key(
        topic,
        key,
        max_num=max_num,
        begin=point_in_time(begin),
        end=point_in_time(end),
        cluster=cluster,
        key_type=key_type.value,
        last_key=last_key,
    )
    rows = [_document(message, None) | {"indexKey": index_key(message, key_type, key)} for message in found]
    return listing(rows, _PLACE | {"indexKey": "Index Key"})


@command(app, "queryMsgByOffset")
async def query_msg_by_offset(
    admin: AdminClient,
    topic: Topic,
    broker_name: Annotated[str, typer.Option("-b", "--brokerName", help="The broker's name.")],
    queue_id: Annotated[int, typer.Option("-i", "--queueId", min=0, help="Queue id.")],
    offset: Annotated[int, typer.Option("-o", "--offset", min=0, help="Queue offset.")],
    body_format: BodyFormat = None,
    route_topic: Annotated[
        str | None, typer.Option("-r", "--routeTopic", help="Topic whose route has the broker's address.")
    ] = None,
) -> Output:
    """Query Message by offset."""
    charset = _charset(body_format)
    message = await admin.message_at(MessageQueue(topic, broker_name, queue_id), offset, route_topic=route_topic)
    if message is None:
        raise ClientError(f"queue {queue_id} of topic {topic!r} on {broker_name} has no message at offset {offset}")
    return await _with_track(admin, message, charset)


@command(app, "queryMsgTraceById")
async def query_msg_trace_by_id(
    admin: AdminClient,
    msg_id: MessageId,
    trace_topic: Annotated[str, typer.Option("-t", "--traceTopic", help="Where traces are.")] = TRACE_TOPIC,
    begin: Begin = 0,
    end: End = FOREVER_MS,
    max_num: Annotated[int, typer.Option("-c", "--maxNum", min=1, help="Maximum number.")] = 64,
) -> Output:
    """Query a message trace."""
    views = await admin.message_trace(
        msg_id, trace_topic, max_num=max_num, begin=point_in_time(begin), end=point_in_time(end)
    )
    rows = [
        {
            "type": "Pub" if view.msg_type == "Pub" else "Sub",
            "group": view.group,
            "clientHost": view.client_host,
            "timestamp": view.timestamp,
            "costTimeMs": view.cost_time,
            "status": "success" if view.success else "failed",
        }
        for view in views
    ]
    columns: dict[str, Any] = {
        "type": "Type",
        "group": "Group",
        "clientHost": "Client Host",
        "timestamp": ("Time", human_time),
        "costTimeMs": ("Cost", lambda ms: f"{ms}ms"),
        "status": "Status",
    }
    return listing(rows, columns)


@command(app, "printMsg")
async def print_msg(
    admin: AdminClient,
    topic: Topic,
    charset: Annotated[str, typer.Option("-c", "--charsetName", help="Of the bodies.")] = "UTF-8",
    expression: Expression = SUBSCRIBE_ALL,
    begin: BeginTime = "",
    end: EndTime = "",
    print_body: Annotated[TrueFalse, typer.Option("-d", "--printBody", help="The bodies, too.")] = TrueFalse.TRUE,
    parent_topic: Annotated[
        str | None, typer.Option("-l", "--lmqParentTopic", help="Topic whose route has the light queue -t.")
    ] = None,
) -> Output:
    """Print Message Detail."""
    queues = read_queues(topic, await admin.topic_route(parent_topic or topic))
    codec = _charset(charset)
    found = [m for queue in queues async for m in _between(admin, queue, expression, begin, end)]
    return _printed(found, codec if print_body else None)


@command(app, "printMsgByQueue")
async def print_msg_by_queue(
    admin: AdminClient,
    topic: Topic,
    broker_name: Annotated[str, typer.Option("-a", "--brokerName", help="The broker's name.")],
    queue_id: Annotated[int, typer.Option("-i", "--queueId", min=0, help="Queue id.")],
    charset: Annotated[str, typer.Option("-c", "--charsetName", help="Of the bodies.")] = "UTF-8",
    expression: Expression = SUBSCRIBE_ALL,
    begin: BeginTime = "",
    end: EndTime = "",
    print_messages: Annotated[TrueFalse, typer.Option("-p", "--print", help="The messages.")] = TrueFalse.FALSE,
    print_body: Annotated[TrueFalse, typer.Option("-d", "--printBody", help="The bodies, too.")] = TrueFalse.FALSE,
    by_tag: Annotated[TrueFalse, typer.Option("-f", "--calculate", help="How many of each tag.")] = TrueFalse.FALSE,
) -> Output:
    """Print Message Detail by queueId."""
    codec = _charset(charset)
    queue = MessageQueue(topic, broker_name, queue_id)
    found = [m async for m in _between(admin, queue, expression, begin, end)]
    shown = _printed(found if print_messages else [], codec if print_body else None)
    tags = Counter(message.tags for message in found if message.tags) if by_tag else Counter()
    parts = [*(shown.parts if print_messages else []), f"{len(found)} messages"]
    if by_tag:
        parts.append(Table(["Tag", "Count"], tags.most_common()))
    return Output({"messages": shown.document, "messageCount": len(found), "tags": tags}, parts)


@command(app, "consumeMessage")
async def consume_message(
    admin: AdminClient,
    topic: Topic,
    broker_name: Annotated[str | None, typer.Option("-b", "--brokerName", help="Only this broker's queues.")] = None,
    queue_id: Annotated[int | None, typer.Option("-i", "--queueId", min=0, help="Only this queue; needs -b.")] = None,
    offset: Annotated[int | None, typer.Option("-o", "--offset", min=0, help="From here on; needs -i.")] = None,
    group: Annotated[str | None, typer.Option("-g", "--consumerGroup", help="No effect.")] = None,
    begin: Annotated[str, typer.Option("-s", "--beginTimestamp", help="ms, or yyyy-MM-dd#HH:mm:ss:SSS.")] = "",
    end: EndTime = "",
    count: Annotated[int, typer.Option("-c", "--MessageNumber", min=1, help="Maximum number.")] = 128,
) -> Output:
    """Read messages, without committing an offset."""
    if (queue_id is not None and broker_name is None) or (offset is not None and queue_id is None):
        raise typer.BadParameter("-o needs -i, which needs -b", param_hint="'-b' / '-i' / '-o'")
    found: list[MessageExt] = []
    for queue in read_queues(topic, await admin.topic_route(topic)):
        if broker_name in (None, queue.broker_name) and queue_id in (None, queue.queue_id):
            async for message in _between(admin, queue, SUBSCRIBE_ALL, begin, end, offset):
                found.append(message)
                if len(found) == count:
                    return _printed(found, "utf-8")
    return _printed(found, "utf-8")


@command(app, "dumpCompactionLog")
async def dump_compaction_log(
    admin: AdminClient,
    file: Annotated[Path, typer.Option("-f", "--file", help="The file, on this machine.")],
) -> RowStream:
    """Parse compaction log to message."""
    return RowStream((_document(message, "utf-8") for message in dump_file(file, warn)), _columns("utf-8"))


async def _between(
    admin: AdminClient, queue: MessageQueue, expression: str, begin: str, end: str, offset: int | None = None
) -> AsyncIterator[MessageExt]:
    """Yields the messages of a queue between two times. An empty time or a missing offset means no limit."""
    address = await admin.broker_address(queue.broker_name)
    api = transport_of(admin).api
    first = await api.min_offset(address, queue.topic, queue.queue_id)
    last = await api.max_offset(address, queue.topic, queue.queue_id)
    if begin:
        begin_ms = parse_time(begin, "'--beginTimestamp'")
        first = await api.search_offset(address, queue.topic, queue.queue_id, begin_ms)
    if end:
        last = await api.search_offset(address, queue.topic, queue.queue_id, parse_time(end, "'-e'"))
    if offset is not None:
        first = max(first, offset)
    async for message in admin.messages_of_queue(queue, first, last, expression):
        yield message


async def _with_track(admin: AdminClient, message: MessageExt, charset: str | None) -> Output:
    """Returns a message, and the consumption state of each consumer group."""
    track = await admin.message_track(message)
    document = _document(message, charset)
    values = {key: value for key, value in document.items() if key != "bodyBase64" and value is not None}
    values |= {key: human_time(document[key]) for key in ("bornTimestamp", "storeTimestamp")}
    values |= {
        "keys": " ".join(document["keys"]),
        "properties": ", ".join(f"{name}={value}" for name, value in sorted(document["properties"].items())),
    }
    rows = [{"consumerGroup": one.consumer_group, "trackType": one.status, "reason": one.reason} for one in track]
    shown = table(rows, {"consumerGroup": "Consumer Group", "trackType": "Status", "reason": "Reason"})
    return Output(
        document | {"messageTrack": rows},
        [Table(["Field", "Value"], list(values.items())), shown if track else "WARN: No Consumer"],
    )


async def _consumed_directly(admin: AdminClient, group: str, client_id: str, message: MessageExt) -> Output:
    result = await admin.consume_directly(group, client_id, message)
    line = f"{client_id} of {group}: {result.consume_result} in {result.spent_time_mills} ms {result.remark or ''}"
    return Output(result, [line.rstrip()])


def _document(message: MessageExt, charset: str | None) -> dict[str, Any]:
    """Returns the fields of a message. The body is in Base64 and, if `charset` is given, also as text."""
    return {
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "topic": message.topic,
        "tags": message.tags,
        "keys": message.keys,
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "reconsumeTimes": message.reconsume_times,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "sysFlag": message.sys_flag,
        "properties": message.properties,
        "bodySize": len(message.body),
        "body": message.body.decode(charset, "replace") if charset else None,
        "bodyBase64": base64.b64encode(message.body).decode(),
    }


def _printed(messages: list[MessageExt], charset: str | None) -> Output:
    return listing([_document(message, charset) for message in messages], _columns(charset))


def _columns(charset: str | None) -> dict[str, Column]:
    columns: dict[str, Column] = {
        "msgId": "Message ID",
        "brokerName": "Broker Name",
        "queueId": "QID",
        "queueOffset": "Offset",
        "storeTimestamp": ("Stored", human_time),
        "tags": ("Tags", lambda tags: tags or ""),
        "keys": ("Keys", " ".join),
    }
    if charset:
        columns["body"] = "Body"
    return columns


def _charset(name: str | None) -> str | None:
    try:
        return codecs.lookup(name).name if name else None
    except LookupError:
        raise typer.BadParameter(f"{name!r} is no charset", param_hint="the charset") from None
