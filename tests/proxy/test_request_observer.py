"""Metrics of remoting requests."""

from __future__ import annotations

from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import ONEWAY_FLAG, RemotingCommand
from gantrymq.proxy.metrics import CallFigures
from gantrymq.proxy.remoting.request_observer import CONNECTION_LOST, ONEWAY, OTHER, RequestObserver

HERE = "127.0.0.1:50000"


def request(code: int, opaque: int) -> RemotingCommand:
    command = RemotingCommand.request(code)
    command.opaque = opaque
    return command


def test_how_requests_end() -> None:
    figures = CallFigures()
    seen = RequestObserver(figures, None)
    pull, unknown, oneway = request(RequestCode.PULL_MESSAGE, 1), request(12345, 2), request(RequestCode.HEART_BEAT, 3)
    oneway.flag |= ONEWAY_FLAG
    for one in (pull, unknown, oneway, request(RequestCode.PULL_MESSAGE, 4)):
        seen.before_request(HERE, one)
    seen.after_response(HERE, pull.without_content(), RemotingCommand.response(ResponseCode.PULL_NOT_FOUND))
    seen.after_response(HERE, unknown.without_content(), RemotingCommand.response(7777))
    seen.lost(HERE)
    # Lost requests are counted once.
    seen.lost(HERE)
    seen.after_response(HERE, pull, RemotingCommand.response())
    assert figures.results == {
        ("PULL_MESSAGE", "PULL_NOT_FOUND"): 1,
        (OTHER, "7777"): 1,
        ("HEART_BEAT", ONEWAY): 1,
        ("PULL_MESSAGE", CONNECTION_LOST): 1,
    }


def test_two_requests_with_one_number() -> None:
    figures = CallFigures()
    seen = RequestObserver(figures, None)
    for _ in range(2):
        seen.before_request(HERE, request(RequestCode.PULL_MESSAGE, 1))
    for _ in range(2):
        seen.after_response(HERE, request(RequestCode.PULL_MESSAGE, 1), RemotingCommand.response())
    assert figures.results == {("PULL_MESSAGE", "SUCCESS"): 1}


def test_what_brokers_ask_clients_is_no_request_of_theirs() -> None:
    figures = CallFigures()
    seen = RequestObserver(figures, None)
    seen.before_request(HERE, request(RequestCode.CHECK_TRANSACTION_STATE, 1))
    seen.lost(HERE)
    assert not figures.results
