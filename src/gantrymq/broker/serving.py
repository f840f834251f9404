"""The server's connections and requests, as parts of a broker: when it begins to serve, and how it ends."""

from __future__ import annotations

from gantrymq.broker.part import Part
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.long_requests import LongRequests
from gantrymq.remoting.server import RemotingServer


class Serving(Part):
    """Takes connections from `start` on; `stop` closes them, after what was answered is written."""

    def __init__(self, server: RemotingServer) -> None:
        self._server = server

    async def start(self) -> None:
        await self._server.serve()

    async def stop(self) -> None:
        await self._server.stop()


class Draining(Part):
    """Has what arrived before `stop` answered, while all that can answer it is still at work."""

    def __init__(self, server: RemotingServer) -> None:
        self._server = server

    async def stop(self) -> None:
        await self._server.drain()


class GoingOn(Part):
    """Requests that take more than a turn of the loop; those that wait are answered before the connections close."""

    def __init__(self, long_requests: LongRequests) -> None:
        self._long_requests = long_requests

    async def start(self) -> None:
        self._long_requests.start()

    async def stop(self) -> None:
        await self._long_requests.stop()

    def connection_closed(self, connection: Connection) -> None:
        self._long_requests.connection_closed(connection)
