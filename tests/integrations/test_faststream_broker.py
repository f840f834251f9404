"""Tests of the FastStream broker: with a cluster, with its TestBroker, its command line, its AsyncAPI page."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faststream import AckPolicy, FastStream, Logger
from faststream.exceptions import AckMessage, NackMessage, SetupError, StopConsume
from faststream.specification import AsyncAPI
from pydantic import BaseModel, ValidationError
from wait_until import until, wait_until

from gantrymq import Message, MessageExt, Producer, PushConsumer, SyncProducer
from gantrymq.errors import ClientError, RemotingError
from gantrymq.integrations.faststream import RocketMQBroker, RocketMQRouter, TestRocketMQBroker
from gantrymq.integrations.faststream.annotations import RocketMQMessage
from gantrymq.integrations.faststream.messages import RocketMQMessage as ReceivedMessage
from gantrymq.integrations.faststream.subscriber import RocketMQSubscriber
from gantrymq.testing.embedded import EmbeddedCluster


class Order(BaseModel):
    what: str
    count: int


class Invoice(BaseModel):
    text: str


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


FIRST: Any = {"start_from": "earliest"}


async def test_models_come_and_go(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    broker = RocketMQBroker(cluster.name_server)
    invoices: list[tuple[Invoice, ReceivedMessage]] = []

    @broker.subscriber("fs-orders", group="fs-orders", **FIRST)
    @broker.publisher("fs-invoices", tags="invoice", headers={"country": "NO"})
    async def handle(order: Order, logger: Logger) -> Invoice:
        logger.info("an order")
        return Invoice(text=f"{order.count} {order.what}")

    @broker.subscriber("fs-invoices", group="fs-invoices", tags="invoice", **FIRST)
    async def see(invoice: Invoice, message: RocketMQMessage) -> None:
        invoices.append((invoice, message))

    async with broker:
        sent = await broker.publish(Order(what="apples", count=42), "fs-orders", keys="order-17", correlation_id="c1")
        assert sent.queue.topic == "fs-orders"
        await broker.start()
        await until(lambda: invoices)
        assert await broker.ping(1.0)
    ((invoice, message),) = invoices
    assert invoice == Invoice(text="42 apples")
    assert (message.correlation_id, message.content_type) == ("c1", "application/json")
    assert isinstance(message.raw_message, MessageExt)
    assert message.raw_message.tags == "invoice"
    assert message.headers["country"] == "NO"
    # Ids of one client differ only at their ends.
    assert f"| {sent.msg_id} - an order" in "".join(capsys.readouterr())
    assert not await RocketMQBroker("127.0.0.1:1").ping(0.2)


async def test_a_request_is_answered(cluster: EmbeddedCluster) -> None:
    broker = RocketMQBroker(cluster.name_server)

    @broker.subscriber("fs-questions", group="fs-questions", **FIRST)
    async def answer(question: str) -> dict[str, str]:
        return {"answer": question.upper()}

    async with Producer(cluster.name_server, "fs") as producer:
        await producer.queues("fs-questions")
    async with broker:
        await broker.start()
        reply = await broker.request("how many?", "fs-questions", timeout=15)
        assert await reply.decode() == {"answer": "HOW MANY?"}
        asker = broker.publisher("fs-questions")
        assert await (await asker.request("who?", timeout=15)).decode() == {"answer": "WHO?"}


async def dead(cluster: EmbeddedCluster, group: str, count: int) -> list[bytes]:
    """Waits for `count` dead-letter messages of the group and returns their bodies."""
    bodies: list[bytes] = []
    consumer = PushConsumer(
        cluster.name_server, f"{group}-undertakers", lambda message: bodies.append(message.body), **FIRST
    )
    consumer.subscribe(f"%DLQ%{group}")
    async with consumer:
        await until(lambda: len(bodies) >= count)
    return sorted(bodies)


async def test_what_fails_comes_again_and_what_is_rejected_does_not(cluster: EmbeddedCluster) -> None:
    broker = RocketMQBroker(cluster.name_server)
    seen: list[str] = []

    async def handle(order: Order) -> None:
        seen.append(order.what)
        if order.what == "raises":
            raise ValueError("no")
        if order.what == "nacks":
            raise NackMessage
        if order.what == "acks":
            raise AckMessage

    once: Any = {"max_reconsume_times": 0, **FIRST}
    broker.subscriber("fs-failing", group="fs-again", **once)(handle)
    broker.subscriber("fs-failing", group="fs-rejects", ack_policy=AckPolicy.REJECT_ON_ERROR, **once)(handle)

    @broker.subscriber("fs-failing", group="fs-manual", ack_policy=AckPolicy.MANUAL, **once)
    async def by_hand(message: RocketMQMessage) -> None:
        if b"fine" in message.body:
            await message.ack()
        elif b"raises" in message.body:
            await message.reject()

    async with broker:
        for what in ("raises", "nacks", "acks", "fine"):
            await broker.publish(Order(what=what, count=1), "fs-failing")
        await broker.publish({"what": 5}, "fs-failing")
        await broker.start()
        again = await dead(cluster, "fs-again", 3)
        assert [json.loads(body)["what"] for body in again] == ["nacks", "raises", 5]
        assert [json.loads(body)["what"] for body in await dead(cluster, "fs-rejects", 1)] == ["nacks"]
        manual = await dead(cluster, "fs-manual", 3)
        assert [json.loads(body)["what"] for body in manual] == ["acks", "nacks", 5]
        await until(lambda: sorted(seen) == sorted(2 * ["raises", "nacks", "acks", "fine"]))


async def test_a_handler_stops_its_subscriber(cluster: EmbeddedCluster) -> None:
    broker = RocketMQBroker(cluster.name_server, graceful_timeout=None)

    @broker.subscriber("fs-stopping", group="fs-stopping", **FIRST)
    async def handle(body: str) -> None:
        raise StopConsume

    (subscriber,) = broker.subscribers
    assert isinstance(subscriber, RocketMQSubscriber)
    async with broker:
        await broker.publish("stop", "fs-stopping")
        await broker.start()
        await until(lambda: subscriber.consumer is None and not subscriber.running)


async def test_groups_are_checked(cluster: EmbeddedCluster) -> None:
    for groups, words in ((("a", "a"), "two subscribers have the group a"), (("a", ""), "of t1 has no group")):
        broker = RocketMQBroker(cluster.name_server)
        for number, group in enumerate(groups):
            broker.subscriber(f"t{number}", group=group)(lambda body: None)
        with pytest.raises(ClientError, match=words):
            await broker.start()
    nobody = RocketMQBroker("127.0.0.1:1")
    with pytest.raises(RemotingError):
        async with nobody:
            await nobody.publish("x", "t")


async def test_the_broker_for_tests() -> None:
    broker = RocketMQBroker("127.0.0.1:1")
    router = RocketMQRouter(prefix="shop-")
    published = broker.publisher("invoices")

    @router.subscriber("orders", group="warehouse")
    @published
    async def handle(order: Order) -> Invoice:
        return Invoice(text=f"{order.count} {order.what}")

    broker.include_router(router)
    async with TestRocketMQBroker(broker) as test:
        await test.publish(Order(what="apples", count=42), "shop-orders", keys="k")
        handle.mock.assert_called_once_with({"what": "apples", "count": 42})
        assert published.mock is not None
        published.mock.assert_called_once_with({"text": "42 apples"})
        reply = await test.request(Order(what="figs", count=1), "shop-orders")
        assert await reply.decode() == {"text": "1 figs"}
        with pytest.raises(ValidationError):
            await test.publish({"what": "pears"}, "shop-orders")


async def test_the_class_of_messages_is_no_annotation() -> None:
    broker = RocketMQBroker("127.0.0.1:1")

    @broker.subscriber("orders", group="warehouse")
    async def handle(order: Order, message: ReceivedMessage) -> None:
        pass

    with pytest.raises(SetupError, match=r"gantrymq\.integrations\.faststream\.annotations"):
        async with TestRocketMQBroker(broker):
            pass


def test_the_asyncapi_page() -> None:
    broker = RocketMQBroker("a:9876;b:9876", description="The shop's")

    @broker.subscriber("orders", group="warehouse", description="Orders to be sent")
    @broker.publisher("invoices")
    async def handle(order: Order) -> Invoice:
        return Invoice(text="")

    page = json.loads(AsyncAPI(broker, title="Shop").to_specification().to_json())
    assert page["servers"]["Server1"] == {
        "host": "a:9876", "pathname": "", "protocol": "rocketmq", "protocolVersion": "5", "description": "The shop's",
    }  # fmt: skip
    channels = {channel["address"]: channel for channel in page["channels"].values()}
    assert channels.keys() == {"orders", "invoices"}
    assert channels["orders"]["description"] == "Orders to be sent"
    schemas = page["components"]["schemas"]
    assert set(schemas["Order"]["properties"]) == {"what", "count"}
    assert set(schemas["Invoice"]["properties"]) == {"text"}


async def test_an_app_runs_and_stops(cluster: EmbeddedCluster) -> None:
    broker = RocketMQBroker(cluster.name_server)
    seen = asyncio.Event()

    @broker.subscriber("fs-app", group="fs-app", **FIRST)
    async def handle(body: str) -> None:
        seen.set()

    app = FastStream(broker)
    running = asyncio.create_task(app.run())
    async with Producer(cluster.name_server, "fs") as producer:
        await producer.send(Message("fs-app", b"hello"))
        await seen.wait()
    app.exit()
    await running


APP = """
import os
from faststream import FastStream
from gantrymq.integrations.faststream import RocketMQBroker

broker = RocketMQBroker(os.environ["NAMESRV_ADDR"])
app = FastStream(broker)

@broker.subscriber("fs-cli", group="fs-cli", start_from="earliest")
async def handle(body: str) -> None:
    with open("notes", "a") as notes:
        notes.write(body)
"""


def test_the_command_line(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    environment = os.environ | {"NAMESRV_ADDR": cluster.name_server}
    with SyncProducer(Producer(cluster.name_server, "fs")) as producer:
        producer.send(Message("fs-cli", b"hello"))
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", "faststream", "run", "app:app"]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        try:
            wait_until(lambda: (tmp_path / "notes").exists() and (tmp_path / "notes").read_text() == "hello")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
    assert "Traceback" not in (tmp_path / "log").read_text()
