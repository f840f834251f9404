"""The guard before a broker's handlers: a request that isn't allowed never reaches its handler.

Handlers are wrapped once, when the broker starts; one without access control has them as they are and pays nothing.
"""

from __future__ import annotations

import logging
from typing import Protocol

from gantrymq.errors import RequestRefused
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.connection import Connection, Reply, RequestHandler

log = logging.getLogger(__name__)


class Access(Protocol):
    """One of the two ways of access control."""

    def check(self, host: str, request: RemotingCommand) -> None:
        """Raises RequestRefused when a client at address `host` may not make this request."""


def guarded(handler: RequestHandler, access: Access) -> RequestHandler:
    """The handler, called only for requests that `access` allows."""

    def guard(connection: Connection, request: RemotingCommand) -> Reply:
        host = connection.attributes.get("host")
        if host is None:
            host = connection.attributes["host"] = parse_address(connection.address)[0]
        try:
            access.check(host, request)
        except RequestRefused as e:
            log.info("request %d of %s is refused: %.500s", request.code, connection.address, e)
            raise
        return handler(connection, request)

    return guard
