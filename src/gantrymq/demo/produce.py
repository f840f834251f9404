"""Sends the flights ordered by hour, and continues after the last flight that an earlier run has recorded as sent.

All flights of an aircraft go to one queue. The flights of a week are sent in one batch per queue, and recorded as sent
when all batches are acknowledged. If a run is interrupted before that, the next run sends the week again, and Spark
drops the duplicates.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import queue_by_hash
from gantrymq.demo.flights import encode_flights
from gantrymq.errors import GantryError, NoRouteInfo
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message, MessageQueue

if TYPE_CHECKING:
    import pandas as pd

    from gantrymq.demo.state import DemoState

GROUP = "gantry-demo"
QUEUES_PER_BROKER = 4
#: About a week of flights: eight batches of 800 flights, 200 KB each.
FLIGHTS_PER_STEP = 6_500
ROUTE_TIMEOUT_S = 10.0
ROUTE_POLL_S = 0.05
SEND_TIMEOUT_S = 10.0
#: A flight that is later than all other flights by more than the watermark, so that all hours become final.
END_BODY = b'{"id":-1,"hour":"2014-06-01T00:00:00Z","carrier":"END"}'


async def create_topics(namesrv_addr: str, brokers: Sequence[str], topics: Sequence[str]) -> None:
    """Creates the topics on all brokers (HOST:PORT), and waits until the NameServer has their routes. Idempotent."""
    async with Producer(namesrv_addr, GROUP) as producer:
        api = producer.client.api
        for topic in topics:
            config = TopicConfig(topic, read_queue_nums=QUEUES_PER_BROKER, write_queue_nums=QUEUES_PER_BROKER)
            for broker in brokers:
                await api.create_topic(broker, config)
        for topic in topics:
            await _wait_for_route(producer, namesrv_addr, topic, len(brokers))


async def _wait_for_route(producer: Producer, namesrv_addr: str, topic: str, brokers: int) -> None:
    for _ in range(int(ROUTE_TIMEOUT_S / ROUTE_POLL_S)):
        if await _is_on(producer, namesrv_addr, topic, brokers):
            return
        await asyncio.sleep(ROUTE_POLL_S)
    raise GantryError(f"the NameServer does not have topic {topic} on {brokers} brokers after {ROUTE_TIMEOUT_S:g} s")


async def _is_on(producer: Producer, namesrv_addr: str, topic: str, brokers: int) -> bool:
    try:
        return len((await producer.client.api.route(namesrv_addr, topic)).queue_datas) == brokers
    except NoRouteInfo:
        return False


async def send_flights(
    namesrv_addr: str,
    topic: str,
    flights: pd.DataFrame,
    state: DemoState,
    stop: threading.Event,
    on_sent: Callable[[int], None],
) -> None:
    """Sends the flights that `state` does not record yet, and records them. `on_sent` gets the number sent so far."""
    async with Producer(namesrv_addr, GROUP) as producer:
        queues = await producer.queues(topic)
        on_sent(state.progress.sent)
        while state.progress.sent < len(flights) and not stop.is_set():
            step = flights.iloc[state.progress.sent : state.progress.sent + FLIGHTS_PER_STEP]
            batches: defaultdict[MessageQueue, list[Message]] = defaultdict(list)
            for tailnum, carrier, body in encode_flights(step):
                message = Message(topic, body, keys=tailnum, tags=carrier)
                batches[queue_by_hash(tailnum, queues)].append(message)
            await asyncio.gather(
                *(producer.send_batch(batch, timeout=SEND_TIMEOUT_S, queue=queue) for queue, batch in batches.items())
            )
            state.progress.sent += len(step)
            state.save()
            on_sent(state.progress.sent)


async def send_end(namesrv_addr: str, topic: str) -> None:
    """Sends the message that makes every hour final. Must be called after Spark has read all flights."""
    async with Producer(namesrv_addr, GROUP) as producer:
        await producer.send(Message(topic, END_BODY, tags="END"))
