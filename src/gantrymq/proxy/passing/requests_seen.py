"""RequestsSeen: requests of the remoting protocol, told to metrics and to the access log when they are answered."""

from __future__ import annotations

from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.proxy.access_log import LONGEST_ID, AccessLog
from gantrymq.proxy.metrics import CallFigures
from gantrymq.proxy.passing.link import ASKED
from gantrymq.system.clock import monotonic

_REQUESTS = {code.value: code.name for code in RequestCode}
_RESULTS = {code.value: code.name for code in ResponseCode}
#: The name of all requests that nobody knows: clients make up their codes.
OTHER = "OTHER"
#: The result of requests that want no answer, and of those whose client has gone before it.
ONEWAY, CONNECTION_LOST = "ONEWAY", "CONNECTION_LOST"


class RequestsSeen:
    """The hook of a server's connections, which it must be told of when they are lost."""

    def __init__(self, figures: CallFigures | None, access_log: AccessLog | None) -> None:
        self._figures = figures
        self._access_log = access_log
        #: Of each client those that wait for their answers, by their numbers: code, and when they came.
        self._waiting: dict[str, dict[int, tuple[int, float]]] = {}
        #: The clients' ids, as far as they have told them.
        self._names: dict[str, str] = {}

    def named(self, address: str, client_id: str) -> None:
        """The client there says who it is."""
        self._names[address] = client_id[:LONGEST_ID]

    def before_request(self, address: str, request: RemotingCommand) -> None:
        if request.code in ASKED:
            # Of brokers to the client, which goes this way, too.
            return
        if request.is_oneway:
            self._ended(address, request.code, ONEWAY, 0.0)
        else:
            self._waiting.setdefault(address, {})[request.opaque] = (request.code, monotonic())

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        # None: the client has given two requests one number.
        if (waiting := self._waiting.get(address, {}).pop(request.opaque, None)) is not None:
            code, began = waiting
            self._ended(address, code, _RESULTS.get(response.code) or str(response.code), monotonic() - began)

    def lost(self, address: str) -> None:
        """The connection with the client there was lost."""
        now = monotonic()
        for code, began in self._waiting.pop(address, {}).values():
            self._ended(address, code, CONNECTION_LOST, now - began)
        self._names.pop(address, None)

    def _ended(self, address: str, code: int, result: str, seconds: float) -> None:
        name = _REQUESTS.get(code, OTHER)
        if self._figures is not None:
            self._figures.ended(name, result, seconds)
        if self._access_log is not None:
            self._access_log.ended(address, self._names.get(address, ""), name, result, seconds)
