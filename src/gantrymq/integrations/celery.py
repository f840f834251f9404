"""Transport for Kombu, and thereby for Celery. Needs the extra `gantrymq[celery]`.

    import gantrymq.integrations.celery                     # registers rocketmq:// with Kombu
    from celery import Celery

    app = Celery("shop", broker="rocketmq://127.0.0.1:9876")

A queue is a topic, and its workers are one consumer group. One worker pops each message; no other worker gets the
message while this worker lives. A task with an ETA is a timer message. Limits: docs/integrations.md.

Exchanges and bindings come from `kombu.transport.virtual`. Each process has its own.
"""

from __future__ import annotations

import re
import ssl as ssl_module
from datetime import UTC, datetime
from queue import Empty
from time import monotonic
from typing import Any
from urllib.parse import unquote

from gantrymq.client.credentials import Credentials
from gantrymq.errors import ClientClosed, ClientError, GantryError, RemotingError, ThreadDied
from gantrymq.extras import missing
from gantrymq.integrations.in_flight import ConnectionOptions
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
#: Default of the option `visibility_timeout`, s.
VISIBILITY_TIMEOUT_S = 60.0
#: Brokers accept timers up to three days (timerMaxDelaySec). For a later ETA, the worker waits for the rest. In ms.
LONGEST_DELAY_MS = 3 * 24 * 3600 * 1000 - 60_000
#: Largest number of messages of one request.
_BATCH = 32
#: If a worker without an event loop may fetch no more messages, it waits this long for an acknowledgement, s.
_FULL_S = 0.05


class Channel(virtual.Channel):
    """A virtual channel whose queues are topics."""

    #: Kombu need not restore messages, because the broker redelivers a message that is not acknowledged.
    do_restore = False
    connection: Transport

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        #: Queue and message of each delivery tag.
        self._in_flight: dict[str, tuple[str, MessageExt]] = {}
        self._no_ack: set[str] = set()

    # -- sending --------------------------------------------------------------------------------------------------

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        self.connection.link.declare(queue)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        link = self.connection.link
        keys = message["properties"].get("correlation_id") or (message.get("headers") or {}).get("id")
        link.send(
            Message(
                link.topic(queue),
                dumps(message).encode(),
                keys=[keys] if isinstance(keys, str) and keys and not re.search(r"\s", keys) else None,
                deliver_at=eta_ms(message),
            )
        )

    # -- receiving ------------------------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        """Starts to deliver messages of `queue` to `callback`."""
        if no_ack:
            self._no_ack.add(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stops the delivery to a consumer."""
        self._no_ack.discard(self._tag_to_queue.get(consumer_tag, ""))
        super().basic_cancel(consumer_tag)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Returns one message of `queue`, or None."""
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
        """Requests as many messages as may be delivered."""
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
        """Delivers a message to the consumer of the queue. Returns false if it is unreadable."""
        payload = self._payload(queue, message)
        if payload is None:
            return False
        tag = payload["properties"]["delivery_tag"]
        self.connection._deliver(payload, queue)
        if queue in self._no_ack:
            self._ack(tag)
        return True

    def _payload(self, queue: str, message: MessageExt) -> dict[str, Any] | None:
        """Decodes Kombu's payload and registers its delivery tag. Returns None if the message is unreadable."""
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
        self._in_flight[tag] = (queue, message)
        return payload

    # -- afterwards -----------------------------------------------------------------------------------------------

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledges a message."""
        self._ack(delivery_tag)
        super().basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Requeues a message for immediate redelivery, or acknowledges it. It never becomes a dead-letter message."""
        if requeue:
            if (entry := self._in_flight.pop(delivery_tag, None)) is not None:
                self.connection.link.give_back(*entry)
        else:
            self._ack(delivery_tag)
        self.qos.ack(delivery_tag)

    def basic_recover(self, requeue: bool = False) -> None:
        """Requeues all messages that are not acknowledged."""
        if not requeue:
            raise NotImplementedError("recover(requeue=False): messages can't be given to the same consumer again")
        for tag in list(self._in_flight):
            self.basic_reject(tag, requeue=True)

    def _ack(self, tag: str) -> None:
        if (entry := self._in_flight.pop(tag, None)) is not None:
            self.connection.link.ack(*entry)

    def _purge(self, queue: str) -> int:
        """Acknowledges all available messages. Returns their number."""
        count = 0
        while (message := self.connection.link.receive(queue)) is not None:
            self.connection.link.ack(queue, message)
            count += 1
        return count

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        """Keeps the topic, because other applications may need it."""


class Transport(virtual.Transport):
    """Connection with the URL `rocketmq://[ACCESS_KEY:SECRET_KEY@]HOST[:PORT][,HOST[:PORT]]` of the NameServers.

    Options of Celery's `broker_transport_options`:
    - `visibility_timeout`: Time after which tasks of a dead worker are redelivered, s. Default: 60.
    - `topic_prefix`, `group_prefix`: Prefixes of topic and group names. Default: "" and "kombu-".
    - `namespace`: Namespace of topics and groups.

    `broker_use_ssl` is True or an SSLContext.
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
        """Returns the version of this package."""
        from importlib.metadata import version

        return version("gantrymq")

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Returns the URL, by default without the secret key."""
        return uri if include_password else re.sub(r"//([^:@/]*):[^@/]*@", rf"//\1:{mask}@", uri)

    @property
    def link(self) -> Link:
        """The link to the brokers. Raises ClientClosed."""
        if self._link is None:
            raise ClientClosed("this connection is not established, or closed")
        return self._link

    def establish_connection(self) -> Any:
        """Starts the clients, without connecting to brokers. Raises a RemotingError if no NameServer responds."""
        if self._link is None:
            name_servers, options = parse_url(self.client.hostname)
            given: dict[str, Any] = self.client.transport_options
            topic_prefix, group_prefix = given.get("topic_prefix", ""), given.get("group_prefix", "kombu-")
            options["namespace"] = given.get("namespace", "")
            options["ssl_context"] = ssl_context_of(self.client.ssl)

            def names(queue: str) -> tuple[str, str]:
                topic = topic_prefix + _quoted(queue)
                return topic, group_prefix + topic

            visibility_timeout_s = float(given.get("visibility_timeout", VISIBILITY_TIMEOUT_S))
            link = Link(name_servers, names, visibility_timeout_s, options)
            link.open()
            self._link = link
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Requeues messages that are not acknowledged, and disconnects."""
        if self._hub is not None:
            self.unregister_from_event_loop(connection, self._hub)
        super().close_connection(connection)
        if self._link is not None:
            link, self._link = self._link, None
            link.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Delivers one message. Raises TimeoutError if no message arrives within `timeout` seconds."""
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
                # Only an acknowledgement permits more messages, and it may be the caller's task to send one.
                link.wait(min(left, _FULL_S))
                if not any(channel._active_queues and channel.qos.can_consume() for channel in self.channels):
                    raise TimeoutError

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Registers with the event loop of Celery's worker."""
        self._hub = loop
        loop.on_tick.add(self._ask)
        loop.add_reader(self.link.fileno(), self._on_readable, connection)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Unregisters from the event loop."""
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


def parse_url(url: str) -> tuple[str, ConnectionOptions]:
    """Returns NameServers and options from a URL. Raises ClientError."""
    match = re.fullmatch(r"(?:\w+://)?(?:([^:@/]*):([^@/]*)@)?([^@/]*)/*", url or "")
    if match is None:
        raise ClientError(f"{url!r}: {SCHEME}://[ACCESS_KEY:SECRET_KEY@]HOST[:PORT][,HOST[:PORT]] is wanted")
    access_key, secret_key, servers = match.groups()
    named = [server if ":" in server else f"{server}:{DEFAULT_PORT}" for server in servers.split(",") if server]
    options = ConnectionOptions()
    if access_key is not None:
        options["credentials"] = Credentials(unquote(access_key), unquote(secret_key))
    return ";".join(named or [f"127.0.0.1:{DEFAULT_PORT}"]), options


def ssl_context_of(ssl: object) -> ssl_module.SSLContext | None:
    if not ssl:
        return None
    if ssl is True:
        return ssl_module.create_default_context()
    if isinstance(ssl, ssl_module.SSLContext):
        return ssl
    raise ClientError(f"broker_use_ssl is {ssl!r}: True or an ssl.SSLContext is wanted")


def _quoted(queue: str) -> str:
    """Escapes characters of a queue name that topics cannot contain, as %XX."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda char: "".join(f"%{byte:02X}" for byte in char[0].encode()), queue)


def eta_ms(message: dict[str, Any]) -> int | None:
    """Returns the delivery time of a message, ms since the epoch; None for immediate delivery."""
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
