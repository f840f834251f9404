"""A transport for Kombu, and so for Celery. The extra `gantrymq[celery]`.

    import gantrymq.integrations.celery                     # tells Kombu of rocketmq://
    from celery import Celery

    app = Celery("shop", broker="rocketmq://127.0.0.1:9876")

A queue is a topic, which its workers share as one group. Each message is popped by one worker, and held while that
lives; the message of a task with an ETA is a timed message. docs/integrations.md says what Celery makes of it.

Source: kombu.transport.virtual, whose exchanges and bindings these are; they exist in each process by itself.
"""

from __future__ import annotations

import re
import ssl as ssl_module
from datetime import UTC, datetime
from queue import Empty
from time import monotonic
from typing import Any
from urllib.parse import unquote

from gantrymq.client.acl_hook import AclHook
from gantrymq.errors import ClientClosed, ClientError, GantryError, RemotingError, ThreadDied
from gantrymq.extras import missing
from gantrymq.integrations.held import ConnectionOptions
from gantrymq.integrations.kombu_link import Link
from gantrymq.logs import peer_log
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.system.clock import now_ms

try:
    from kombu.transport import TRANSPORT_ALIASES, virtual
    from kombu.utils.json import dumps, loads
except ImportError as e:
    raise missing("celery", "gantrymq.integrations.celery", e) from e

log = peer_log(__name__)

SCHEME = "rocketmq"
DEFAULT_PORT = 9876
#: Without the option `visibility_timeout`, s.
VISIBILITY_TIMEOUT_S = 60.0
#: Brokers take messages for three days ahead (timerMaxDelaySec); a later ETA is waited for by the worker from then on.
LONGEST_DELAY_MS = 3 * 24 * 3600 * 1000 - 60_000
#: The most messages of one request.
_BATCH = 32
#: How long a worker without an event loop waits for something to be acknowledged when it may fetch no more, s.
_FULL_S = 0.05


class Channel(virtual.Channel):
    """A virtual channel whose queues are topics."""

    #: The broker knows what nobody has acknowledged.
    do_restore = False
    connection: Transport

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        #: By delivery tag: the queue and the message to acknowledge.
        self._in_hand: dict[str, tuple[str, MessageExt]] = {}
        self._no_ack: set[str] = set()

    # -- sending --------------------------------------------------------------------------------------------------

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        link = self.connection.link
        keys = message["properties"].get("correlation_id") or (message.get("headers") or {}).get("id")
        link.send(
            Message(
                link.topic(queue),
                dumps(message).encode(),
                keys=[keys] if isinstance(keys, str) and keys and not re.search(r"\s", keys) else None,
                deliver_at_ms=_eta_ms(message),
            )
        )

    # -- receiving ------------------------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        """Messages of `queue` are for `callback` from now on."""
        if no_ack:
            self._no_ack.add(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> None:
        """No more of them."""
        self._no_ack.discard(self._tag_to_queue.get(consumer_tag, ""))
        super().basic_cancel(consumer_tag)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """One message of `queue`, or None."""
        message = super().basic_get(queue, no_ack, **kwargs)
        if message is not None and no_ack:
            self._ack(message.delivery_tag)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        message = self.connection.link.receive(queue)
        payload = message and self._payload(queue, message)
        if not payload:
            raise Empty
        return payload

    def ask(self) -> None:
        """Has as many messages fetched as may be delivered here."""
        link = self.connection.link
        queues = list(dict.fromkeys(self._active_queues))
        room = self.qos.can_consume_max_estimate()
        left = _BATCH * len(queues) if room is None else room - sum(map(link.asked, queues))
        for queue in queues:
            if left <= 0:
                break
            if not link.asked(queue):
                count = min(left, _BATCH)
                link.ask(queue, count)
                left -= count

    def deliver(self, queue: str, message: MessageExt) -> bool:
        """Gives a message to the queue's consumer; false for one that can't be read."""
        payload = self._payload(queue, message)
        if payload is None:
            return False
        tag = payload["properties"]["delivery_tag"]
        self.connection._deliver(payload, queue)
        if queue in self._no_ack:
            self._ack(tag)
        return True

    def _payload(self, queue: str, message: MessageExt) -> dict[str, Any] | None:
        """What Kombu's message is made of."""
        try:
            payload: dict[str, Any] = loads(message.body)
            properties = payload["properties"]
            info = properties.setdefault("delivery_info", {})
        except (GantryError, ValueError, TypeError, LookupError, AttributeError) as e:
            log.error("no message of Kombu at %s, it will be a dead letter: %s: %s", message.place, type(e).__name__, e)
            self.connection.link.drop(queue, message)
            return None
        properties["delivery_tag"] = tag = self._next_delivery_tag()
        info["redelivered"] = message.reconsume_times > 0
        self._in_hand[tag] = (queue, message)
        return payload

    # -- afterwards -----------------------------------------------------------------------------------------------

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """A message is done."""
        self._ack(delivery_tag)
        super().basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """A message is to come again at once, or to be forgotten: nothing makes it a dead letter."""
        if requeue:
            if (held := self._in_hand.pop(delivery_tag, None)) is not None:
                self.connection.link.give_back(*held)
        else:
            self._ack(delivery_tag)
        self.qos.ack(delivery_tag)

    def basic_recover(self, requeue: bool = False) -> None:
        """All that isn't acknowledged comes again."""
        if not requeue:
            raise NotImplementedError("recover(requeue=False): messages can't be given to the same consumer again")
        for tag in list(self._in_hand):
            self.basic_reject(tag, requeue=True)

    def _ack(self, tag: str) -> None:
        if (held := self._in_hand.pop(tag, None)) is not None:
            self.connection.link.ack(*held)

    def _purge(self, queue: str) -> int:
        """Acknowledges all that is there."""
        count = 0
        while (message := self.connection.link.receive(queue)) is not None:
            self.connection.link.ack(queue, message)
            count += 1
        return count

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        """Topics stay: whether others need them nobody knows here."""


class Transport(virtual.Transport):
    """`rocketmq://[ACCESS_KEY:SECRET_KEY@]HOST[:PORT][,HOST[:PORT]]`, of NameServers.

    Options, of Celery's `broker_transport_options`: `visibility_timeout` (s), after which the tasks of a worker that
    died come again; `topic_prefix`, `group_prefix`, before the names of queues; `namespace`. `broker_use_ssl` is True
    or an SSLContext.
    """

    Channel = Channel
    can_parse_url = True
    default_port = DEFAULT_PORT
    driver_type = SCHEME
    driver_name = "gantrymq"
    connection_errors = (*virtual.Transport.connection_errors, RemotingError, ClientClosed, ThreadDied)
    channel_errors = (*virtual.Transport.channel_errors, GantryError)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._link: Link | None = None
        self._hub: Any = None

    def driver_version(self) -> str:
        """This package's."""
        from importlib.metadata import version

        return version("gantrymq")

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """The URL, for people."""
        return uri if include_password else re.sub(r"//([^:@/]*):[^@/]*@", rf"//\1:{mask}@", uri)

    @property
    def link(self) -> Link:
        """To the brokers. Raises ClientClosed."""
        if self._link is None:
            raise ClientClosed("this connection is not established, or closed")
        return self._link

    def establish_connection(self) -> Any:
        """Makes the clients ready. Raises a RemotingError when no NameServer answers; brokers are asked later."""
        if self._link is None:
            name_servers, options = _parsed(self.client.hostname)
            given: dict[str, Any] = self.client.transport_options
            topic_prefix, group_prefix = given.get("topic_prefix", ""), given.get("group_prefix", "kombu-")
            options["namespace"] = given.get("namespace", "")
            options["ssl_context"] = _ssl_context(self.client.ssl)

            def names(queue: str) -> tuple[str, str]:
                topic = topic_prefix + _quoted(queue)
                return topic, group_prefix + topic

            invisible_ms = round(float(given.get("visibility_timeout", VISIBILITY_TIMEOUT_S)) * 1000)
            link = Link(name_servers, names, invisible_ms, options)
            link.open()
            self._link = link
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Gives back what is not acknowledged, and disconnects."""
        if self._hub is not None:
            self.unregister_from_event_loop(connection, self._hub)
        super().close_connection(connection)
        if self._link is not None:
            link, self._link = self._link, None
            link.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Delivers one message. Raises TimeoutError when none comes in that time, s."""
        deadline = None if timeout is None else monotonic() + timeout
        link = self.link
        while True:
            self._ask()
            while (arrived := link.take()) is not None:
                if arrived.error is not None:
                    raise arrived.error
                assert arrived.message is not None
                if self._hand_out(arrived.queue, arrived.message):
                    return
            left = 1.0 if deadline is None else deadline - monotonic()
            if left <= 0:
                raise TimeoutError
            if link.is_asking():
                link.wait(left)
            else:
                # What makes room is an acknowledgement, which the caller may have to send itself.
                link.wait(min(left, _FULL_S))
                if not any(channel._active_queues and channel.qos.can_consume() for channel in self.channels):
                    raise TimeoutError

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Celery's worker has an event loop of its own."""
        self._hub = loop
        loop.on_tick.add(self._ask)
        loop.add_reader(self.link.fileno(), self._on_readable, connection)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Not any more."""
        self._hub = None
        loop.on_tick.discard(self._ask)
        if self._link is not None:
            loop.remove_reader(self._link.fileno())

    def _on_readable(self, connection: Any) -> None:
        self.link.wait(0)
        while True:
            try:
                self.drain_events(connection, timeout=0)
            except TimeoutError:
                return

    def _ask(self) -> None:
        if self._link is not None:
            for channel in self.channels:
                channel.ask()

    def _hand_out(self, queue: str, message: MessageExt) -> bool:
        for channel in self.channels:
            if queue in channel._active_queues:
                return bool(channel.deliver(queue, message))
        self.link.give_back(queue, message)
        return False


def _parsed(url: str) -> tuple[str, ConnectionOptions]:
    """The NameServers of a URL, and what goes with them. Raises ClientError."""
    match = re.fullmatch(r"(?:\w+://)?(?:([^:@/]*):([^@/]*)@)?([^@/]*)/*", url or "")
    if match is None:
        raise ClientError(f"{url!r}: {SCHEME}://[ACCESS_KEY:SECRET_KEY@]HOST[:PORT][,HOST[:PORT]] is wanted")
    access_key, secret_key, servers = match.groups()
    named = [server if ":" in server else f"{server}:{DEFAULT_PORT}" for server in servers.split(",") if server]
    options = ConnectionOptions()
    if access_key is not None:
        options["hooks"] = [AclHook(unquote(access_key), unquote(secret_key))]
    return ";".join(named or [f"127.0.0.1:{DEFAULT_PORT}"]), options


def _ssl_context(ssl: object) -> ssl_module.SSLContext | None:
    if not ssl:
        return None
    if ssl is True:
        return ssl_module.create_default_context()
    if isinstance(ssl, ssl_module.SSLContext):
        return ssl
    raise ClientError(f"broker_use_ssl is {ssl!r}: True or an ssl.SSLContext is wanted")


def _quoted(queue: str) -> str:
    """A queue's name with what no topic may have in it as %XX."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda char: "".join(f"%{byte:02X}" for byte in char[0].encode()), queue)


def _eta_ms(message: dict[str, Any]) -> int | None:
    """When to deliver a message, ms since the epoch; None: now."""
    eta = (message.get("headers") or {}).get("eta")
    if not isinstance(eta, str):
        return None
    try:
        at = datetime.fromisoformat(eta)
    except ValueError:
        return None
    at_ms = round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    now = now_ms()
    return min(at_ms, now + LONGEST_DELAY_MS) if at_ms > now else None


TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"
