r"""The log: one line for one message, whatever a peer puts into it, and not more lines than somebody reads.

A program of this package is told much by its peers: client ids, topics, remarks. In the log such text could begin a
line of its own ("\n2026-01-01 INFO all is well"), move the cursor of a terminal, or fill the disk. So modules that log
what a peer can cause take their logger from `peer_log`, and servers write with `LineFormatter`, which escapes once more
what others log, tracebacks among it.

The alternative that lost: a filter on a server's handler alone. Who embeds a broker has handlers of his own.
"""

from __future__ import annotations

import codecs
import logging
import sys
from typing import Any

from gantrymq.system.clock import monotonic

#: A place in the code writes at most so many lines in so many seconds; the next one says how many were left out.
LINES = 20
PERIOD_S = 10.0
#: Text of a peer is cut to so many characters.
LONGEST_TEXT = 500
#: A line of the log is cut to so many characters.
LONGEST_LINE = 10_000

# Python imports a codec when it is first used; where descriptors have run out that would fail.
codecs.lookup("unicode_escape")

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: Begins each line of a traceback: so none of them looks like a message.
_CONTINUED = "  | "


def log_text(text: str, longest: int = LONGEST_TEXT) -> str:
    r"""`text` on one line: what doesn't print is escaped (\n, \x1b, \u202e), what is longer is cut."""
    if len(text) > longest:
        return f"{log_text(text[:longest], longest)}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def peer_log(name: str) -> logging.Logger:
    """The logger `name`, for a module whose lines a peer can cause: they are escaped, and limited for each place."""
    log = logging.getLogger(name)
    if not any(isinstance(known, PeerFilter) for known in log.filters):
        log.addFilter(PeerFilter())
    return log


def log_to_stderr() -> None:
    """How a server's process logs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class LineFormatter(logging.Formatter):
    """Time, level, logger and message on one line; the lines of a traceback below it begin with a bar."""

    def __init__(self) -> None:
        super().__init__(_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return log_text(super().formatMessage(record), LONGEST_LINE)

    def formatException(self, ei: Any) -> str:
        return "\n".join(_CONTINUED + log_text(line, LONGEST_LINE) for line in super().formatException(ei).split("\n"))


class PeerFilter(logging.Filter):
    """The limit of one logger; a place is a line of its module."""

    def __init__(self) -> None:
        super().__init__()
        #: Place to [begin of its period, lines in it].
        self._periods: dict[int, list[float]] = {}

    def forget(self) -> None:
        """Begins anew: no line was written yet."""
        self._periods.clear()

    def filter(self, record: logging.LogRecord) -> bool:
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
    return log_text(str(value)) if isinstance(value, str | BaseException) else value
