"""The guard before a broker's handlers: a request that isn't allowed never reaches its handler.

Handlers are wrapped once, when the broker starts; one without access control has them as they are and pays nothing.
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
    """Who is at the other end of a connection.

    `name` is the user or access key that signed last, or where nobody has to sign, the one named last; None before.
    """

    host: str
    name: str | None = None
    #: Of requests with a bound signature.
    opaques: SignedOpaques = field(default_factory=SignedOpaques)


class Access(Protocol):
    """One of the two ways of access control."""

    def check(self, caller: Caller, request: RemotingCommand) -> None:
        """Raises RequestRefused when the caller may not make this request; else its name is known after it."""

    def may_send(self, caller: Caller, topic: str) -> bool:
        """Whether the caller may send to a topic."""

    def is_super(self, caller: Caller) -> bool:
        """Whether the caller is a super user of 5.x."""


def caller_of(connection: Connection) -> Caller:
    caller: Caller | None = connection.attributes.get(_ATTRIBUTE)
    if caller is None:
        caller = connection.attributes[_ATTRIBUTE] = Caller(parse_address(connection.address)[0])
    return caller


def guarded(handler: RequestHandler, access: Access) -> RequestHandler:
    """The handler, called only for requests that `access` allows."""

    def guard(connection: Connection, request: RemotingCommand) -> Reply:
        try:
            access.check(caller_of(connection), request)
        except RequestRefused as e:
            log.info("request %d of %s is refused: %s", request.code, connection.address, e)
            raise
        return handler(connection, request)

    return guard
