"""PlainSends: native code stores and answers the ordinary sends of one socket read in one call.

Only Python code contains the rules for sends. The headers of a producer's messages differ only in the opaque number,
the born timestamp and the properties. `SendProcessor.send` or `BatchSends.send` handles the first message with a
header. If it needs no special handling, `cache` caches its header and its queue in native code. Native code then
handles all further messages with this header.

A native call ends at the first frame with one of these:
- a header that is not cached
- a property that needs special handling
- an illegal batch
- a message for which the current file has no space

Python handles this frame. If its header is then cached, another call handles the frames after it
(`Connection.look_again`), otherwise Python does.

Native code reads the positions of the log and of the queues in each call and does not cache them. Every condition that
stops `MessageWriter.append` therefore also ends the call: a full file, a refusal, a closed store, a deleted topic. The
cached headers are dropped when a topic, the configuration or the role changes.

If responses wait for the disk or for replicas, the responses of one call wait together. Messages with a WAIT other than
`true` then take the ordinary code path. The longest wait of a response depends on the client's timeout, which is part
of the header. Each duration therefore has its own native object. A connection uses the object for its last header.

The fast path is off when access control or `enabledAppendPropCRC` is on, and for IPv6 addresses of broker or client.
Sends under a rate limit take the ordinary code path, because `SendQueues.found` returns no queue for them.
Decision record: docs/decisions/plain-sends.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gantrymq.broker.append import SHARDING_KEY, SIZE_BOUNDS, Appender, PendingResponses, answer_within_ms
from gantrymq.errors import StoreError
from gantrymq.kernels import Native, interface
from gantrymq.limits import SEND_HEADERS_BYTES, SEND_HEADERS_BYTES_OF_TIMEOUT, SEND_TIMEOUTS
from gantrymq.protocol.batch import MAX_BATCH_MESSAGES
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.lite_topic import LITE_TOPIC_MARK
from gantrymq.protocol.multi_dispatch import DISPATCH_MARK
from gantrymq.protocol.record import HOST_SIZE_V4, MAX_TOPIC_LENGTH_V1
from gantrymq.protocol.send_request import decode_send_request
from gantrymq.protocol.send_response import SendResponses
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.long_requests import LongRequests
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.system.clock import monotonic

log = logging.getLogger(__name__)

#: Properties that need special handling in `SendProcessor.send` or `BatchSends.send`.
_ODD: list[tuple[bytes, bytes | None]] = [
    (name, None)
    for name in (
        b"DELAY",
        b"TIMER_DELIVER_MS",
        b"TRAN_MSG",
        b"POP_CK\x01",
        b"CLUSTER\x01",
        b"_SYS_MSG_PRIORITY_\x01",
    )
]
#: If responses wait, a WAIT other than `true` also needs special handling. Java clients send WAIT=true in each message.
_CARELESS = (b"WAIT\x01", b"true\x02")
#: Property that needs special handling in the messages of a batch.
_ODD_IN_BATCH = b"POP_CK\x01"
#: The connection attribute for the duration of its last header, in ms.
_WITHIN_MS = "answer_within_ms"
_DEFAULT_WITHIN_MS = answer_within_ms(None)

_Sends = interface.PlainSends[ConsumeQueue]


class PlainSends:
    """Handles the plain sends of one broker in native code. Call `begin` first."""

    def __init__(
        self, native: Native, appender: Appender, pending_responses: PendingResponses, long_requests: LongRequests
    ) -> None:
        self._native = native
        self._pending_responses = pending_responses
        self._long_requests = long_requests
        #: True if responses wait for the disk or for replicas.
        self._is_safe = False
        self._appender = appender
        self._append = appender.store.append_sends
        self._received = appender.received
        if self._received is not None:
            self._received.add_source(self._add_counts)
        #: Longest wait of a response, in ms -> native object.
        self._sends: dict[int, _Sends] = {}
        self._new_sends: Callable[[int], _Sends] | None = None
        #: Connection of the last native call, if the call ended at an uncached header, which `cache` can add.
        self._asks: Connection | None = None
        #: The native object of that call.
        self._asking: _Sends | None = None

    def begin(self, responses: SendResponses, own_properties: bytes) -> None:
        """Sets the encoding of responses and the properties that the broker adds. Drops all cached headers."""
        self._add_counts()
        self._sends, self._new_sends, self._asks = {}, None, None
        self._is_safe = self._pending_responses.is_used
        appender = self._appender
        if len(appender.store_host) == HOST_SIZE_V4 and not appender.store.config.enabled_append_prop_crc:
            odd = [*_ODD, _CARELESS] if self._is_safe else list(_ODD)
            if appender.store.light is not None:
                odd += [(DISPATCH_MARK, None), (LITE_TOPIC_MARK, None)]
            self._new_sends = lambda most_bytes: self._native.PlainSends(
                odd,
                _ODD_IN_BATCH,
                own_properties,
                appender.store_host,
                (appender.max_message_size, MAX_BATCH_MESSAGES, most_bytes),
                *responses.for_native,
                (SHARDING_KEY, list(SIZE_BOUNDS) if self._received is not None else []),
            )
            self._sends[_DEFAULT_WITHIN_MS] = self._new_sends(SEND_HEADERS_BYTES)

    def _add_counts(self) -> None:
        """Adds the messages that native code has stored since the last call to the metrics."""
        if self._received is not None:
            for sends in self._sends.values():
                self._received.add_counted(sends.take_counts())

    def forget(self) -> None:
        """Drops all cached headers, because their queues may have changed."""
        self._asks = None
        self._add_counts()
        for sends in self._sends.values():
            sends.revoke()

    @property
    def known(self) -> int:
        """Number of headers that native code caches."""
        return sum(map(len, self._sends.values()))

    def first_look(self, connection: Connection, data: bytes) -> tuple[int, bytes]:
        """Stores the plain sends at the start of `data`. Returns the size of their frames, and the responses."""
        self._asks = None
        # A connection has this attribute after its first send. Connections that send nothing return here at low cost.
        host, appender = connection.attributes.get("born_host"), self._appender
        if host is None or len(host) != HOST_SIZE_V4 or appender.refusal is not None:
            return 0, b""
        within_ms = connection.attributes.get(_WITHIN_MS, _DEFAULT_WITHIN_MS)
        sends = self._sends.get(within_ms)
        if sends is None:
            # If the connection's duration has no object, the connection uses the object of the default duration.
            within_ms = _DEFAULT_WITHIN_MS
            sends = self._sends.get(within_ms)
            if sends is None:
                return 0, b""
        if (self._is_safe and not self._pending_responses.takes) or self._long_requests.is_waiting(connection):
            return 0, b""
        try:
            sent = self._append(sends, data, host)
        except StoreError:
            # The ordinary code path sends the error to each client.
            return 0, b""
        except Exception:
            # In this case, nothing was stored.
            log.exception("native code has a fault: all sends go the other way until it is begun with anew")
            self._add_counts()
            self._sends, self._new_sends = {}, None
            return 0, b""
        if sent.is_asking:
            self._asks, self._asking = connection, sends
        if sent.requests:
            seconds = monotonic() - connection.command_began
            appender.put_times.add(seconds / sent.number, sent.number)
            if connection.latencies is not None and not self._is_safe:
                for code, count in sent.requests:
                    connection.latencies.observe(code, ResponseCode.SUCCESS, seconds, count=count)
        appender.arrived(sent.queues)
        if self._is_safe and sent.requests:
            end = appender.store.max_physical_offset
            self._pending_responses.reply_all(connection, sent, end, within_ms)
            return sent.dealt, b""
        return sent.dealt, sent.answers

    def asks_about(self, connection: Connection, request: RemotingCommand) -> bool:
        """Returns whether native code stopped at this request. If so, `cache` may cache the header of the request.

        Compares the objects by identity, because another request can have the same opaque number and properties.
        """
        return self._asks is connection and connection.looked_at is request

    def cache(self, request: RemotingCommand, queue: ConsumeQueue, *, is_batch: bool = False) -> None:
        """Caches the header of `request` after its message was stored in `queue` without special handling.

        From then on, native code handles messages with this header, and checks the properties of each message.
        """
        connection, self._asks = self._asks, None
        sent = decode_send_request(request)
        target, options = sent.target, sent.options
        sends = self._sends_for(connection, options.timeout_ms)
        if sends is not self._asking:
            # This object has not parsed the header yet. It can cache the header after the connection's next send.
            return
        is_plain = not (
            request.flag
            or options.reconsume_times
            or target.sys_flag & TRANSACTION_MASK
            or len(queue.topic_bytes) > MAX_TOPIC_LENGTH_V1
            or (is_batch and self._appender.store.light is not None)
        )
        if is_plain and sends is not None:
            is_cached = sends.allow(
                request.opaque,
                sent.born_timestamp,
                sent.properties,
                queue.topic_bytes,
                queue.queue_id,
                target.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
                sent.flag,
                is_batch,
                request.code,
                queue,
            )
            if is_cached and connection is not None:
                # Otherwise only one header of each read would be cached: with 10,000 topics, Python would handle 30,000
                # to 100,000 messages.
                connection.look_again()

    def _sends_for(self, connection: Connection | None, timeout_ms: int | None) -> _Sends | None:
        """Returns the native object for this client timeout, which handles the next sends of the connection, too."""
        within_ms = answer_within_ms(timeout_ms) if self._is_safe else _DEFAULT_WITHIN_MS
        sends = self._sends.get(within_ms)
        if sends is None and self._new_sends is not None and len(self._sends) <= SEND_TIMEOUTS:
            sends = self._sends[within_ms] = self._new_sends(SEND_HEADERS_BYTES_OF_TIMEOUT)
        if sends is not None and connection is not None:
            connection.attributes[_WITHIN_MS] = within_ms
        return sends
