"""A client of lite topics that sends each request separately."""

from __future__ import annotations

from typing import Any, NamedTuple

from broker_support import Peer

from gantrymq.protocol.bodies.lite import (
    LiteSubscription,
    LiteSubscriptionAction,
    LiteSubscriptionCtlBody,
    OffsetOption,
)
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.lite import PopLiteMessageRequestHeader
from gantrymq.protocol.headers.pop import AckMessageRequestHeader, ChangeInvisibleTimeRequestHeader
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader
from gantrymq.protocol.lite_topic import light_queue_of
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.multi_dispatch import queue_offsets
from gantrymq.protocol.properties import encode_properties

TOPIC, GROUP = "sessions", "readers"
ADD, REMOVE = LiteSubscriptionAction.PARTIAL_ADD, LiteSubscriptionAction.PARTIAL_REMOVE
REPLACE, LEAVE = LiteSubscriptionAction.COMPLETE_ADD, LiteSubscriptionAction.COMPLETE_REMOVE


class LiteMessage(NamedTuple):
    """A popped message: its lite topic, offset, body, number of earlier deliveries, and receipt handle."""

    lite_topic: str
    offset: int
    body: bytes
    delivered: int
    handle: str


class LitePeer(Peer):
    """A client of a group with lite topics. It uses JSON headers only, as pops do."""

    async def create(self, *, topic: str = TOPIC, group: str = GROUP, expiration: int | None = None, **of: str) -> None:
        """Creates the parent topic and the group. `of` are further attributes of the group, with _ for the dots."""
        attributes = "+message.type=LITE"
        if expiration is not None:
            attributes += f",+lite.topic.expiration={expiration}"
        header = CreateTopicRequestHeader(
            topic=topic, default_topic="TBW102", read_queue_nums=2, write_queue_nums=2, perm=6, attributes=attributes
        )
        response = await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert response.code == ResponseCode.SUCCESS, response.remark
        changes = {"+lite.bind.topic": topic, **{f"+{name.replace('_', '.')}": value for name, value in of.items()}}
        body = encode_json(SubscriptionGroupConfig(group, attributes=changes))
        response = await self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert response.code == ResponseCode.SUCCESS, response.remark

    async def send_to(self, lite_topic: str, body: bytes, topic: str = TOPIC) -> RemotingCommand:
        return await self.send(topic, body, properties={"__LITE_TOPIC": lite_topic})

    async def change(
        self,
        action: LiteSubscriptionAction,
        *lite_topics: str,
        client: str = "a",
        group: str = GROUP,
        topic: str = TOPIC,
        option: OffsetOption | None = None,
    ) -> RemotingCommand:
        """Changes the subscriptions of a client."""
        change = LiteSubscription(action, client, group, topic, list(lite_topics), option)
        return await self.ask(RequestCode.LITE_SUBSCRIPTION_CTL, body=encode_json(LiteSubscriptionCtlBody([change])))

    async def subscribe(self, *lite_topics: str, **changed: Any) -> None:
        response = await self.change(ADD, *lite_topics, **changed)
        assert response.code == ResponseCode.SUCCESS, response.remark

    async def pop_response(
        self,
        *,
        client: str = "a",
        group: str = GROUP,
        topic: str = TOPIC,
        count: int = 32,
        invisible_ms: int = 60_000,
        poll_ms: int = 0,
        **changed: Any,
    ) -> RemotingCommand:
        header = PopLiteMessageRequestHeader(
            client_id=client,
            consumer_group=group,
            topic=topic,
            max_msg_num=count,
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            **changed,
        )
        return await self.ask(RequestCode.POP_LITE_MESSAGE, header, timeout_ms=poll_ms + 20_000)

    async def pop(self, **changed: Any) -> list[LiteMessage]:
        """Returns the messages of a pop."""
        response = await self.pop_response(**changed)
        if response.code == ResponseCode.POLLING_TIMEOUT:
            return []
        assert response.code == ResponseCode.SUCCESS, response.remark
        fields = response.ext_fields
        counts = fields["orderCountInfo"].split(";")
        messages = list(decode_messages(response.body))
        assert len(counts) == len(messages)
        found = []
        for message, count in zip(messages, counts, strict=True):
            lite_topic = message.properties["__LITE_TOPIC"]
            offset = queue_offsets(encode_properties(message.properties))[light_queue_of(message.topic, lite_topic)]
            handle = (
                f"{offset} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 broker-a 0 {offset}"
            )
            found.append(LiteMessage(lite_topic, offset, message.body, int(count), handle))
        return found

    async def acknowledge(self, *messages: LiteMessage, group: str = GROUP, topic: str = TOPIC) -> list[int]:
        """Acknowledges messages. Returns the response codes."""
        codes = []
        for message in messages:
            header = AckMessageRequestHeader(
                consumer_group=group,
                topic=topic,
                queue_id=0,
                extra_info=message.handle,
                offset=message.offset,
                lite_topic=message.lite_topic,
            )
            codes.append((await self.ask(RequestCode.ACK_MESSAGE, header)).code)
        return codes

    async def hide(self, message: LiteMessage, invisible_ms: int, **changed: Any) -> RemotingCommand:
        """Changes the invisible duration of a message."""
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=GROUP,
            topic=TOPIC,
            queue_id=0,
            extra_info=message.handle,
            offset=message.offset,
            invisible_time=invisible_ms,
            lite_topic=message.lite_topic,
            **changed,
        )
        return await self.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)


def bodies(messages: list[LiteMessage]) -> list[bytes]:
    return [message.body for message in messages]
