"""InFlightMessages: hides messages from other workers while a worker processes them.

A popped message is redelivered when its invisible duration ends. The duration is short, so that the tasks of a dead
worker are redelivered soon. The worker renews it, so a task can take any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TypedDict

from gantrymq.background.repeating import Repeating
from gantrymq.client.credentials import Credentials
from gantrymq.client.failover import is_role_change
from gantrymq.client.popping.poll_rotation import INVISIBLE_S
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.errors import BrokerError, BrokerUnavailable, ClientError, GantryError, RemotingError
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageExt
from gantrymq.remoting.connection import RpcHook
from gantrymq.system import tls
from gantrymq.times import duration_s

log = peer_log(__name__)

#: Renewals in an invisible duration. With three renewals, two may fail.
_RENEWALS = 3
#: Shortest invisible duration, in seconds, with renewals every 1 ms.
_SHORTEST_S = 0.003
#: Delay before a requeued message is redelivered, in seconds.
_GIVEN_BACK_S = 0.01


class ConnectionOptions(TypedDict, total=False):
    """Options that producers and consumers share."""

    namespace: str
    ssl_context: tls.SSLContext | None
    credentials: Credentials | None
    hooks: Sequence[RpcHook]


class _InFlight:
    """One message. The lock is held while its receipt handle changes or is used for the last time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        #: True if the message is to be acknowledged instead of renewed.
        self.is_done = False


class InFlightMessages:
    """Receives from a started SimpleConsumer and renews the messages, from `start` to `stop`, in one event loop.

    At `stop`, pending messages are redelivered at once. If the process dies, they are redelivered `invisible_time`
    after their last renewal.
    """

    def __init__(self, consumer: SimpleConsumer, invisible_time: float | timedelta = INVISIBLE_S) -> None:
        invisible_s = duration_s("invisible_time", invisible_time)
        if invisible_s < _SHORTEST_S:
            raise ClientError(f"invisible_time={invisible_time!r}: must be at least {_SHORTEST_S} s")
        self._consumer = consumer
        self._invisible_s = invisible_s
        self._in_flight: dict[MessageExt, _InFlight] = {}
        self._renewing = Repeating(f"holding messages of group {consumer.group}", self._renew, invisible_s / _RENEWALS)

    def start(self) -> None:
        """Starts to renew messages."""
        self._renewing.start()

    async def stop(self) -> None:
        """Requeues pending messages, and repeats failed acknowledgements."""
        await self._renewing.stop()
        ending = [self._end(message, entry) for message, entry in list(self._in_flight.items())]
        for error in await asyncio.gather(*ending, return_exceptions=True):
            if error is not None:
                log.warning("can't make a message available at once, it is redelivered later: %s", error)

    async def _end(self, message: MessageExt, entry: _InFlight) -> None:
        if not entry.is_done:
            await self.give_back(message)
            return
        self._in_flight.pop(message, None)
        await self._consumer.ack(message)

    def __len__(self) -> int:
        return len(self._in_flight)

    async def receive(self, max_messages: int, timeout_s: float) -> list[MessageExt]:
        """Receives like `SimpleConsumer.receive`, and renews the messages."""
        messages = await self._consumer.receive(max_messages, invisible_time=self._invisible_s, timeout=timeout_s)
        self._in_flight |= {message: _InFlight() for message in messages}
        return messages

    async def ack(self, message: MessageExt) -> None:
        """Acknowledges a message. If the broker is unreachable, the next renewals repeat the acknowledgement.

        Raises BrokerError if the invisible duration has ended; the message is then redelivered.
        """
        entry = self._in_flight.setdefault(message, _InFlight())
        entry.is_done = True
        async with entry.lock:
            await self._ack(message)

    async def give_back(self, message: MessageExt) -> None:
        """Requeues a message for immediate redelivery. On BrokerError or RemotingError, it is redelivered later."""
        entry = self._in_flight.pop(message, None) or _InFlight()
        async with entry.lock:
            await self._consumer.change_invisible_time(message, _GIVEN_BACK_S)

    def drop(self, message: MessageExt) -> None:
        """Stops the renewals of a message. It is redelivered after its invisible duration, or becomes a dead letter."""
        self._in_flight.pop(message, None)

    async def _ack(self, message: MessageExt) -> None:
        try:
            await self._consumer.ack(message)
        except (RemotingError, BrokerUnavailable) as e:
            log.info("%s is done, which is to be said again: %s", message.place, e)
        except BaseException:
            self._in_flight.pop(message, None)
            raise
        else:
            self._in_flight.pop(message, None)

    async def _renew(self) -> None:
        await asyncio.gather(*(self._renew_one(message, entry) for message, entry in list(self._in_flight.items())))

    async def _renew_one(self, message: MessageExt, entry: _InFlight) -> None:
        async with entry.lock:
            if self._in_flight.get(message) is not entry:
                return
            try:
                if entry.is_done:
                    await self._ack(message)
                else:
                    await self._consumer.change_invisible_time(message, self._invisible_s)
            except BrokerError as e:
                if is_role_change(e):
                    log.warning("%s couldn't be held, and will be tried again: %s", message.place, e)
                    return
                self._in_flight.pop(message, None)
                log.warning("%s can't be held any longer, others may get it: %s", message.place, e)
            except GantryError as e:
                log.warning("%s couldn't be held, and will be tried again: %s", message.place, e)
