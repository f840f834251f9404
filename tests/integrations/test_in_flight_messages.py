"""Tests that InFlightMessages repeats acks after a broker was down, and renews the invisible duration."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from ports import free_port
from wait_until import until

from gantrymq import Message, Producer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.errors import ClientError
from gantrymq.integrations.in_flight import InFlightMessages
from gantrymq.testing.processes import ProcessCluster

INVISIBLE_S = 6.0


async def test_what_is_done_is_said_when_the_broker_is_there_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    properties = {"mappedFileSizeCommitLog": str(16 * 1024 * 1024), "listenPort": str(free_port())}
    with ProcessCluster(tmp_path, broker_properties=properties) as cluster:
        async with Producer(cluster.namesrv_addr, "tasks") as producer:
            await producer.send(Message("held", b"task"))
        consumer = SimpleConsumer(cluster.namesrv_addr, "held")
        consumer.subscribe("held")
        async with consumer:
            in_flight = InFlightMessages(consumer, INVISIBLE_S)
            in_flight.start()
            (message,) = await in_flight.receive(1, 5.0)
            (broker,) = cluster.brokers
            broker.stop()
            await in_flight.ack(message)
            assert len(in_flight) == 1
            broker.restart()
            broker.wait_until_ready(time.monotonic() + 20)
            await until(lambda: len(in_flight) == 0)
            await in_flight.stop()
    # The repeated ack arrived in time, and the broker accepted it.
    assert "is done, which is to be said again" in caplog.text
    assert "can't be held" not in caplog.text


@pytest.mark.parametrize("invisible_time", [0, 1e-9, 0.0029])
def test_an_invisible_time_that_is_too_short(invisible_time: float) -> None:
    with pytest.raises(ClientError, match=f"invisible_time={invisible_time}: must be at least 0.003 s"):
        InFlightMessages(SimpleConsumer("127.0.0.1:1", "held"), invisible_time)
