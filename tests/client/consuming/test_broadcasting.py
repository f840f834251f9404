"""Broadcasting consumers, which receive all messages, and their local offset files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inbox import Inbox, queues_of, send_all
from wait_until import until

from gantrymq.client.consuming.offset_store import LocalOffsetStore
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientError
from gantrymq.protocol.message import MessageExt, MessageQueue

QUEUE = MessageQueue("topic", "broker", 1)
#: A file as Java's LocalFileOffsetStore writes it.
JAVA_FILE = """{
	"offsetTable":{
		{
			"brokerName":"broker",
			"queueId":1,
			"topic":"topic"
		}:5
	}
}
"""


@pytest.mark.parametrize("orderly", [False, True])
async def test_every_consumer_gets_everything(
    name_server: str, producer: Producer, topic: str, unique: str, tmp_path: Path, orderly: bool
) -> None:
    inboxes = Inbox(), Inbox()
    consumers = [
        PushConsumer(
            name_server,
            unique,
            inbox,
            orderly=orderly,
            broadcasting=True,
            offset_directory=tmp_path,
            instance_name=f"number{n}",
        )
        for n, inbox in enumerate(inboxes)
    ]
    for consumer in consumers:
        consumer.subscribe(topic)
    async with consumers[0], consumers[1]:
        await until(lambda: [queues_of(consumer, topic) for consumer in consumers] == [4, 4])
        await send_all(producer, topic, [b"%d" % n for n in range(9)])
        await until(lambda: all(len(inbox.messages) == 9 for inbox in inboxes))
    assert inboxes[0].bodies == inboxes[1].bodies == [b"%d" % n for n in range(9)]


async def test_goes_on_where_it_was_closed(
    name_server: str, producer: Producer, topic: str, unique: str, tmp_path: Path
) -> None:
    tries: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        tries.append(message.body)
        if message.body == b"bad":
            raise ValueError("never")

    for body in (b"bad", b"good"):
        await send_all(producer, topic, [body])
        consumer = PushConsumer(
            name_server,
            unique,
            handle,
            broadcasting=True,
            offset_directory=tmp_path,
            start_from="earliest",
        )
        consumer.subscribe(topic)
        async with consumer:
            await until(lambda body=body: body in tries)
    # In broadcasting mode, a failed message is not redelivered.
    assert tries == [b"bad", b"good"]
    assert {path.name for path in offset_files(tmp_path, unique)} == {"offsets.json", "offsets.json.bak"}


def offset_files(directory: Path, group: str) -> list[Path]:
    return list(directory.glob(f"*@DEFAULT/{group}/*"))


async def test_the_file_is_javas(tmp_path: Path) -> None:
    path = tmp_path / "10.0.0.1@DEFAULT" / "group" / "offsets.json"
    path.parent.mkdir(parents=True)
    path.write_text(JAVA_FILE)
    store = LocalOffsetStore(tmp_path, "10.0.0.1@DEFAULT", "group")
    assert await store.read(QUEUE) == 5
    assert await store.read(QUEUE._replace(queue_id=2)) is None
    await store.commit({QUEUE: 6})
    assert path.read_text() == '{"offsetTable":{{"brokerName":"broker","queueId":1,"topic":"topic"}:6}}'
    assert path.with_suffix(".json.bak").read_text() == JAVA_FILE
    assert await LocalOffsetStore(tmp_path, "10.0.0.1@DEFAULT", "group").read(QUEUE) == 6


@pytest.mark.parametrize("offset", [-1, -7])
async def test_a_negative_offset_means_never_consumed(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "client" / "group" / "offsets.json"
    path.parent.mkdir(parents=True)
    path.write_text(JAVA_FILE.replace("}:5", f"}}:{offset}"))
    assert await LocalOffsetStore(tmp_path, "client", "group").read(QUEUE) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", json.dumps({"offsetTable": {"x": 1}}).encode()])
async def test_a_damaged_file_is_replaced_by_the_one_before(tmp_path: Path, damage: bytes) -> None:
    store = LocalOffsetStore(tmp_path, "client", "group")
    for offset in (5, 6):
        await store.commit({QUEUE: offset})
    store.path.write_bytes(damage)
    assert await LocalOffsetStore(tmp_path, "client", "group").read(QUEUE) == 5


async def test_damage_without_remedy_is_an_error(tmp_path: Path) -> None:
    store = LocalOffsetStore(tmp_path, "client", "group")
    await store.commit({QUEUE: 5})
    store.path.write_bytes(b"{")
    with pytest.raises(ClientError, match=r"offsets\.json"):
        LocalOffsetStore(tmp_path, "client", "group")


async def test_a_directory_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    store = LocalOffsetStore(tmp_path, "client", "group")
    (tmp_path / "client").write_text("a file where a directory should be")
    with pytest.raises(ClientError, match="can't write the offsets"):
        await store.commit({QUEUE: 5})
    # The next commit writes the offsets of the failed one, even if nothing was consumed meanwhile.
    (tmp_path / "client").unlink()
    await store.commit({QUEUE: 5})
    assert await LocalOffsetStore(tmp_path, "client", "group").read(QUEUE) == 5
