"""GrpcProduce and GrpcConsume with Apache's Python client, rocketmq-python-client: see the Java programs."""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
import time
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

ASKED_WITHIN_S = 60


def configuration(endpoints: str) -> ClientConfiguration:
    return ClientConfiguration(endpoints, Credentials())


def print_line(line: dict[str, Any]) -> None:
    os.write(1, (json.dumps(line) + "\n").encode())


def received(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "message_id": message.message_id,
        "body": base64.b64encode(message.body).decode(),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "message_group": message.message_group,
        "delivery_timestamp": message.delivery_timestamp,
        "delivery_attempt": message.delivery_attempt,
        "born_host": message.born_host,
        "born_timestamp": message.born_timestamp,
        "properties": message.properties,
    }


class Checker(TransactionChecker):
    def __init__(self, orphans: set[bytes]) -> None:
        self.left = orphans

    def check(self, message: Message) -> TransactionResolution:
        if message.body not in self.left:
            # Its end is being sent.
            return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        self.left.remove(message.body)
        return TransactionResolution.COMMIT


def produce(endpoints: str, topic: str) -> int:
    lines = [json.loads(line) for line in sys.stdin]
    checker = Checker({base64.b64decode(line["body"]) for line in lines if line.get("transaction") == "orphan"})
    producer = Producer(configuration(endpoints), (topic,), checker)
    producer.startup()
    for line in lines:
        message = Message()
        message.topic, message.body = topic, base64.b64decode(line["body"])
        if "tag" in line:
            message.tag = line["tag"]
        for key in line.get("keys", ()):
            message.keys = key
        if "message_group" in line:
            message.message_group = line["message_group"]
        if "delay_ms" in line:
            message.delivery_timestamp = int(time.time() + line["delay_ms"] / 1000)
        for name, value in line.get("properties", {}).items():
            message.add_property(name, value)
        transaction = producer.begin_transaction() if "transaction" in line else None
        receipt = send(producer, message, transaction, line.get("again_s", 0))
        if line.get("recall"):
            producer.recall_message(topic, receipt.recall_handle)
        if line.get("transaction") == "commit":
            transaction.commit()
        elif line.get("transaction") == "rollback":
            transaction.rollback()
        print_line({"message_id": receipt.message_id})
    deadline = time.monotonic() + ASKED_WITHIN_S
    while checker.left and time.monotonic() < deadline:
        time.sleep(0.05)
    producer.shutdown()
    return 1 if checker.left else 0


def send(producer: Producer, message: Message, transaction: Any, again_s: float) -> Any:
    deadline = time.monotonic() + again_s
    while True:
        try:
            return producer.send(message, transaction)
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Listener(MessageListener):
    def __init__(self, mode: str, count: int) -> None:
        self.mode = mode
        self.left = count
        self.bodies: set[bytes] = set()
        self.complete = threading.Event()

    def consume(self, message: Message) -> ConsumeResult:
        print_line(received(message))
        if self.mode != "push" or message.body not in self.bodies:
            self.bodies.add(message.body)
            self.left -= 1
        if self.left <= 0:
            self.complete.set()
        fails = self.mode == "fail" or (self.mode == "retry" and message.delivery_attempt == 1)
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


def consume(endpoints: str, group: str, topic: str, expression: str, mode: str, count: str, timeout_s: str) -> int:
    kind = FilterType.SQL if " " in expression and "||" not in expression else FilterType.TAG
    wanted = {topic: FilterExpression(expression, kind)}
    if mode in ("push", "retry", "fail"):
        listener = Listener(mode, int(count))
        consumer = PushConsumer(configuration(endpoints), group, listener, wanted)
        consumer.startup()
        complete = listener.complete.wait(float(timeout_s))
        consumer.shutdown()
        return 0 if complete else 1
    simple = SimpleConsumer(configuration(endpoints), group, wanted, await_duration=5)
    simple.startup()
    left, deadline = int(count), time.monotonic() + float(timeout_s)
    while left > 0 and time.monotonic() < deadline:
        for message in simple.receive(32, 20):
            print_line(received(message))
            left -= 1
            if mode == "again" and message.delivery_attempt == 1:
                simple.change_invisible_duration(message, 1)
            else:
                simple.ack(message)
    simple.shutdown()
    return 0 if left <= 0 else 1


if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    code = {"GrpcProduce": produce, "GrpcConsume": consume}[program](*arguments)
    sys.stdout.flush()
    # The client's threads would continue for some seconds.
    os._exit(code)
