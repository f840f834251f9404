"""Every error that gantrymq raises, as one small tree: catch by meaning, not by module.

GantryError
├── ProtocolError           bytes that are not what the format says
│   ├── FrameError          a frame's length or encoding byte; the connection can't go on
│   ├── HeaderError         a command header: malformed, a field missing or of the wrong type
│   ├── BodyError           a command body that isn't the JSON or batch it should be
│   ├── RecordError         a message record: truncated, wrong magic, wrong CRC
│   └── CompressionError    a compressed body that doesn't decompress, or to too much
├── RemotingError           the network
│   ├── ConnectFailed       nobody listens, TLS refused, or the connect timed out
│   ├── ConnectionLost      closed while a request was under way
│   ├── RequestTimeout      no response in time
│   └── SendOutcomeUnknown  a send that no broker has confirmed: the message may be stored
├── BrokerUnavailable       no broker can take the request at present; a later try can succeed
├── RequestRefused          raised by a server's handler: the peer gets this code and remark
├── BrokerError             a server answered with another code than SUCCESS
├── ClientError             the client can't do what was asked
│   ├── NoRouteInfo         no NameServer knows the topic
│   │   └── RouteNotReady   a NameServer has just started: also a BrokerUnavailable
│   ├── IllegalMessage      topic, group, size or properties that a broker would refuse
│   ├── ClientClosed        used before start() or after close()
│   ├── PartialFailure      some of several servers did what was asked, others failed
│   └── DataLost            messages that a reader was promised are gone
├── StoreError              the files
│   ├── StoreLocked         another process has the directory
│   ├── StoreFull           no room for another record
│   ├── StoreBusy           no room just now: a file is being made
│   └── SyncFailed          the disk didn't take what was written; a later success would mean nothing
├── ReplicationError        a slave can't follow its master: their logs aren't the same
├── CodecError              a value that a codec can't encode, or bytes that it can't decode
├── ConfigError             a configuration key or value
├── MissingExtra            a part of the package needs more than is installed; an ImportError, too
└── ThreadDied              a thread that others count on ended by an exception, its __cause__
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any

#: ResponseCode.REQUEST_CODE_NOT_SUPPORTED.
_NOT_SUPPORTED = 3


class RefusalReason(StrEnum):
    """Why a server refused a request, or returned no messages, for the reasons that programs act on.

    One response code has several reasons, and the remark is for people. GantryMQ's servers send the reason in a header
    field of their own. The reasons of Java's servers follow from their remarks (`protocol.refusals`).
    """

    #: The broker is a slave, or a former master, or its lease has ended: request the route again.
    NOT_MASTER = "NOT_MASTER"
    #: The broker stored the message as a master, and another broker is master now: the new master may have the message.
    MAY_BE_STORED = "MAY_BE_STORED"
    #: The in-sync set is smaller than `minInSyncReplicas`.
    NOT_ENOUGH_REPLICAS = "NOT_ENOUGH_REPLICAS"
    #: The NameServer has just started and waits for brokers (`needWaitForService`).
    NAME_SERVER_NOT_READY = "NAME_SERVER_NOT_READY"
    #: Access control is on, and the request has no access key.
    NO_CREDENTIALS = "NO_CREDENTIALS"
    #: The user is authenticated, and lacks the permission.
    NOT_PERMITTED = "NOT_PERMITTED"
    #: The queue has the messages and the commit log does not: retention removed them, or they are lost.
    MESSAGES_REMOVED = "MESSAGES_REMOVED"
    #: The reply is for a requester that is not connected.
    REQUESTER_GONE = "REQUESTER_GONE"


class GantryError(Exception):
    """Base of all errors of this package."""


class ProtocolError(GantryError):
    """Bytes that do not follow RocketMQ's formats."""


class FrameError(ProtocolError):
    """A frame whose length or encoding is impossible; the byte stream has lost its place.

    Remedy: look for something else than a RocketMQ client or server at the other end of the connection, TLS on a
    plain port for one.
    """


class HeaderError(ProtocolError):
    """A command header that can't be read, or lacks a required field.

    Remedy: the other side speaks another version or is no RocketMQ; its address is in the log.
    """


class BodyError(ProtocolError):
    """A command body that can't be read.

    Remedy: as for HeaderError; after a change of a Java server's version, tell us which.
    """


class RecordError(ProtocolError):
    """A message record that is cut off, has the wrong magic number or the wrong CRC.

    Remedy: `gantry store verify` finds what is damaged; the other messages are not concerned.
    """


class CompressionError(ProtocolError):
    """A message body that doesn't decompress, or would grow over the limit.

    Remedy: raise `max_body_size` if the message is meant to be that large, else drop it; other messages are not
    concerned.
    """


class RemotingError(GantryError):
    """The network failed; `address` is the peer's host:port."""

    def __init__(self, message: str, address: str) -> None:
        super().__init__(message)
        self.address = address


class ConnectFailed(RemotingError):
    """No connection could be made.

    Remedy: start the server, or correct the address; `gantry doctor` tries all that brokers advertise. A word about
    TLS in the text names the option.
    """


class ConnectionLost(RemotingError):
    """The connection closed while a request waited for its response.

    Remedy: try again; clients connect anew by themselves. The server's log says why it closed the connection.
    """


class RequestTimeout(RemotingError):
    """No response came in time.

    Remedy: try again, or allow more time (`timeout_ms`); `gantry doctor` and the broker's slow requests say what
    hangs.
    """


def _printable(text: str) -> str:
    """`text` of a server on one line, wherever the error is printed."""
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class SendOutcomeUnknown(RemotingError):
    """A message was sent, and its outcome is unknown: it may be stored, it may be lost later.

    Either no readable response came: then `status` is None, and the cause (`__cause__`) is a ConnectionLost, a
    RequestTimeout or a ProtocolError. Or the master of a broker set with a controller has the message, and its in-sync
    set has not confirmed it: then `status` is the SendStatus and `result` the SendResult. All other errors of a send
    mean that the message is not stored. A message that is sent again may be stored twice.

    Remedy: send it again with the same keys, and let consumers drop repeats by them.
    """

    def __init__(self, message: str, address: str, result: Any = None) -> None:
        super().__init__(message, address)
        self.result = result
        self.status = None if result is None else result.status


class BrokerUnavailable(GantryError):
    """No broker can take the request at present, for example because a master is being elected.

    The message is not stored.

    Remedy: try again. If it lasts, `gantry doctor` names the cause.
    """


class RequestRefused(GantryError):
    """A handler's answer other than success; `code` is the ResponseCode, the message the remark.

    `reason` tells programs what the code does not; None if nobody acts on it.

    Remedy: nothing for users of a client: it is how a handler of a server answers, and becomes the client's
    BrokerError.
    """

    def __init__(self, code: int, remark: str, reason: RefusalReason | None = None) -> None:
        super().__init__(remark)
        self.code = code
        self.reason = reason


class BrokerError(GantryError):
    """A NameServer or broker answered with an error; `code` is a `ResponseCode` where known.

    `reason` is a `RefusalReason`, or None if the response has no reason that programs act on.

    Remedy: by its `code`, see the table of codes, and by what the remark says.
    """

    def __init__(self, code: int, remark: str | None, address: str, reason: RefusalReason | None = None) -> None:
        text = f"{address} answered code {code}: {_printable((remark or '').strip() or 'no remark')}"
        if reason is RefusalReason.NO_CREDENTIALS:
            text += (
                ". The request had no access key, which it wants: hooks=[AclHook(access_key, secret_key)], or "
                "--acl-config FILE"
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


class ClientError(GantryError):
    """The client can't do what was asked.

    Remedy: correct the call as the text says.
    """


class NoRouteInfo(ClientError):
    """The NameServers that were asked answer, and know no route for the topic; `found` says what else they know.

    Remedy: create the topic (`gantry admin updateTopic`, `AdminClient.ensure_topic`); `gantry doctor TOPIC` finds
    the other causes.
    """

    def __init__(self, topic: str, name_servers: list[str], found: str | None = None) -> None:
        super().__init__(_no_route(topic, ", ".join(name_servers) or "no NameServer", ";".join(name_servers), found))
        self.topic = topic
        self.name_servers = name_servers


class RouteNotReady(NoRouteInfo, BrokerUnavailable):
    """A NameServer has just started, and doesn't have the topic's complete route yet.

    `brokers` have queues of the topic and haven't registered again. It is empty for a NameServer with
    needWaitForService, which answers with no route in its first seconds.

    Remedy: try again. The route is complete when all brokers have registered, which takes 30 s.
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
    """What follows from there being no route for this kind of topic."""
    for prefix, what in (
        ("%RETRY%", "knows no consumer group {!r}: none of its consumers has been there yet, or it was deleted"),
        ("%DLQ%", "knows no dead letters of consumer group {!r}: none of its messages was given up so far"),
    ):
        if topic.startswith(prefix):
            return f"{asked} answers, and {what.format(topic.removeprefix(prefix))} (no route info for topic {topic!r})"
    return (
        f"no route info for topic {topic!r} from {asked}, which can be reached and answers: {found or _EITHER}; this "
        f"looks at all of it: gantry doctor {shlex.quote(topic)} -n {shlex.quote(addresses)}"
    )


class IllegalMessage(ClientError):
    """A message or name that every broker would refuse.

    Remedy: change the message; to send it again as it is can't succeed.
    """


class ClientClosed(ClientError):
    """The client has not been started, or is closed.

    Remedy: use the client inside `async with`, or `with`, or between start() and close().
    """


class PartialFailure(ClientError):
    """Some of several servers did what was asked, others failed; both are named.

    `done` has the addresses (host:port) of the former, `failed` the errors of the latter by address.

    Remedy: mend the servers in `failed`, and call it once more: on those in `done` it changes nothing.
    """

    def __init__(self, what: str, done: Sequence[str], failed: Mapping[str, GantryError]) -> None:
        errors = "; ".join(f"{address}: {error}" for address, error in failed.items())
        super().__init__(f"{what} failed on {errors}; done on {', '.join(done) or 'none'}")
        self.done = list(done)
        self.failed = dict(failed)


class DataLost(ClientError):
    """Messages between the offsets that were to be read are no longer there.

    Remedy: messages were deleted before they were read: keep them longer (`fileReservedTime`), or go on where there
    are some.
    """


class StoreError(GantryError):
    """The store's files can't be used as asked."""


class StoreLocked(StoreError):
    """Another process uses the store directory.

    Remedy: stop the other process, or use another directory.
    """


class StoreBusy(StoreError):
    """No room for another record just now: a file is being made, and who writes isn't to wait for it.

    Remedy: nothing, the broker waits itself; whoever uses the store as a library tries again.
    """


class StoreFull(StoreError):
    """There is no room for another record.

    Remedy: make room on the disk, or have messages deleted earlier (`fileReservedTime`, `diskMaxUsedSpaceRatio`).
    """


class SyncFailed(StoreError):
    """fsync itself failed: the kernel counts the pages as written now, so a second one that succeeds says nothing.

    Remedy: look after the disk (the kernel's log), then start the broker again: it goes on with what is surely on
    the disk.
    """


class ReplicationError(GantryError):
    """A slave can't follow its master: their logs aren't the same, or have files of different sizes.

    Remedy: look which broker the slave was told to follow. If it is the right one, and has lost what the slave still
    has (a power failure), stop the slave, move its store away and start it: it takes the master's log anew.
    """


class CodecError(GantryError):
    """A value that a codec can't encode, or a body that it can't decode; of a received message it says where it is.

    Remedy: look at the message with `gantry consume`, and at who sent it; both sides need the same type or schema.
    """


class ConfigError(GantryError):
    """A configuration key or value that can't be used.

    Remedy: correct the key or value that the text names.
    """


class MissingExtra(GantryError, ImportError):
    """A part of this package needs a module that `pip install "gantrymq[...]"` brings.

    Remedy: run the `pip install` that the text has.
    """


class ThreadDied(GantryError):
    """The thread that does the work ended by an exception, which is the cause of this one.

    Remedy: the cause says what happened; make a new client, or start the server again.
    """
