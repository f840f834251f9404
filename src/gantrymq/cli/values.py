"""Parses the values of options: times and escapes."""

from __future__ import annotations

from datetime import datetime

#: mqadmin's format of a time: 2024-05-31#23:59:59:999, in local time.
TIME_FORMAT = "%Y-%m-%d#%H:%M:%S:%f"
#: The help text for options with a time.
TIME_HELP = "ISO 8601 (2024-05-31T23:59, local time unless a zone is given), ms since 1970, or yyyy-MM-dd#HH:mm:ss:SSS"


def time_of(text: str) -> int:
    """Returns a time in ms since the epoch. `text` is a number of ms, ISO 8601, or has TIME_FORMAT.

    Raises ValueError for other text.
    """
    try:
        return int(text)
    except ValueError:
        pass
    for read in (datetime.fromisoformat, lambda text: datetime.strptime(text, TIME_FORMAT)):
        try:
            return int(read(text).timestamp() * 1000)
        except (ValueError, OverflowError):
            continue
    raise ValueError(f"{text!r} is no time: {TIME_HELP}")


def unescape(text: str) -> bytes:
    r"""Replaces escapes such as \n, \t, \0 and \x1e, as in Python, and returns bytes. Raises ValueError."""
    return text.encode().decode("unicode_escape").encode("latin-1")
