"""Changes of single messages and transactions: send, consume, commit and roll back."""

from __future__ import annotations

import msgspec

from gantrymq.client.broker_api import SendStatus
from gantrymq.client.producing.message_encoder import DELAYS
from gantrymq.client.producing.producer import Producer
from gantrymq.console.changes.change import Change
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.links import link
from gantrymq.console.pages import BadArguments
from gantrymq.console.queries.kinds import topic_kind
from gantrymq.console.queries.messages import MessageArguments, find
from gantrymq.errors import IllegalMessage
from gantrymq.protocol.message import Message
from gantrymq.protocol.reserved_properties import is_reserved

PRODUCER_GROUP = "gantry_console"


class SendMessage(msgspec.Struct):
    """Sends a message to an existing topic.

    `keys` contains keys separated by spaces. `properties` contains one line NAME=VALUE for each property. In the body,
    LF replaces the CRLF that browsers send at the end of each line. RocketMQ's own properties are refused, except those
    that delay the message.
    """

    topic: str
    body: str
    keys: str = ""
    tags: str = ""
    properties: str = ""


class ConsumeDirectly(msgspec.Struct):
    """Lets a consumer consume a message at once."""

    topic: str
    broker: str
    queue: int
    offset: int
    group: str
    client_id: str


class EndGivenUp(msgspec.Struct):
    """Ends transactions that a broker has given up. `how` is commit or rollback."""

    how: str
    max_messages: int = 100


async def send_message(view: ClusterView, one: SendMessage) -> str:
    topic = one.topic.strip()
    if topic_kind(topic, await view.servers.get()) != "topic":
        raise BadArguments(f"topic {topic!r} is internal: choose a topic of applications")
    message = Message(
        topic,
        one.body.replace("\r\n", "\n").encode(),
        tags=one.tags.strip(),
        keys=one.keys.strip(" "),
        properties=_properties(one.properties),
    )
    # Raises NoRouteInfo for an unknown topic, which the producer would otherwise create.
    await view.admin.topic_route(topic)
    producer = Producer(
        view.settings.name_servers,
        PRODUCER_GROUP,
        # One click never stores two messages.
        retry_times=0,
        ssl_context=view.settings.ssl_context,
        credentials=view.credentials,
    )
    try:
        async with producer:
            result = await producer.send(message, timeout=view.settings.timeout_ms / 1000)
    except IllegalMessage as e:
        raise BadArguments(str(e)) from None
    note = "" if result.status is SendStatus.SEND_OK else f", with status {result.status.name}"
    return (
        f"message {result.msg_id} is stored in queue {result.queue.queue_id} of {result.queue.broker_name}, "
        f"at offset {result.queue_offset}{note}"
    )


def _properties(text: str) -> dict[str, str]:
    """Parses lines NAME=VALUE. Raises BadArguments, also for reserved properties except delays."""
    properties = {}
    # `splitlines` is not used, because it also splits at other characters, such as U+2028.
    for line in text.replace("\r\n", "\n").split("\n"):
        name, equals, value = line.partition("=")
        if not line.strip():
            continue
        if not equals or not name.strip():
            raise BadArguments(f"property {line[:300]!r}: expected NAME=VALUE")
        name = name.strip()
        if is_reserved(name) and name not in DELAYS:
            raise BadArguments(f"property {name[:300]!r} is reserved for RocketMQ: choose another name")
        properties[name] = value
    return properties


async def consume_directly(view: ClusterView, one: ConsumeDirectly) -> str:
    place = MessageArguments(topic=one.topic, broker=one.broker, queue=one.queue, offset=one.offset)
    result = await view.admin.consume_directly(one.group, one.client_id, await find(view, place))
    return (
        f"{one.client_id} returned {result.consume_result} after {result.spent_time_mills} ms: {result.remark or '-'}"
    )


async def end_given_up(view: ClusterView, one: EndGivenUp) -> str:
    if one.how not in ("commit", "rollback"):
        raise BadArguments(f"{one.how!r}: expected commit or rollback")
    ended = await view.admin.end_given_up(commit=one.how == "commit", max_messages=max(one.max_messages, 0))
    return f"{ended} transactions ended: {one.how}"


CHANGES = (
    Change(
        name="send-message",
        arguments=SendMessage,
        secrets=frozenset({"body"}),
        perform=send_message,
        back=lambda one: link("topic", name=one.topic.strip()),
    ),
    Change(
        name="consume-directly",
        arguments=ConsumeDirectly,
        perform=consume_directly,
        back=lambda one: link("message", topic=one.topic, broker=one.broker, queue=one.queue, offset=one.offset),
    ),
    Change(
        name="end-given-up",
        arguments=EndGivenUp,
        perform=end_given_up,
        back=lambda one: link("transactions"),
    ),
)
