r"""Loggers that are safe for text from peers: one line per message, and a limited number of lines.

Peers send text that is logged: client ids, topics, remarks. Such text could forge a line of the log
("\n2026-01-01 INFO all is well"), move the cursor of a terminal, or fill the disk.

- `peer_log` returns a logger that escapes and limits its lines. It is for modules whose log lines a peer can cause.
- `LineFormatter` is for servers. It also escapes the lines of other loggers, including tracebacks.
- `JsonFormatter` is for servers whose logs a program collects.

The filter belongs to the logger, not to a log handler: a program that embeds a broker has its own handlers.
"""

from __future__ import annotations

import codecs
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any

from gantrymq.system.clock import monotonic

#: One log statement writes at most LINES lines in PERIOD_S seconds. The next line after that states the number of
#: omitted lines.
LINES = 20
PERIOD_S = 10.0
#: Maximum length of a text from a peer, in characters. Longer text is cut.
LONGEST_TEXT = 500
#: Maximum length of a log line, in characters. Longer lines are cut.
LONGEST_LINE = 10_000

# Python imports a codec at its first use. This import would fail if the process had no free file descriptors.
codecs.lookup("unicode_escape")

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: Loggers of libraries that log each request at level INFO. A controller sends six requests a second to etcd.
_WORDY_LIBRARIES = ("httpx",)
#: Prefix of each line of a traceback, so that no such line looks like a log message.
_CONTINUED = "  | "


def log_text(text: str, longest: int = LONGEST_TEXT) -> str:
    r"""Returns `text` on one line. Unprintable characters are escaped (\n, \x1b, \u202e).

    Text of more than `longest` characters is cut. The result then ends with the original length.
    """
    if len(text) > longest:
        return f"{log_text(text[:longest], longest)}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def terminal_text(text: str) -> str:
    r"""Returns a text of several lines for a terminal. Unprintable characters, such as \x1b, are escaped."""
    return "\n".join(log_text(line, LONGEST_LINE) for line in text.split("\n"))


def peer_log(name: str) -> logging.Logger:
    """Returns the logger `name` with a PeerFilter. For modules whose log lines a peer can cause."""
    log = logging.getLogger(name)
    if not any(isinstance(known, PeerFilter) for known in log.filters):
        log.addFilter(PeerFilter())
    return log


def log_to_stderr() -> None:
    """Configures the root logger of a server process: level INFO and above, to stderr.

    Uses LineFormatter, or JsonFormatter if the environment has GANTRY_LOG_FORMAT=json. Libraries that log each request
    at level INFO log warnings only.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if os.environ.get("GANTRY_LOG_FORMAT") == "json" else LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in _WORDY_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)


class LineFormatter(logging.Formatter):
    """Formats a record on one line: time, level, logger, message. Traceback lines follow and begin with a bar (`|`)."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return log_text(super().formatMessage(record), LONGEST_LINE)

    def formatException(self, ei: Any) -> str:
        return "\n".join(_CONTINUED + log_text(line, LONGEST_LINE) for line in super().formatException(ei).split("\n"))


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time (ISO 8601, UTC), level, logger and message.

    The object also has the exception and the stack, if the record has them. JSON escapes line breaks and control
    characters. Long texts are cut.
    """

    def format(self, record: logging.LogRecord) -> str:
        # Only for these lines: the import takes 2 ms.
        import json

        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": at,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage()[:LONGEST_LINE],
        }
        if record.exc_info:
            line["exception"] = _head_and_tail(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = _head_and_tail(self.formatStack(record.stack_info))
        return json.dumps(line)


def _head_and_tail(traceback: str) -> str:
    """Returns a traceback. If it exceeds LONGEST_LINE, the middle is cut, because the message is at its end."""
    if len(traceback) <= LONGEST_LINE:
        return traceback
    half = LONGEST_LINE // 2
    return f"{traceback[:half]}\n... ({len(traceback)} characters)\n{traceback[-half:]}"


class PeerFilter(logging.Filter):
    """Escapes the arguments of one logger's records, and limits the rate of each log statement.

    A log statement is identified by its line number in the module.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Line number -> [start of the current period (monotonic, in seconds), number of records in this period].
        self._periods: dict[int, list[float]] = {}

    def forget(self) -> None:
        """Resets all limits."""
        self._periods.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns False if the log statement has reached its limit. Otherwise escapes the arguments of the record."""
        now = monotonic()
        period = self._periods.get(record.lineno)
        if period is None:
            period = self._periods[record.lineno] = [now, 0]
        left_out = 0
        if now - period[0] >= PERIOD_S:
            left_out = int(period[1]) - LINES
            period[:] = now, 0
        period[1] += 1
        if period[1] > LINES:
            return False
        if isinstance(record.args, tuple):
            record.args = tuple(_clean(value) for value in record.args)
        if left_out > 0:
            record.msg = f"{record.msg} ({left_out} lines like it were left out)"
        return True


def _clean(value: object) -> object:
    """Returns a log argument with its text escaped and cut. Only strings and exceptions can have a peer's text."""
    return log_text(str(value)) if isinstance(value, str | BaseException) else value
