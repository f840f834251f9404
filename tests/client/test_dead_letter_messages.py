"""Dead-letter messages that are sent again."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.admin.dead_letter_messages import ResentMessages
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import IllegalMessage, NoRouteInfo
from gantrymq.protocol.message import Message, MessageExt


@pytest.fixture
async def admin(name_server: str) -> AsyncIterator[AdminClient]:
    async with AdminClient(name_server) as admin:
        yield admin


async def dead_letters(admin: AdminClient, group: str) -> int:
    try:
        stats = await admin.topic_stats(f"%DLQ%{group}")
    except NoRouteInfo:
        return 0
    return sum(offsets.max_offset for offsets in stats.offset_table.values())


class Shop:
    """A consumer that fails while `is_broken` is set."""

    def __init__(self, name_server: str, group: str, *topics: str) -> None:
        self.is_broken = True
        self.seen: list[MessageExt] = []
        self.consumer = PushConsumer(
            name_server,
            group,
            self.handle,
            start_from="earliest",
            max_reconsume_times=0,
        )
        for topic in topics:
            self.consumer.subscribe(topic)

    async def handle(self, message: MessageExt) -> None:
        if self.is_broken:
            raise ValueError("out of order")
        self.seen.append(message)


async def test_they_come_to_their_group_once_more(
    admin: AdminClient, name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    shop, other = Shop(name_server, unique, topic), Shop(name_server, f"{unique}_other", topic)
    other.is_broken = False
    sent = [
        await producer.send(Message(topic, b"%d" % number, tags="tag", keys=f"key-{number}", properties={"own": "1"}))
        for number in range(3)
    ]
    async with shop.consumer, other.consumer:
        await until(lambda: dead_letters_reach(admin, unique, 3))
        shop.is_broken = False
        assert await admin.resend_dead_letter_messages(unique) == ResentMessages(3, 0, 0)
        await until(lambda: len(shop.seen) == 3)
        for message in sorted(shop.seen, key=lambda message: message.body):
            number = int(message.body)
            assert message.topic == topic
            assert (message.tags, message.keys, message.properties["own"]) == ("tag", [f"key-{number}"], "1")
            assert message.msg_id == sent[number].msg_id
            assert message.reconsume_times == 0
        # A message is not sent a second time, unless `again` is set.
        assert await admin.resend_dead_letter_messages(unique) == ResentMessages(0, 0, 0)
        assert await admin.resend_dead_letter_messages(unique, again=True, max_messages=2) == ResentMessages(2, 0, 0)
        await until(lambda: len(shop.seen) == 5)
        assert await admin.resend_dead_letter_messages(unique) == ResentMessages(0, 0, 0)
        await until(lambda: len(other.seen) == 3)
        assert len(other.seen) == 3


async def dead_letters_reach(admin: AdminClient, group: str, count: int) -> bool:
    return await dead_letters(admin, group) >= count


async def test_some_of_them(admin: AdminClient, name_server: str, producer: Producer, topic: str, unique: str) -> None:
    shop = Shop(name_server, unique, topic)
    async with shop.consumer:
        for number in range(3):
            await producer.send(Message(topic, b"%d" % number))
        await until(lambda: dead_letters_reach(admin, unique, 3))
        soon_ms = round(time.time() * 1000) + 60_000
        shop.is_broken = False
        # Sends two now and the last one in the next call. The limit excludes none permanently.
        assert await admin.resend_dead_letter_messages(unique, max_messages=2, end=soon_ms) == ResentMessages(2, 0, 0)
        assert await admin.resend_dead_letter_messages(unique, topic=topic) == ResentMessages(1, 0, 0)
        await until(lambda: len(shop.seen) == 3)
        assert await admin.resend_dead_letter_messages(unique, again=True, topic="another") == ResentMessages(0, 3, 0)
        assert await admin.resend_dead_letter_messages(unique, again=True, begin=soon_ms) == ResentMessages(0, 3, 0)


async def test_to_the_topic_itself(
    admin: AdminClient, name_server: str, producer: Producer, topic: str, unique: str
) -> None:
    shop, other = Shop(name_server, unique, topic), Shop(name_server, f"{unique}_other", topic)
    other.is_broken = False
    async with shop.consumer, other.consumer:
        await producer.send(Message(topic, b"x"))
        await until(lambda: dead_letters_reach(admin, unique, 1))
        shop.is_broken = False
        assert await admin.resend_dead_letter_messages(unique, to_topic=True) == ResentMessages(1, 0, 0)
        await until(lambda: len(shop.seen) == 1 and len(other.seen) == 2)
        assert "RETRY_TOPIC" not in shop.seen[0].properties


async def test_a_group_without_any(admin: AdminClient, unique: str) -> None:
    assert await admin.resend_dead_letter_messages(unique) == ResentMessages(0, 0, 0)
    with pytest.raises(IllegalMessage):
        await admin.resend_dead_letter_messages("with spaces")
