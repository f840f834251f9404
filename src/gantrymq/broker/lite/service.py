"""The lite topics of a broker: creates their parts and runs their background jobs.

- `control` changes the subscriptions of clients, which `subscriptions` has.
- `dispatcher` decides which client reads a lite topic with messages. `pops` delivers them and handles acknowledgements.
- `expiry` deletes lite topics that nobody uses.
- `admin` answers administrators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.lite.admin import LiteAdmin
from gantrymq.broker.lite.control import LiteControl
from gantrymq.broker.lite.dispatcher import LiteDispatcher
from gantrymq.broker.lite.expiry import LiteExpiry
from gantrymq.broker.lite.pops import LitePops
from gantrymq.broker.lite.subscriptions import LiteSubscriptions
from gantrymq.broker.pop import OrderlyPops, PopLongPolling, PopService
from gantrymq.broker.pull import LongPolling
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pop import AckMessageRequestHeader, ChangeInvisibleTimeRequestHeader
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.light.light_queues import LightQueues

log = peer_log(__name__)

#: Interval of the removal of unused batches in flight, in seconds.
_CLEAN_S = 300.0
#: Number of subscriptions that one slice of an expiration removes, and the pause before the next slice, in seconds. The
#: subscriptions of all clients of a proxy expire together if it ends. Each removal takes about 5 us.
_EXPIRED_AT_ONCE = 1000
_PAUSE_S = 0.05
#: The start of the field that distinguishes requests for messages of lite topics, in JSON and in binary headers.
_LITE_TOPIC_FIELD = b"liteTopic"


class LiteTopics(Feature):
    """Runs lite topics on one broker with light queues. It also receives the acknowledgements of all pops."""

    def __init__(self, context: BrokerContext, *, light: LightQueues, polling: LongPolling, pops: PopService) -> None:
        config, jobs, events = context.config, context.jobs, context.events
        self._offsets = context.offsets
        self._polling = polling
        self._acks = pops.acks
        self._config = config
        self.subscriptions = subscriptions = LiteSubscriptions(context, watch=self._watch, freed=self._freed)
        self.orderly = orderly = OrderlyPops(None, self._exists, persistence=context.persistence)
        self._groups = context.groups
        self._light = light
        self.waiting = waiting = PopLongPolling(
            "pops of lite topics",
            polling,
            jobs,
            queue_limit=config.pop_polling_size,
            limit=config.max_pop_polling_size,
        )
        self.dispatcher = dispatcher = LiteDispatcher(
            context, subscriptions=subscriptions, orderly=orderly, waiting=waiting
        )
        self._pops = lite_pops = LitePops(
            context,
            subscriptions=subscriptions,
            dispatcher=dispatcher,
            orderly=orderly,
            waiting=waiting,
            queues=pops.queues,
        )
        control = LiteControl(context, subscriptions=subscriptions, dispatcher=dispatcher, orderly=orderly)
        admin = LiteAdmin(context, light=light, subscriptions=subscriptions, dispatcher=dispatcher, orderly=orderly)
        self._handlers = {
            **pops.acks.handlers(),
            **lite_pops.handlers(),
            **control.handlers(),
            **admin.handlers(),
            RequestCode.ACK_MESSAGE: self._ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._change_invisible_time,
        }
        self._expiry = LiteExpiry(context, light=light, deleted=self._lite_topics_deleted)
        self._checking = jobs.repeating(
            "expire subscriptions of lite topics", self._expire, config.lite_subscription_check_interval / 1000
        )
        self._cleaning = jobs.repeating("remove unused batches of lite topics", self._clean, _CLEAN_S)
        self._clean_steps: Iterator[None] | None = None
        events.connection_closed.subscribe(waiting.connection_closed)
        events.config_changed.subscribe(self._config_changed)
        events.mastership_doubted.subscribe(self._mastership_doubted)
        events.offsets_reset.subscribe(lambda topic, group, offsets: orderly.discard(topic, group, offsets.keys()))

    def handlers(self) -> dict[int, RequestHandler]:
        return self._handlers

    async def start(self) -> None:
        await self.waiting.start()

    async def become_master(self) -> None:
        self.dispatcher.start()
        self._expiry.start()
        self._checking.start()
        self._cleaning.start()
        self.waiting.admit()

    async def become_slave(self) -> None:
        """Ends the pops. Clients subscribe on the new master again."""
        self._end()
        await self.waiting.dismiss()
        self.subscriptions.forget_all()
        self.dispatcher.forget()
        self.orderly.clear()

    async def stop(self) -> None:
        self._end()
        await self.waiting.stop()

    def _end(self) -> None:
        self.dispatcher.stop()
        self._expiry.stop()
        self._checking.cancel()
        self._cleaning.cancel()

    def _config_changed(self) -> None:
        self.waiting.set_limits(queue_limit=self._config.pop_polling_size, limit=self._config.max_pop_polling_size)

    def _mastership_doubted(self, is_doubted: bool) -> None:
        """Ends long polls while another broker may be master."""
        if is_doubted:
            self.waiting.dismiss_soon()
        else:
            self.waiting.admit()

    def _ack(self, connection: Connection, request: RemotingCommand) -> Reply:
        if _LITE_TOPIC_FIELD in request.raw_ext:
            header = request.read_header(AckMessageRequestHeader)
            if header.lite_topic:
                return self._pops.ack(header)
        return self._acks.ack(connection, request)

    def _change_invisible_time(self, connection: Connection, request: RemotingCommand) -> Reply:
        if _LITE_TOPIC_FIELD in request.raw_ext:
            header = request.read_header(ChangeInvisibleTimeRequestHeader)
            if header.lite_topic:
                return self._pops.change_invisible_time(header)
        return self._acks.change_invisible_time(connection, request)

    def _watch(self, queue: ConsumeQueue, is_watched: bool) -> None:
        if is_watched:
            self._polling.watch(queue, self.dispatcher.arrived)
        else:
            self._polling.unwatch(queue, self.dispatcher.arrived)

    def _freed(self, name: str, group: str) -> None:
        self.dispatcher.dispatch(name, group)

    def _exists(self, topic: str, group: str, queue_id: int) -> bool:
        return self._groups.find(group) is not None

    def _expire(self) -> float | None:
        """Removes the clients that have not repeated their subscriptions in time, in slices.

        Returns the pause before the next slice, in seconds; None after the last one.
        """
        before = self.subscriptions.count
        for client in self.subscriptions.expired():
            if before - self.subscriptions.count >= _EXPIRED_AT_ONCE:
                return _PAUSE_S
            log.info(
                "the %d lite topics of client %s in group %s have expired",
                len(client.queues),
                client.client_id,
                client.group,
            )
            self.subscriptions.forget(client)
        return None

    def _clean(self) -> float | None:
        """Removes unused batches in flight, in slices. Returns the pause before the next one; None after the last."""
        if self._clean_steps is None:
            self._clean_steps = self.orderly.removal()
        for _ in self._clean_steps:
            return _PAUSE_S
        self._clean_steps = None
        return None

    def _lite_topics_deleted(self, names: Collection[str]) -> None:
        self._offsets.remove_topics(set(names))
        for name in names:
            self.subscriptions.forget_queue(name)
        self.orderly.discard_topics(set(names))
