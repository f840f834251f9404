"""Requests that wait in the broker until their handler can complete, and the limit on their memory.

`new_topics` and `preallocation_waits` define the condition and the order in which the requests continue.
"""

from __future__ import annotations

from itertools import count
from math import inf
from typing import NamedTuple

from gantrymq.errors import RequestRefused
from gantrymq.limits import Limit
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection, RequestHandler
from gantrymq.remoting.quota import Quota
from gantrymq.remoting.responses import error_response

#: Approximate memory of a request without its body and header, in bytes.
_OVERHEAD = 512
#: Longest time for which pending requests are handled in one event-loop iteration, in seconds.
SLICE_S = 0.005


class PendingRequest(NamedTuple):
    """A request that waits until `handler` can handle it.

    Attributes:
        number: Increases in the order of arrival.
        size: Memory that counts for the limit, in bytes.
        deadline: Time of the monotonic clock, in seconds.
        topic: The topic that the request waits for.
    """

    number: int
    connection: Connection
    request: RemotingCommand
    handler: RequestHandler
    size: int
    deadline: float
    topic: str = ""


class PendingRequests:
    """Limits and handles the requests that wait for a condition. `for_what` names it in the error of a rejection."""

    def __init__(self, for_what: str, limit: Limit) -> None:
        #: The request that is being handled.
        self.current: PendingRequest | None = None
        self._for_what = for_what
        self._numbers = count()
        self._quota = Quota(limit)

    def hold(
        self,
        connection: Connection,
        request: RemotingCommand,
        handler: RequestHandler,
        deadline: float = inf,
        topic: str = "",
    ) -> PendingRequest:
        """Returns a pending request, whose size counts until `answer`. Raises RequestRefused above the limit."""
        size = len(request.body) + len(request.raw_ext) + _OVERHEAD
        if not self._quota.share(connection).take(size):
            raise self.busy()
        return PendingRequest(next(self._numbers), connection, request, handler, size, deadline, topic)

    def again(self, handler: RequestHandler) -> PendingRequest:
        """Returns the current request, so that the caller can queue it again, and counts its size again."""
        assert self.current is not None
        self._quota.share(self.current.connection).add(self.current.size)
        return self.current._replace(handler=handler)

    def answer(self, held: PendingRequest, error: Exception | None = None) -> None:
        """Calls the handler of a request and sends the response. If `error` is set, only sends the error."""
        connection, request = held.connection, held.request
        self._quota.share(connection).release(held.size)
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
        """Returns the error for a request that is not allowed to wait, or that has waited for too long."""
        return RequestRefused(
            ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]system busy, start flow control for a while: {self._for_what}"
        )
