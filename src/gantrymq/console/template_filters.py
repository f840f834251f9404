"""Filters of the templates, which format numbers, sizes, durations, times and texts."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

from markupsafe import Markup

from gantrymq.console.bodies import printable

_SPANS = ((86400, "d"), (3600, "h"), (60, "min"))


class Exact(str):
    """A text that `visible` does not change. It is the value of a form field, which the browser sends back."""


def visible(value: object) -> object:
    """Shows invisible and directional characters of a text as code points."""
    return printable(value, keep="\n\t") if type(value) is str else value


def number(value: float | None) -> str:
    """Formats a number with digits in groups of three. Rates have one decimal."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def size(count: int | None) -> str:
    """Formats a size in bytes."""
    if count is None:
        return "–"
    value, unit = float(count), 0
    while value >= 1024 and unit < 5:
        value /= 1024
        unit += 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {' KMGTP'[unit]}iB"


def percent(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.0%}"


def span(seconds: float | None) -> str:
    """Formats a duration in the largest unit of which it has two or more."""
    if seconds is None:
        return "–"
    for length, unit in _SPANS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def shell(name: str) -> str:
    """Quotes a name for a command line. Names of topics can contain `|`."""
    return shlex.quote(name)


def moment(ms: int | None) -> Markup:
    """Returns a time element: ISO 8601 in UTC, with ms. The page's script shows it in the browser's time zone."""
    if not ms or ms <= 0:
        return Markup("–")
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup("–")
    iso = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}">{}</time>').format(iso, iso.replace("T", " "))
