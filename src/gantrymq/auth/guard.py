"""The check that runs before a broker's handlers. A request without permission does not reach its handler.

Handlers are wrapped once, when the broker starts. Without access control they are not wrapped and have no extra cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from gantrymq.errors import RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.signatures import SignedOpaques

log = peer_log(__name__)

_ATTRIBUTE = "caller"


@dataclass(slots=True)
class Caller:
    """The client of a connection.

    `name` is the user or access key of the last accepted request; None before the first one. Without authentication,
    the name is not verified.
    """

    host: str
    name: str | None = None
    #: The opaque numbers of received requests with a bound signature.
    opaques: SignedOpaques = field(default_factory=SignedOpaques)


class Access(Protocol):
    """One of the two kinds of access control."""

    def check(self, caller: Caller, request: RemotingCommand) -> None:
        """Raises RequestRefused if the caller has no permission for this request. Sets the name of the caller."""

    def may_send(self, caller: Caller, topic: str) -> bool:
        """Returns True if the caller has permission to send to a topic."""

    def is_super(self, caller: Caller) -> bool:
        """Returns True if the caller is a super user of 5.x."""


def caller_of(connection: Connection) -> Caller:
    caller: Caller | None = connection.attributes.get(_ATTRIBUTE)
    if caller is None:
        caller = connection.attributes[_ATTRIBUTE] = Caller(parse_address(connection.address)[0])
    return caller


def guarded(handler: RequestHandler, access: Access) -> RequestHandler:
    """Returns a handler that runs `handler` only for requests that `access` allows."""

    def guard(connection: Connection, request: RemotingCommand) -> Reply:
        try:
            access.check(caller_of(connection), request)
        except RequestRefused as e:
            log.info("refused request %d of %s: %s", request.code, connection.address, e)
            raise
        return handler(connection, request)

    return guard
