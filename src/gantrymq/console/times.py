"""Times in forms and addresses."""

from __future__ import annotations

from datetime import UTC, datetime

from gantrymq.console.pages import BadArguments


def parse_time(text: str) -> int | None:
    """ms since 1970: a number of them, or ISO 8601, in UTC unless it says otherwise; None for an empty text.

    Raises BadArguments.
    """
    text = text.strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return min(int(text[:19]), 2**62)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadArguments(f"{text!r} is no time: 2024-05-31T23:59, or milliseconds since 1970") from None
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
