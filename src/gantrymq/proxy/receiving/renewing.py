"""Renewing: keeps messages invisible while their clients are at work, and gives them back when a client goes.

Source: service/receipt/DefaultReceiptHandleManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gantrymq.background.jobs import Jobs
from gantrymq.background.tasks import Tasks
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.proxy.clients import Client, Clients, Watcher
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.for_each import for_each
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.receiving.handle import Handle
from gantrymq.proxy.receiving.held import Held, HeldMessages, MessageKey
from gantrymq.proxy.receiving.pop_requests import PopRequests
from gantrymq.proxy.retry_policy import retry_delay_ms
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.system import clock

log = peer_log(__name__)

#: Timeout of brokers to take back what clients hold when the proxy stops, s.
STOP_S = 2.0


class Renewing:
    """The messages that clients hold, with the jobs that keep them."""

    def __init__(
        self, config: ProxyConfig, requests: PopRequests, metadata: Metadata, clients: Clients, jobs: Jobs
    ) -> None:
        self._config = config
        self._requests = requests
        self._metadata = metadata
        self._clients = clients
        self.held = HeldMessages(config.renew_ahead_time_millis)
        self._giving_back = Tasks("giving messages back")
        self._renewing = jobs.repeating(
            "prolong the invisible time of messages", self._renew_all, config.renew_schedule_period_millis / 1000
        )
        clients.watch(Watcher(gone=self._gone))

    def start(self) -> None:
        self._renewing.start()

    async def stop(self) -> None:
        """Gives back what clients hold, which nobody renews any more; as far as brokers take it in time."""
        await self._renewing.stop()
        self.give_back(self.held.remove_all())
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._giving_back.wait()
        await self._giving_back.stop()

    def hold(self, held: Held) -> None:
        """Keeps a message invisible until its client says something of it."""
        if not self.held.add(held):
            log.warning(
                "clients hold %d messages: message %s of group %s isn't renewed",
                len(self.held),
                held.key.message_id,
                held.group,
            )

    @asynccontextmanager
    async def handle_of(
        self, client_id: str, group: str, topic: str, message_id: str, text: str
    ) -> AsyncIterator[Handle]:
        """The newest handle of a message of which its client has the first, for a request that settles it.

        The message isn't held any more, unless the request fails for a reason that may pass: then the client asks
        again, with the same handle. Raises ProxyError.
        """
        handle = Handle.parse(text)
        held = self.held.take(client_id, group, MessageKey.of(message_id, handle))
        if held is not None and held.topic != topic:
            self.held.put_back(held)
            raise ProxyError(Code.INVALID_RECEIPT_HANDLE, f"the receipt handle is of a message of topic {held.topic}")
        if held is None:
            handle.check_time(clock.now_ms())
            yield handle
            return
        if held.renewal is not None:
            await asyncio.wait([held.renewal])
        try:
            held.handle.check_time(clock.now_ms())
            yield held.handle
        except BaseException as e:
            is_final = isinstance(e, ProxyError) and e.code == Code.INVALID_RECEIPT_HANDLE
            if not is_final and self._clients.get(client_id) is not None:
                self.held.put_back(held)
            raise

    def give_back(self, messages: list[Held]) -> None:
        """Others get them soon."""
        if messages:
            self._giving_back.start(for_each(messages, self._give_back))

    def _gone(self, client: Client) -> None:
        self.give_back(self.held.remove_all(client.client_id))

    async def _give_back(self, held: Held) -> None:
        if held.renewal is not None:
            await asyncio.wait([held.renewal])
        try:
            await self._change(held, self._config.invisible_time_millis_when_clear)
        except GantryError as e:
            log.info("message %s comes again later, it can't be given back: %s", held.key.message_id, e)

    async def _renew_all(self) -> None:
        await for_each(self.held.due(clock.now_ms()), self._renew)

    async def _renew(self, held: Held) -> None:
        if not self.held.is_held(held):
            return
        held.renewal = asyncio.get_running_loop().create_future()
        try:
            if clock.now_ms() - held.popped_ms < self._config.renew_max_time_millis:
                await self._prolong(held)
            else:
                await self._end(held)
        except Exception:
            # Whatever it is, the message is tried again.
            self.held.failed(held, clock.now_ms())
            raise
        finally:
            held.renewal.set_result(None)
            held.renewal = None

    async def _prolong(self, held: Held) -> None:
        try:
            handle = await self._requests.change_invisible_time(held.handle, held.group, held.topic, held.renew_ms)
        except GantryError as e:
            log.warning("message %s of group %s isn't renewed: %s", held.key.message_id, held.group, e)
            is_final = isinstance(e, ProxyError) and e.code == Code.INVALID_RECEIPT_HANDLE
            if is_final or held.failures + 1 >= self._config.max_renew_retry_times:
                self.held.remove(held)
            else:
                self.held.failed(held, clock.now_ms())
        else:
            self.held.renewed(held, handle)

    async def _end(self, held: Held) -> None:
        """A message that is held for hours comes again as if its client had failed on it."""
        self.held.remove(held)
        try:
            group = await self._metadata.group(held.group)
            if group is None:
                return
            await self._change(held, retry_delay_ms(group.group_retry_policy, held.reconsume_times))
        except GantryError as e:
            log.warning("message %s of group %s can't be given back: %s", held.key.message_id, held.group, e)

    async def _change(self, held: Held, invisible_ms: int) -> None:
        held.handle = await self._requests.change_invisible_time(held.handle, held.group, held.topic, invisible_ms)
