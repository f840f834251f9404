"""How numbers, sizes, spans, times and texts are written on pages."""

from __future__ import annotations

from datetime import UTC, datetime

from markupsafe import Markup

from gantrymq.console.bodies import printable

_SPANS = ((86400, "d"), (3600, "h"), (60, "min"))


class Exact(str):
    """A text that `visible` leaves as it is: the value of a form's field, which comes back."""


def visible(value: object) -> object:
    """What templates write for a value: in texts, invisible and directional characters are code points."""
    return printable(value, keep="\n\t") if type(value) is str else value


def number(value: float | None) -> str:
    """With groups of digits; rates with one decimal."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def size(count: int | None) -> str:
    """Bytes."""
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
    """The largest unit of which there are two or more."""
    if seconds is None:
        return "–"
    for length, unit in _SPANS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def moment(ms: int | None) -> Markup:
    """A time element in UTC, which the browser's script writes in its own zone."""
    if not ms or ms <= 0:
        return Markup("–")
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup("–")
    return Markup('<time datetime="{}">{}</time>').format(
        at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), at.strftime("%Y-%m-%d %H:%M:%S UTC")
    )
