"""Metrics and access log of requests of the remoting protocol."""

from __future__ import annotations

from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.proxy.access_log import LONGEST_ID, AccessLog
from gantrymq.proxy.metrics import CallFigures
from gantrymq.proxy.remoting.link import ASKED
from gantrymq.system.clock import monotonic

_REQUESTS = {code.value: code.name for code in RequestCode}
_RESULTS = {code.value: code.name for code in ResponseCode}
#: Label of all unknown request codes. Clients choose the code, so the number of labels must be limited.
OTHER = "OTHER"
#: Results of one-way requests, and of requests whose client disconnected before the response.
ONEWAY, CONNECTION_LOST = "ONEWAY", "CONNECTION_LOST"


class RequestObserver:
    """Records each ended request: a hook of `RemotingServer`, which must call `lost` for each closed connection."""

    def __init__(self, figures: CallFigures | None, access_log: AccessLog | None) -> None:
        self._figures = figures
        self._access_log = access_log
        #: Pending requests by client address and request id: (code, time of arrival in s).
        self._waiting: dict[str, dict[int, tuple[int, float]]] = {}
        #: Client ids by address. A client sends its id with its first heartbeat.
        self._names: dict[str, str] = {}

    def named(self, address: str, client_id: str) -> None:
        """Sets the id of the client at an address."""
        self._names[address] = client_id[:LONGEST_ID]

    def before_request(self, address: str, request: RemotingCommand) -> None:
        if request.code in ASKED:
            # The hook also runs for requests of a broker to the client. They are not counted.
            return
        if request.is_oneway:
            self._ended(address, request.code, ONEWAY, 0.0)
        else:
            self._waiting.setdefault(address, {})[request.opaque] = (request.code, monotonic())

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        # None if the client used one id for two requests.
        if (waiting := self._waiting.get(address, {}).pop(request.opaque, None)) is not None:
            code, began = waiting
            self._ended(address, code, _RESULTS.get(response.code) or str(response.code), monotonic() - began)

    def lost(self, address: str) -> None:
        """Ends the pending requests of a closed connection with CONNECTION_LOST."""
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
