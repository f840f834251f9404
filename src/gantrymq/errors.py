"""All errors of gantrymq, in one class tree. Catch a base class to handle several errors alike.

GantryError
├── ProtocolError           bytes that do not follow RocketMQ's formats
│   ├── FrameError          invalid length or encoding of a frame; the connection cannot be used further
│   ├── HeaderError         a command header is malformed, or a field is missing or has the wrong type
│   ├── BodyError           a command body is not the expected JSON or batch
│   ├── RecordError         a message record is truncated, or its magic number or CRC is wrong
│   └── CompressionError    a compressed body cannot be decompressed, or exceeds the size limit
├── RemotingError           network errors
│   ├── ConnectFailed       the connection or TLS was refused, or the connect timed out
│   ├── ConnectionLost      the connection was closed while a request was in flight
│   ├── RequestTimeout      no response within the timeout
│   └── SendOutcomeUnknown  no broker confirmed the message, which may be stored
├── BrokerUnavailable       no broker can process the request at present; a retry can succeed
├── RequestRefused          raised by a server's handler: the response gets this code and remark
├── BrokerError             the response code of a server is not SUCCESS
│   ├── LiteTopicQuotaExceeded         the broker has too many lite topics
│   └── LiteSubscriptionQuotaExceeded  the client or the broker has too many subscriptions to lite topics
├── ClientError             the client cannot execute the call
│   ├── NoRouteInfo         no NameServer has a route of the topic
│   │   └── RouteNotReady   a NameServer has just started; also a BrokerUnavailable
│   ├── IllegalMessage      brokers would refuse the topic, group, size or properties
│   ├── ClientClosed        used before start() or after close()
│   ├── PartialFailure      the operation failed on some of several servers
│   └── DataLost            messages of the requested offsets were removed
├── StoreError              errors of the store's files
│   ├── StoreLocked         another process uses the directory
│   ├── StoreFull           no disk space for another record
│   ├── StoreBusy           no space for another record until a file is preallocated
│   └── SyncFailed          fsync failed; a later success would prove nothing
├── ReplicationError        the logs of a slave and its master differ, so the slave cannot replicate
├── CodecError              a codec cannot encode a value or decode a body
├── ConfigError             an invalid configuration key or value
├── MissingExtra            an optional dependency is not installed; also an ImportError
└── ThreadDied              a required thread ended with an exception, which is `__cause__`
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

#: ResponseCode.REQUEST_CODE_NOT_SUPPORTED.
_NOT_SUPPORTED = 3


class RefusalReason(StrEnum):
    """The machine-readable reason for a refused request or for a response without messages.

    A response code can have several reasons, and the remark is a text for people. GantryMQ's servers send the reason
    in a header field of their own. For Java servers, `protocol.java_remarks` derives it from the remark.
    """

    #: The broker is a slave, or a former master, or its lease has ended: request the route again.
    NOT_MASTER = "NOT_MASTER"
    #: The broker stored the message, but could not flush it, or is not master any more. The broker may still have the
    #: message after a restart, and the new master may have it.
    MAY_BE_STORED = "MAY_BE_STORED"
    #: The in-sync set is smaller than `minInSyncReplicas`.
    NOT_ENOUGH_REPLICAS = "NOT_ENOUGH_REPLICAS"
    #: The NameServer has just started and waits for brokers to register (`needWaitForService`).
    NAME_SERVER_NOT_READY = "NAME_SERVER_NOT_READY"
    #: Access control is on, and the request has no access key.
    NO_CREDENTIALS = "NO_CREDENTIALS"
    #: The user is authenticated, but lacks the permission.
    NOT_PERMITTED = "NOT_PERMITTED"
    #: The consume queue has entries of the messages, but the commit log lacks them: expired or lost.
    MESSAGES_REMOVED = "MESSAGES_REMOVED"
    #: The client to which the reply is addressed is not connected.
    REQUESTER_GONE = "REQUESTER_GONE"
    #: A topic, a consumer group or the client's host has exceeded its rate limit. The response has the time to wait.
    RATE_LIMITED = "RATE_LIMITED"


class GantryError(Exception):
    """Base class of all errors of this package."""


class ProtocolError(GantryError):
    """Bytes that do not follow RocketMQ's formats."""


class FrameError(ProtocolError):
    """A frame has an invalid length or encoding, so the start of the next frame is unknown.

    Remedy: check that the peer is a RocketMQ client or server. Another cause is a TLS connection to a plain port.
    """


class HeaderError(ProtocolError):
    """A command header is malformed or lacks a required field.

    Remedy: check the peer, whose address is in the log. It has another version or does not use RocketMQ's protocol.
    """


class BodyError(ProtocolError):
    """A command body cannot be decoded.

    Remedy: as for HeaderError. If a new version of a Java server causes the error, report it to the project.
    """


class RecordError(ProtocolError):
    """A message record is truncated, or its magic number or CRC is wrong.

    Remedy: find the damaged records with `gantry store verify`. Other messages are not affected.
    """


class CompressionError(ProtocolError):
    """A message body cannot be decompressed, or would exceed the size limit.

    Remedy: if the message is meant to be that large, increase `max_body_size`. Otherwise skip it. Other messages are
    not affected.
    """


class RemotingError(GantryError):
    """A network error. `address` is HOST:PORT of the peer."""

    def __init__(self, message: str, address: str) -> None:
        super().__init__(message)
        self.address = address


class ConnectFailed(RemotingError):
    """The connection to a server could not be established.

    Remedy: start the server, or correct the address. `gantry doctor` tests every address that brokers advertise. If
    the cause is TLS, the error text names the option to change.
    """


class ConnectionLost(RemotingError):
    """The connection was closed before the response arrived.

    Remedy: retry. Clients reconnect automatically. If the server closed the connection, its log has the reason.
    """


class RequestTimeout(RemotingError):
    """No response arrived within the timeout.

    Remedy: retry, or increase `timeout`. `gantry doctor` and the broker's list of slow requests show the cause.
    """


def _printable(text: str) -> str:
    """Returns the text of a server on one line, with unprintable characters escaped."""
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class SendOutcomeUnknown(RemotingError):
    """The outcome of a send is unknown: the message may be stored, and may be lost later.

    Case 1: no valid response arrived. `status` and `result` are None. `__cause__` is the error of the attempt, such as
    ConnectionLost, RequestTimeout or a ProtocolError.

    Case 2: in a broker set with a controller, the master stored the message, but its in-sync set did not confirm it.
    `status` is the SendStatus, and `result` is the SendResult.

    Case 3: the broker stored the message, but could not flush it, or is not master any more. `status` and `result` are
    None, and `__cause__` is the BrokerError.

    A retry can store the message twice. After any other error of a send, the message is not stored.

    Remedy: send the message again with the same keys. Consumers can detect duplicates by the keys.
    """

    def __init__(self, message: str, address: str, result: Any = None) -> None:
        super().__init__(message, address)
        self.result = result
        self.status = None if result is None else result.status


class BrokerUnavailable(GantryError):
    """No broker can process the request at present, for example during the election of a master.

    If the request is a send, the message is not stored.

    Remedy: retry. If the error persists, run `gantry doctor` to find the cause.
    """


class RequestRefused(GantryError):
    """Raised by a server's request handler to send an error response.

    `code` is the ResponseCode, and the error text is the remark. `reason` is a `RefusalReason`, or None if no program
    needs it. `retry_after_ms` is the time after which the client may repeat the request, if the server knows it.

    Remedy: none needed in a client, which raises a BrokerError for such a response.
    """

    def __init__(
        self, code: int, remark: str, reason: RefusalReason | None = None, *, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(remark)
        self.code = code
        self.reason = reason
        self.retry_after_ms = retry_after_ms


class BrokerError(GantryError):
    """A server responded with an error.

    `code` is the response code, usually a `ResponseCode`. `remark` is the server's text, and `address` is its
    HOST:PORT. `reason` is a `RefusalReason`, or None if the response has none. `retry_after_ms` is the time after which
    the server may accept the request, in ms, if `reason` is RATE_LIMITED; otherwise None.

    Remedy: look up `code` in the table of response codes, and read the remark.
    """

    def __init__(
        self,
        code: int,
        remark: str | None,
        address: str,
        reason: RefusalReason | None = None,
        *,
        retry_after_ms: int | None = None,
    ) -> None:
        text = f"{address} answered code {code}: {_printable((remark or '').strip() or 'no remark')}"
        if reason is RefusalReason.NO_CREDENTIALS:
            text = text.rstrip(".") + (
                ". The request has no access key: give --acl-config FILE, or "
                "credentials=Credentials(access_key, secret_key)"
            )
        elif code == _NOT_SUPPORTED:
            text += (
                "; so answers a server of another kind (NameServers listen at 9876, brokers at 10911), or an older one"
            )
        super().__init__(text)
        self.code = code
        self.remark = remark or ""
        self.address = address
        self.reason = reason
        self.retry_after_ms = retry_after_ms


class LiteTopicQuotaExceeded(BrokerError):
    """A broker with `enableLmqQuota` has as many light queues as `maxLmqConsumeQueueNum`. The message is not stored.

    Remedy: increase `maxLmqConsumeQueueNum` of the broker, or set `lite.topic.expiration` of the parent topic, so that
    the broker deletes unused lite topics.
    """


class LiteSubscriptionQuotaExceeded(BrokerError):
    """A client has as many lite topics as its group allows, or all clients of a broker as many as the broker allows.

    Remedy: unsubscribe from unused lite topics, or increase the group attribute `lite.sub.client.quota` or
    `maxLiteSubscriptionCount` of the broker. The error text names the one that is reached.
    """


class ClientError(GantryError):
    """The client cannot execute the call.

    Remedy: correct the call as the error text describes.
    """


class NoRouteInfo(ClientError):
    """The NameServers respond, but have no route of the topic.

    `topic` is the topic, and `name_servers` has the queried addresses. The argument `found` is a likely cause, as text.

    Remedy: create the topic with `gantry admin updateTopic` or `AdminClient.ensure_topic`. For other causes, run
    `gantry doctor TOPIC`.
    """

    def __init__(self, topic: str, name_servers: list[str], found: str | None = None) -> None:
        super().__init__(_no_route(topic, ", ".join(name_servers) or "no NameServer", ";".join(name_servers), found))
        self.topic = topic
        self.name_servers = name_servers


class RouteNotReady(NoRouteInfo, BrokerUnavailable):
    """A NameServer has just started, and its route of the topic is incomplete.

    `brokers` has the names of brokers with queues of the topic that have not registered again. It is empty if the
    NameServer has `needWaitForService` and therefore returns no routes in its first seconds.

    Remedy: retry. The route is complete after all brokers have registered, which takes 30 s.
    """

    def __init__(self, topic: str, name_servers: list[str], brokers: Collection[str] = ()) -> None:
        asked = ", ".join(name_servers)
        if brokers:
            names = ", ".join(sorted(brokers))
            text = f"{names}, with queues of topic {topic!r}, has not registered since {asked} started"
        else:
            text = f"{asked} has just started and waits for brokers before it serves the route of topic {topic!r}"
        GantryError.__init__(self, text)
        self.topic = topic
        self.name_servers = name_servers
        self.brokers = frozenset(brokers)


_EITHER = "the topic doesn't exist and no broker makes it (autoCreateTopicEnable), or no broker has registered there"


def _no_route(topic: str, asked: str, addresses: str, found: str | None) -> str:
    """Returns the text of a NoRouteInfo. Retry topics and dead-letter queues have their own texts."""
    for prefix, what in (
        (
            "%RETRY%",
            "knows no consumer group {!r}: it was deleted, or none of its consumers has created its retry topic yet. "
            "Consumers behind Apache RocketMQ's proxy do not create it: if you can, pass a topic of the group too",
        ),
        ("%DLQ%", "knows no dead letters of consumer group {!r}: none of its messages was given up so far"),
    ):
        if topic.startswith(prefix):
            return f"{asked} answers, and {what.format(topic.removeprefix(prefix))} (no route info for topic {topic!r})"
    return (
        f"no route info for topic {topic!r} from {asked}, which can be reached and answers: {found or _EITHER}; this "
        f"looks at all of it: gantry doctor {shlex.quote(topic)} -n {shlex.quote(addresses)}"
    )


class IllegalMessage(ClientError):
    """A message or name is invalid: every broker would refuse it.

    Remedy: correct the message. A retry without a change cannot succeed.
    """


class ClientClosed(ClientError):
    """The client is not started, or is already closed.

    Remedy: use the client inside `async with` or `with`, or between start() and close().
    """


class PartialFailure(ClientError):
    """An operation on several servers failed on at least one server.

    `done` lists the addresses (HOST:PORT) of the servers where it succeeded. `failed` maps the other addresses to their
    errors.

    Remedy: repair the servers in `failed` and repeat the call. It changes nothing on the servers in `done`.
    """

    def __init__(self, what: str, done: Sequence[str], failed: Mapping[str, GantryError]) -> None:
        errors = "; ".join(f"{address}: {error}" for address, error in failed.items())
        super().__init__(f"{what} failed on {errors}; done on {', '.join(done) or 'none'}")
        self.done = list(done)
        self.failed = dict(failed)


class DataLost(ClientError):
    """Messages of the offset range to read were removed, or are lost.

    Remedy: if they expired before they were read, increase `fileReservedTime`. To read the remaining messages of a
    Spark source, set `failOnDataLoss` to false.
    """


class StoreError(GantryError):
    """An operation on the store's files failed."""


class StoreLocked(StoreError):
    """Another process uses the store directory.

    Remedy: stop the other process, or use another directory.
    """


class StoreBusy(StoreError):
    """The store has no space for another record until a file is preallocated.

    The store raises this error instead of blocking the caller.

    Remedy: none needed in a broker, which waits and retries. If your program uses the store as a library, retry.
    """


class StoreFull(StoreError):
    """The disk has no space for another record.

    Remedy: free disk space, or shorten the retention with `fileReservedTime` or `diskMaxUsedSpaceRatio`.
    """


class SyncFailed(StoreError):
    """A flush to disk (fsync) failed.

    The kernel nevertheless marks the pages as written. A second fsync can therefore succeed although data is missing.

    Remedy: check the disk and the kernel's log, then restart the broker. It continues with the data that is certainly
    on the disk.
    """


class ReplicationError(GantryError):
    """A slave cannot replicate its master, because their logs or the sizes of their files differ.

    Remedy: check that the slave has the address of the right master. A power failure can remove messages from the
    master that the slave still has. In this case, stop the slave, move its store directory away and start it again. The
    slave then copies the master's log.
    """


class CodecError(GantryError):
    """A codec cannot encode a value or decode a body. The error text has the position of a received message.

    Remedy: inspect the message with `gantry consume`, and check its producer. Both sides need the same type or schema.
    """


class ConfigError(GantryError):
    """A configuration key or value is invalid, or a configuration file cannot be read or written.

    Remedy: correct the key, value or file that the error text names.
    """


class MissingExtra(GantryError, ImportError):
    """An optional dependency of this package is not installed.

    Remedy: run the `pip install` command in the error text.
    """


class ThreadDied(GantryError):
    """The thread of a client or server ended with an exception, which is the `__cause__` of this error.

    Remedy: fix the cause, then create a new client or restart the server.
    """
