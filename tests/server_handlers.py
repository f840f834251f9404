"""The request handlers of a running server, which tests replace and call."""

from __future__ import annotations

from typing import cast

from gantrymq.broker.broker import Broker
from gantrymq.controller.server import Controller
from gantrymq.namesrv.server import NameServer
from gantrymq.remoting.connection import RequestHandler
from gantrymq.remoting.server import RemotingServer


def handlers_of(server: Broker | NameServer | Controller | RemotingServer) -> dict[int, RequestHandler]:
    """Returns the handlers of a running server. Changes take effect for its next request."""
    remoting = server if isinstance(server, RemotingServer) else server._server
    return cast(dict[int, RequestHandler], remoting._handlers)
