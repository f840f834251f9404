"""HeldMessages: messages that are being worked on, kept from other workers for as long as that takes.

A popped message comes again when its invisible time is over. That is short, so that the tasks of a worker that died
come again soon, and renewed while the worker lives, so that a task may take as long as it likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypedDict

from gantrymq.background.repeating import Repeating
from gantrymq.client.popping.simple_consumer import INVISIBLE_MS, SimpleConsumer
from gantrymq.errors import BrokerError, ClientError, GantryError
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


class HeldMessages:
    """Receives from a started SimpleConsumer and holds what came, from `start` to `stop`, in one event loop.

    What it holds at its stop comes again at once; when the process dies, `invisible_ms` after the last renewal.
    """

    def __init__(self, consumer: SimpleConsumer, invisible_ms: int = INVISIBLE_MS) -> None:
        if invisible_ms < _RENEWALS:
            raise ClientError(f"invisible_ms {invisible_ms}: ms are meant, and not so few")
        self._consumer = consumer
        self._invisible_ms = invisible_ms
        #: The lock is held while a message's receipt handle changes.
        self._held: dict[MessageExt, asyncio.Lock] = {}
        self._renewing = Repeating(
            f"holding messages of group {consumer.group}", self._renew, invisible_ms / 1000 / _RENEWALS
        )

    def start(self) -> None:
        """Begins to renew."""
        self._renewing.start()

    async def stop(self) -> None:
        """Gives back what is held."""
        await self._renewing.stop()
        for error in await asyncio.gather(
            *(self.give_back(message) for message in list(self._held)), return_exceptions=True
        ):
            if isinstance(error, BaseException):
                log.warning("a message couldn't be given back, it comes again later: %s", error)

    def __len__(self) -> int:
        return len(self._held)

    async def receive(self, max_messages: int, await_ms: int) -> list[MessageExt]:
        """As SimpleConsumer.receive; these are held."""
        messages = await self._consumer.receive(max_messages, self._invisible_ms, await_ms)
        self._held |= {message: asyncio.Lock() for message in messages}
        return messages

    async def ack(self, message: MessageExt) -> None:
        """Says that a message is done. Raises BrokerError, RemotingError: then it comes again."""
        async with self._let_go(message):
            await self._consumer.ack(message)

    async def give_back(self, message: MessageExt) -> None:
        """Has a message come again at once, to whoever asks. Raises BrokerError, RemotingError: then later."""
        async with self._let_go(message):
            await self._consumer.change_invisible_time(message, _GIVEN_BACK_MS)

    def drop(self, message: MessageExt) -> None:
        """Holds a message no longer: it comes again when its time is over, and goes to the dead letters at last."""
        self._held.pop(message, None)

    def _let_go(self, message: MessageExt) -> asyncio.Lock:
        """What a renewal that is under way holds; there is no other one."""
        return self._held.pop(message, None) or asyncio.Lock()

    async def _renew(self) -> None:
        await asyncio.gather(*(self._renew_one(message) for message in list(self._held)))

    async def _renew_one(self, message: MessageExt) -> None:
        lock = self._held.get(message)
        if lock is None:
            return
        async with lock:
            if message not in self._held:
                return
            try:
                await self._consumer.change_invisible_time(message, self._invisible_ms)
            except BrokerError as e:
                self._held.pop(message, None)
                log.warning("%s can't be held any longer, others may get it: %s", message.place, e)
            except GantryError as e:
                log.warning("%s couldn't be held, and will be tried again: %s", message.place, e)
