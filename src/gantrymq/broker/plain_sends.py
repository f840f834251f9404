"""Plain sends: those with nothing special about them. Native code stores and answers all of a read in one call.

It knows no rule, it knows bytes. All but the opaque number, the born time and the properties of its header is the same
in each message of a producer, and in each batch. So the first one with a header goes the way of all others,
`Sending.send` or `BatchSending.send`; when that has found nothing special, native code is told into which queue those
with this header go. A frame whose header it wasn't told, a property that asks for something, a batch that isn't one, a
file that is full: each ends the call, and the frames from there on go the way of all others, which remains the only one
that knows the rules.

Nothing is remembered of the store: places and room are read from log and queues in each call. So whatever keeps
`MessageWriter.append` from writing (no room, a refusal, a closed store, a deleted topic) ends the call as well. What
`Sending` itself remembers is forgotten here, too, whenever a topic, the configuration or the role changes.

Where answers wait for the disk or for slaves those of one call wait together, and who doesn't want to wait goes the way
of all others. The longest wait of an answer depends on the client's timeout, which is part of the header. Each duration
therefore has its own native object, and a connection uses the object of its last header. This path is off with access
control or enabledAppendPropCRC, and for hosts with an IPv6 address.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gantrymq.broker.appender import Appender
from gantrymq.broker.flush_waits import FlushWaits
from gantrymq.broker.late_answers import answer_within_ms
from gantrymq.errors import StoreError
from gantrymq.kernels import Native, interface
from gantrymq.protocol.batch import MAX_BATCH_MESSAGES
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.record import HOST_SIZE_V4, MAX_TOPIC_LENGTH_V1
from gantrymq.protocol.send_request import decode_send_request
from gantrymq.protocol.send_response import SendResponses
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.long_requests import LongRequests
from gantrymq.store.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)

#: What `Sending.send` and `BatchSending.send` look for among the properties.
_ODD: list[tuple[bytes, bytes | None]] = [
    (name, None) for name in (b"DELAY", b"TIMER_DELIVER_MS", b"TRAN_MSG", b"POP_CK\x01", b"CLUSTER\x01")
]
#: And this where answers wait: clients of Java say `true` in each message.
_CARELESS = (b"WAIT\x01", b"true\x02")
#: What `BatchSending` looks for among the properties of a batch's messages.
_ODD_IN_BATCH = b"POP_CK\x01"
#: Largest number of durations with a native object, each of which may keep 4 MiB of headers.
_MOST_DURATIONS = 4
#: The connection attribute for the duration of its last header, in ms.
_WITHIN_MS = "answer_within_ms"
_DEFAULT_WITHIN_MS = answer_within_ms(None)

_Sends = interface.PlainSends[ConsumeQueue]


class PlainSends:
    """The plain sends of one broker. `begin` comes before everything else."""

    def __init__(
        self, native: Native, appender: Appender, flush_waits: FlushWaits, long_requests: LongRequests
    ) -> None:
        self._native = native
        self._flush_waits = flush_waits
        self._long_requests = long_requests
        #: Answers wait.
        self._is_safe = False
        self._appender = appender
        self._append = appender.store.append_sends
        #: By the longest wait of an answer, in ms.
        self._sends: dict[int, _Sends] = {}
        self._new_sends: Callable[[], _Sends] | None = None
        #: What the last look at this connection ended before has a header that `tell` may explain.
        self._asks: Connection | None = None
        #: The native object that ended at this header.
        self._asking: _Sends | None = None

    def begin(self, responses: SendResponses, own_properties: bytes) -> None:
        """The broker answers so and adds these properties from now on; nothing is known."""
        self._sends, self._new_sends, self._asks = {}, None, None
        self._is_safe = self._flush_waits.is_used
        appender = self._appender
        if len(appender.store_host) == HOST_SIZE_V4 and not appender.store.config.enabled_append_prop_crc:
            self._new_sends = lambda: self._native.PlainSends(
                [*_ODD, _CARELESS] if self._is_safe else _ODD,
                _ODD_IN_BATCH,
                own_properties,
                appender.store_host,
                (appender.max_message_size, MAX_BATCH_MESSAGES),
                *responses.for_native,
            )
            self._sends[_DEFAULT_WITHIN_MS] = self._new_sends()

    def forget(self) -> None:
        """What headers mean may have changed."""
        self._asks = None
        for sends in self._sends.values():
            sends.revoke()

    @property
    def known(self) -> int:
        """Number of headers that native code caches."""
        return sum(map(len, self._sends.values()))

    def first_look(self, connection: Connection, data: bytes) -> tuple[int, bytes]:
        """Stores the plain sends that `data` begins with: how many bytes they have, and their answers."""
        self._asks = None
        # Who never sends has none, and costs nothing here.
        host, appender = connection.attributes.get("born_host"), self._appender
        if host is None or len(host) != HOST_SIZE_V4 or appender.refusal is not None:
            return 0, b""
        within_ms = connection.attributes.get(_WITHIN_MS, _DEFAULT_WITHIN_MS)
        sends = self._sends.get(within_ms)
        if sends is None:
            # Without an object for its own duration, the connection uses the default one.
            within_ms = _DEFAULT_WITHIN_MS
            sends = self._sends.get(within_ms)
            if sends is None:
                return 0, b""
        if (self._is_safe and not self._flush_waits.takes) or self._long_requests.has_line(connection):
            return 0, b""
        try:
            sent = self._append(sends, data, host)
        except StoreError:
            # The other way each sender is told.
            return 0, b""
        except Exception:
            # Nothing is stored then.
            log.exception("native code has a fault: all sends go the other way until it is begun with anew")
            self._sends, self._new_sends = {}, None
            return 0, b""
        if sent.is_asking:
            self._asks, self._asking = connection, sends
        appender.arrived(sent.queues)
        if self._is_safe and sent.number:
            end = appender.store.max_physical_offset
            self._flush_waits.reply_all(connection, sent.answers, sent.number, end, within_ms)
            return sent.dealt, b""
        return sent.dealt, sent.answers

    def asks_about(self, connection: Connection, request: RemotingCommand) -> bool:
        """Whether it is this very request, and no other with the same number and properties, that `tell` is for."""
        return self._asks is connection and connection.looked_at is request

    def tell(self, request: RemotingCommand, queue: ConsumeQueue, *, is_batch: bool = False) -> None:
        """What `request` sends was put into `queue` at once, with nothing odd about it but perhaps in its properties.

        The same will be done with those like it.
        """
        connection, self._asks = self._asks, None
        sent = decode_send_request(request)
        target, options = sent.target, sent.options
        sends = self._sends_for(connection, options.timeout_ms)
        if sends is not self._asking:
            # This object hasn't seen the header: `allow` follows after the connection's next send.
            return
        is_plain = not (
            request.flag
            or options.reconsume_times
            or target.sys_flag & TRANSACTION_MASK
            or len(queue.topic_bytes) > MAX_TOPIC_LENGTH_V1
        )
        if is_plain and sends is not None:
            sends.allow(
                request.opaque,
                sent.born_timestamp,
                sent.properties,
                queue.topic_bytes,
                queue.queue_id,
                target.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
                sent.flag,
                is_batch,
                queue,
            )

    def _sends_for(self, connection: Connection | None, timeout_ms: int | None) -> _Sends | None:
        """The native object for this client timeout. The connection uses it for its next sends."""
        within_ms = answer_within_ms(timeout_ms) if self._is_safe else _DEFAULT_WITHIN_MS
        sends = self._sends.get(within_ms)
        if sends is None and self._new_sends is not None and len(self._sends) < _MOST_DURATIONS:
            sends = self._sends[within_ms] = self._new_sends()
        if sends is not None and connection is not None:
            connection.attributes[_WITHIN_MS] = within_ms
        return sends
