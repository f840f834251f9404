"""Renewal of in-flight messages: extends their invisible duration while clients process them.

If a client disconnects, its messages become visible again.

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
from gantrymq.proxy.concurrency import for_each
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.consumer.handle import Handle
from gantrymq.proxy.consumer.in_flight_messages import InFlightMessage, InFlightMessages, MessageKey
from gantrymq.proxy.consumer.pop_requests import PopRequests
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.retry_policy import retry_delay_ms
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.system import clock

log = peer_log(__name__)

#: Timeout to make the in-flight messages visible again when the proxy stops, s.
STOP_S = 2.0


class ReceiptHandleManager:
    """Renews the in-flight messages of the proxy's clients, and makes them visible again when a client disconnects."""

    def __init__(
        self, config: ProxyConfig, requests: PopRequests, metadata: Metadata, clients: Clients, jobs: Jobs
    ) -> None:
        self._config = config
        self._requests = requests
        self._metadata = metadata
        self._clients = clients
        self.in_flight = InFlightMessages(config.renew_ahead_time_millis)
        self._giving_back = Tasks("giving messages back")
        self._renewal_job = jobs.repeating(
            "prolong the invisible time of messages", self._renew_all, config.renew_schedule_period_millis / 1000
        )
        clients.watch(Watcher(gone=self._gone))

    def start(self) -> None:
        self._renewal_job.start()

    async def stop(self) -> None:
        """Stops the renewals and makes the in-flight messages visible again, within STOP_S."""
        await self._renewal_job.stop()
        self.give_back(self.in_flight.remove_all())
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._giving_back.wait()
        await self._giving_back.stop()

    def add(self, message: InFlightMessage) -> None:
        """Keeps a message invisible until its client settles it or disconnects."""
        if not self.in_flight.add(message):
            log.warning(
                "clients hold %d messages: message %s of group %s isn't renewed",
                len(self.in_flight),
                message.key.message_id,
                message.group,
            )

    @asynccontextmanager
    async def handle_of(
        self, client_id: str, group: str, topic: str, message_id: str, text: str, lite_topic: str = ""
    ) -> AsyncIterator[Handle]:
        """Yields the newest handle of a message, for a request that settles it. `text` is the client's handle.

        `lite_topic` is the lite topic in the request: the handle of another proxy does not have it.

        The message is no longer renewed. If the request fails for a temporary reason, the renewals go on, and the
        client can retry with the same handle. Raises ProxyError for an invalid or expired handle.
        """
        handle = Handle.parse(text)
        if lite_topic and not handle.lite_topic:
            handle = handle._replace(lite_topic=lite_topic)
        message = self.in_flight.take(client_id, group, MessageKey.of(message_id, handle))
        if message is not None and message.topic != topic:
            self.in_flight.put_back(message)
            raise ProxyError(
                Code.INVALID_RECEIPT_HANDLE, f"the receipt handle is of a message of topic {message.topic}"
            )
        if message is None:
            handle.check_time(clock.now_ms())
            yield handle
            return
        if message.renewal is not None:
            await asyncio.wait([message.renewal])
        try:
            message.handle.check_time(clock.now_ms())
            yield message.handle
        except BaseException as e:
            is_final = isinstance(e, ProxyError) and e.code == Code.INVALID_RECEIPT_HANDLE
            if not is_final and self._clients.get(client_id) is not None:
                self.in_flight.put_back(message)
            raise

    def give_back(self, messages: list[InFlightMessage]) -> None:
        """Makes messages visible after `invisible_time_millis_when_clear`, so that other consumers receive them."""
        if messages:
            self._giving_back.start(for_each(messages, self._give_back))

    def _gone(self, client: Client) -> None:
        self.give_back(self.in_flight.remove_all(client.client_id))

    async def _give_back(self, message: InFlightMessage) -> None:
        if message.renewal is not None:
            await asyncio.wait([message.renewal])
        try:
            await self._change(message, self._config.invisible_time_millis_when_clear)
        except GantryError as e:
            log.info("can't make message %s available at once, it is redelivered later: %s", message.key.message_id, e)

    async def _renew_all(self) -> None:
        await for_each(self.in_flight.due(clock.now_ms()), self._renew)

    async def _renew(self, message: InFlightMessage) -> None:
        """Renews a due message, or ends its renewals if it is too old."""
        if not self.in_flight.has(message):
            return
        message.renewal = asyncio.get_running_loop().create_future()
        try:
            if clock.now_ms() - message.popped_ms < self._config.renew_max_time_millis:
                await self._prolong(message)
            else:
                await self._end(message)
        except Exception:
            # The message is scheduled again. Otherwise an unexpected error would end its renewals.
            self.in_flight.failed(message, clock.now_ms())
            raise
        finally:
            message.renewal.set_result(None)
            message.renewal = None

    async def _prolong(self, message: InFlightMessage) -> None:
        """Extends the invisible duration of a message. After a final error, removes it from the table."""
        try:
            handle = await self._requests.change_invisible_time(
                message.handle, message.group, message.topic, message.renew_ms
            )
        except GantryError as e:
            log.warning("message %s of group %s isn't renewed: %s", message.key.message_id, message.group, e)
            is_final = isinstance(e, ProxyError) and e.code == Code.INVALID_RECEIPT_HANDLE
            if is_final or message.failures + 1 >= self._config.max_renew_retry_times:
                self.in_flight.remove(message)
            else:
                self.in_flight.failed(message, clock.now_ms())
        else:
            self.in_flight.renewed(message, handle)

    async def _end(self, message: InFlightMessage) -> None:
        """Ends the renewals of a message after `renew_max_time_millis`. It is redelivered with the group's backoff."""
        self.in_flight.remove(message)
        try:
            group = await self._metadata.group(message.group)
            if group is None:
                return
            await self._change(message, retry_delay_ms(group.group_retry_policy, message.reconsume_times))
        except GantryError as e:
            log.warning("message %s of group %s can't be given back: %s", message.key.message_id, message.group, e)

    async def _change(self, message: InFlightMessage, invisible_ms: int) -> None:
        message.handle = await self._requests.change_invisible_time(
            message.handle, message.group, message.topic, invisible_ms
        )
