"""Reads the result topic with a PushConsumer, and drops duplicates."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.demo.flights import FIGURES
from gantrymq.protocol.message import MessageExt

if TYPE_CHECKING:
    import pandas as pd

POLL_INTERVAL_S = 0.1


class Delay(msgspec.Struct, frozen=True):
    """A message of the result topic: the figures of one carrier and hour."""

    carrier: str
    hour: datetime
    flights: int
    departed: int
    departure_delay: int
    arrived: int
    arrival_delay: int


class Collected:
    """The results received so far, by (carrier, hour). `contradictions` counts duplicates with different figures."""

    def __init__(self) -> None:
        self.messages = 0
        self.contradictions = 0
        self._by_key: dict[tuple[str, datetime], Delay] = {}
        self._decode = msgspec.json.Decoder(Delay).decode

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, body: bytes) -> None:
        """Adds a message. Raises msgspec.DecodeError if its body is no result."""
        delay = self._decode(body)
        self.messages += 1
        if self._by_key.setdefault((delay.carrier, delay.hour), delay) != delay:
            self.contradictions += 1

    def figures(self) -> pd.DataFrame:
        """Returns the columns FIGURES, indexed by (carrier, hour)."""
        import pandas as pd

        table = pd.DataFrame([msgspec.structs.asdict(delay) for delay in self._by_key.values()])
        if table.empty:
            table = pd.DataFrame(columns=["carrier", "hour", *FIGURES])
        table["hour"] = pd.to_datetime(table["hour"], utc=True)
        return table.set_index(["carrier", "hour"]).sort_index()


async def collect(
    namesrv_addr: str,
    topic: str,
    collected: Collected,
    wanted: int,
    stop: threading.Event,
    on_collected: Callable[[], None],
) -> None:
    """Reads `topic` from its beginning into `collected`, until there are `wanted` results or `stop` is set."""

    async def handle(message: MessageExt) -> None:
        collected.add(message.body)

    # A new group for each run, so that it has no committed offsets.
    group = f"gantry-demo-{uuid.uuid4().hex[:12]}"
    consumer = PushConsumer(namesrv_addr, group, handle, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer:
        while len(collected) < wanted and not stop.is_set():
            await asyncio.sleep(POLL_INTERVAL_S)
            on_collected()
