"""Requests that wait inside the broker, with what they keep, until their handler can do its work.

What they wait for, and in which order they go on, is said in `new_topics` and `room_waits`.
"""

from __future__ import annotations

from itertools import count
from math import inf
from typing import NamedTuple

from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.answers import error_response
from gantrymq.remoting.connection import Connection, RequestHandler

#: What may wait in all, bytes; about what a request takes besides its body and header.
MAX_HELD_BYTES = 64 * 1024 * 1024
_OVERHEAD = 512
#: So long requests that have waited are worked off in one turn of the loop, s.
TURN_S = 0.005


class Held(NamedTuple):
    """A request that `handler` is to answer; `deadline` is of the monotonic clock, s. `topic` is what it waits for.

    Numbers grow in the order in which requests came.
    """

    number: int
    connection: Connection
    request: RemotingCommand
    handler: RequestHandler
    size: int
    deadline: float
    topic: str = ""


class HeldRequests:
    """Those that wait for one thing; `for_what` tells a client that can't."""

    def __init__(self, for_what: str) -> None:
        #: The one that is being answered.
        self.current: Held | None = None
        self._for_what = for_what
        self._numbers = count()
        self._size = 0

    def hold(
        self,
        connection: Connection,
        request: RemotingCommand,
        handler: RequestHandler,
        deadline: float = inf,
        topic: str = "",
    ) -> Held:
        """A request for the line of who calls, until `answer`. Raises RequestRefused when too much waits."""
        size = len(request.body) + len(request.raw_ext) + _OVERHEAD
        if self._size + size > MAX_HELD_BYTES:
            raise self.busy()
        self._size += size
        return Held(next(self._numbers), connection, request, handler, size, deadline, topic)

    def again(self, handler: RequestHandler) -> Held:
        """The one that is being answered, which waits once more, for whoever calls to put it into its place."""
        assert self.current is not None
        self._size += self.current.size
        return self.current._replace(handler=handler)

    def answer(self, held: Held, error: Exception | None = None) -> None:
        """Has the handler answer a request that waits no more; the answer says `error` if there is one."""
        connection, request = held.connection, held.request
        self._size -= held.size
        self.current = held
        try:
            if error is not None:
                raise error
            reply = held.handler(connection, request)
        except Exception as e:
            reply = error_response(e, request, connection.address)
        finally:
            self.current = None
        if reply is not None:
            connection.reply(request, reply)

    def busy(self) -> RequestRefused:
        return RequestRefused(
            ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]system busy, start flow control for a while: {self._for_what}"
        )
