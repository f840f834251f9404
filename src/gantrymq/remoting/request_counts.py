"""Counts a server's responses by request code and response code, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand

#: Labels as in Java's `RemotingHelper`. Unlisted codes share one label, so that a peer cannot create further labels.
_REQUEST_NAMES: Mapping[int, str] = {code: code.name.lower() for code in RequestCode}
_RESPONSE_NAMES: Mapping[int, str] = {code: code.name.lower() for code in ResponseCode}


def code_labels(request: int, response: int) -> dict[str, str]:
    """Returns the labels for a request code and a response code."""
    return {
        "request_code": _REQUEST_NAMES.get(request, "unknown"),
        "response_code": _RESPONSE_NAMES.get(response, "unknown"),
    }


def known_response_code(response: int) -> int:
    """Returns a response code, or -1 if it is unlisted. Clients choose the codes of relayed responses."""
    return response if response in _RESPONSE_NAMES else -1


def known_code(request: int) -> int:
    """Returns a request code, or -1 if it is unlisted."""
    return request if request in _REQUEST_NAMES else -1


class RequestCounts:
    """Counts responses by request code and response code. Install it as an `RpcHook`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, int]] = Counter()

    def before_request(self, address: str, request: RemotingCommand) -> None:
        pass

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        self._counts[known_code(request.code), response.code] += 1

    def samples(self) -> Iterator[tuple[Mapping[str, str], float]]:
        for (request, response), count in self._counts.items():
            yield code_labels(request, response), count
