"""HeldMessages: messages that are being worked on, kept from other workers for as long as that takes.

A popped message comes again when its invisible time is over. That is short, so that the tasks of a worker that died
come again soon, and renewed while the worker lives, so that a task may take as long as it likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypedDict

from gantrymq.background.repeating import Repeating
from gantrymq.client.failover import is_role_change
from gantrymq.client.popping.simple_consumer import INVISIBLE_MS, SimpleConsumer
from gantrymq.errors import BrokerError, BrokerUnavailable, ClientError, GantryError, RemotingError
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageExt
from gantrymq.remoting.connection import RpcHook
from gantrymq.system import tls

log = peer_log(__name__)

#: Renewed so often in an invisible time: two renewals may fail.
_RENEWALS = 3
#: A message that is given back comes again so soon, ms.
_GIVEN_BACK_MS = 10


class ConnectionOptions(TypedDict, total=False):
    """What producers and consumers have in common."""

    namespace: str
    ssl_context: tls.SSLContext | None
    hooks: Sequence[RpcHook]


class _Held:
    """One message; the lock is held while its receipt handle changes, or is used for the last time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        #: It is to be acknowledged, not renewed.
        self.is_done = False


class HeldMessages:
    """Receives from a started SimpleConsumer and holds what came, from `start` to `stop`, in one event loop.

    What it holds at its stop comes again at once; when the process dies, `invisible_ms` after the last renewal.
    """

    def __init__(self, consumer: SimpleConsumer, invisible_ms: int = INVISIBLE_MS) -> None:
        if invisible_ms < _RENEWALS:
            raise ClientError(f"invisible_ms {invisible_ms}: ms are meant, and not so few")
        self._consumer = consumer
        self._invisible_ms = invisible_ms
        self._held: dict[MessageExt, _Held] = {}
        self._renewing = Repeating(
            f"holding messages of group {consumer.group}", self._renew, invisible_ms / 1000 / _RENEWALS
        )

    def start(self) -> None:
        """Begins to renew."""
        self._renewing.start()

    async def stop(self) -> None:
        """Gives back what is held, and says once more what is done and couldn't be said."""
        await self._renewing.stop()
        ending = [self._end(message, held) for message, held in list(self._held.items())]
        for error in await asyncio.gather(*ending, return_exceptions=True):
            if error is not None:
                log.warning("a message couldn't be given back, it comes again later: %s", error)

    async def _end(self, message: MessageExt, held: _Held) -> None:
        if not held.is_done:
            await self.give_back(message)
            return
        self._held.pop(message, None)
        await self._consumer.ack(message)

    def __len__(self) -> int:
        return len(self._held)

    async def receive(self, max_messages: int, await_ms: int) -> list[MessageExt]:
        """As SimpleConsumer.receive; these are held."""
        messages = await self._consumer.receive(max_messages, self._invisible_ms, await_ms)
        self._held |= {message: _Held() for message in messages}
        return messages

    async def ack(self, message: MessageExt) -> None:
        """Says that a message is done; while the broker can't be reached it is said again instead of a renewal.

        Raises BrokerError when the message's time is over: then it comes again.
        """
        held = self._held.setdefault(message, _Held())
        held.is_done = True
        async with held.lock:
            await self._ack(message)

    async def give_back(self, message: MessageExt) -> None:
        """Has a message come again at once, to whoever asks. Raises BrokerError, RemotingError: then later."""
        held = self._held.pop(message, None) or _Held()
        async with held.lock:
            await self._consumer.change_invisible_time(message, _GIVEN_BACK_MS)

    def drop(self, message: MessageExt) -> None:
        """Holds a message no longer: it comes again when its time is over, and goes to the dead letters at last."""
        self._held.pop(message, None)

    async def _ack(self, message: MessageExt) -> None:
        try:
            await self._consumer.ack(message)
        except (RemotingError, BrokerUnavailable) as e:
            log.info("%s is done, which is to be said again: %s", message.place, e)
        except BaseException:
            self._held.pop(message, None)
            raise
        else:
            self._held.pop(message, None)

    async def _renew(self) -> None:
        await asyncio.gather(*(self._renew_one(message, held) for message, held in list(self._held.items())))

    async def _renew_one(self, message: MessageExt, held: _Held) -> None:
        async with held.lock:
            if self._held.get(message) is not held:
                return
            try:
                if held.is_done:
                    await self._ack(message)
                else:
                    await self._consumer.change_invisible_time(message, self._invisible_ms)
            except BrokerError as e:
                if is_role_change(e):
                    log.warning("%s couldn't be held, and will be tried again: %s", message.place, e)
                    return
                self._held.pop(message, None)
                log.warning("%s can't be held any longer, others may get it: %s", message.place, e)
            except GantryError as e:
                log.warning("%s couldn't be held, and will be tried again: %s", message.place, e)
