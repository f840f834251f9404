"""Tests of log lines with data from peers: each stays on one line, and their number is limited."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gantrymq import logs
from gantrymq.logs import LINES, LONGEST_LINE, JsonFormatter, LineFormatter, log_text, peer_log

FORGED = "x\n2026-01-01 00:00:00,000 INFO gantrymq.broker: all is well"


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LineFormatter())
    log = peer_log(f"test.{uuid.uuid4()}")
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    log.propagate = False
    yield log, written
    log.removeHandler(handler)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", "orders"),
        ("заказы 订单", "заказы 订单"),
        ("a\nb\r\x1b[2J\0", r"a\nb\r\x1b[2J\x00"),
        ("\u2028\u202e\ud800", r"\u2028\u202e\ud800"),
        ("x" * 501, "x" * 500 + "... (501 characters)"),
    ],
)
def test_text_of_a_peer(text: str, expected: str) -> None:
    assert log_text(text) == expected


def test_a_peer_writes_no_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    log = peer_log("test.forged")
    log.warning("client %s is ignored: %s", FORGED, ValueError(FORGED))
    # The record itself is escaped, so it does not matter which handler writes it.
    (record,) = caplog.records
    assert record.getMessage().count(r"x\n2026-01-01") == 2
    assert "\n" not in record.getMessage()


def test_a_traceback_does_not_look_like_messages(log: tuple[logging.Logger, io.StringIO]) -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        log[0].exception("failed")
    first, *rest = log[1].getvalue().splitlines()
    assert first.endswith("failed")
    assert rest
    assert all(line.startswith("  | ") for line in rest)


def test_the_formatter_escapes_what_others_log(log: tuple[logging.Logger, io.StringIO]) -> None:
    other = logging.getLogger(f"{log[0].name}.other")
    other.propagate = True
    other.error("%s", FORGED)
    assert log[1].getvalue().count("\n") == 1


def test_a_flood_is_cut_off_and_counted(
    log: tuple[logging.Logger, io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(logs, "monotonic", lambda: now)

    def unknown(code: int) -> None:
        log[0].info("code %d", code)

    for code in range(10_000):
        unknown(code)
    log[0].info("another place")
    lines = log[1].getvalue().splitlines()
    assert len(lines) == LINES + 1
    assert lines[-1].endswith("another place")

    now += logs.PERIOD_S
    unknown(7)
    unknown(8)
    assert [line.partition(": ")[2] for line in log[1].getvalue().splitlines()[-2:]] == [
        f"code 7 ({10_000 - LINES} lines like it were left out)",
        "code 8",
    ]


def test_numbers_and_counts_stay_what_they_are(log: tuple[logging.Logger, io.StringIO]) -> None:
    log[0].warning("100%")
    log[0].warning("%d of %.1f %%", 3, 4.5)
    assert [line.partition(": ")[2] for line in log[1].getvalue().splitlines()] == ["100%", "3 of 4.5 %"]


def test_one_filter_for_a_logger() -> None:
    name = f"test.{uuid.uuid4()}"
    assert peer_log(name) is peer_log(name)
    assert len(peer_log(name).filters) == 1


@pytest.mark.parametrize("which", ["first", "second"])
def test_no_test_finds_lines_left_out_by_another(which: str, caplog: pytest.LogCaptureFixture) -> None:
    log = peer_log("test.of.each")
    for number in range(LINES):
        log.warning("line %d of %s", number, which)
    assert len(caplog.records) == LINES


def test_json_lines() -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    log = logging.Logger("gantrymq.broker")
    log.addHandler(handler)
    log.info("client %s is ignored", FORGED)
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.exception("failed")
    first, second = (json.loads(line) for line in written.getvalue().splitlines())
    assert datetime.fromisoformat(first.pop("time")).utcoffset() == timedelta(0)
    assert first == {"level": "INFO", "logger": "gantrymq.broker", "message": f"client {FORGED} is ignored"}
    assert (second["level"], second["message"]) == ("ERROR", "failed")
    assert second["exception"].startswith("Traceback")
    assert FORGED in second["exception"]


def test_a_long_exception_in_json_keeps_its_message() -> None:
    try:
        try:
            raise ValueError("x" * 3 * LONGEST_LINE)
        except ValueError as e:
            raise RuntimeError("disk is full") from e
    except RuntimeError:
        record = logging.LogRecord("gantrymq", logging.ERROR, __file__, 1, "failed", None, sys.exc_info())
    record.stack_info = "Stack (most recent call last):\n" + "y" * 3 * LONGEST_LINE + "\nflush()"
    line = json.loads(JsonFormatter().format(record))
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("RuntimeError: disk is full")
    assert line["stack"].startswith("Stack")
    assert line["stack"].endswith("flush()")
    assert all(len(line[key]) < LONGEST_LINE + 100 for key in ("exception", "stack"))


def test_a_server_logs_json_if_the_environment_says_so(tmp_path: Path) -> None:
    (tmp_path / "namesrv.conf").write_text(f"listenPort=0\nkvConfigPath={tmp_path}/kv.json\n")
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq.cli", "namesrv", "-c", "namesrv.conf", "--stop-on-eof"],
        env=os.environ | {"GANTRY_LOG_FORMAT": "json"},
        input="",
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 0
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert any("boot success" in line["message"] for line in lines)


def test_requests_of_a_library_are_not_logged() -> None:
    program = """
import logging
from gantrymq.logs import log_to_stderr
log_to_stderr()
for name in ("gantrymq.controller", "httpx"):
    logging.getLogger(name).info("HTTP Request: POST")
logging.getLogger("httpx").warning("no answer")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = [line.split()[3] for line in done.stderr.splitlines()]
    assert names == ["gantrymq.controller:", "httpx:"]
