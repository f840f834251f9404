"""Charts for scale.py: a row of small panels with logarithmic axes, as SVG that supports dark mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

#: Size of a panel with its labels, and of its drawing area, in pixels.
_WIDTH, _HEIGHT = 220, 190
_LEFT, _TOP, _ACROSS, _DOWN = 44, 28, 164, 120

_STYLE = """
text { font: 11px sans-serif; fill: #333 } .title { font-weight: bold } .tick { fill: #666 }
.back { fill: #fff } .grid { stroke: #ddd }
.line { stroke: #1f6feb; stroke-width: 2; fill: none } .dot { fill: #1f6feb }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } .tick { fill: #aaa }
.back { fill: #1b1f24 } .grid { stroke: #3a3f46 }
.line { stroke: #6cb0ff } .dot { fill: #6cb0ff } }
"""


class Panel(NamedTuple):
    """One figure. Points with figures of 0 or below are omitted, because the axis is logarithmic."""

    title: str
    points: Sequence[tuple[float, float]]


def chart(title: str, x_label: str, panels: Sequence[Panel]) -> str:
    """Returns the text of an SVG file."""
    width = _WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" width="{width}" height="{_HEIGHT}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="back" width="{width}" height="{_HEIGHT}"/>',
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({number * _WIDTH + _LEFT} {_TOP})">')
        parts += _panel(panel, x_label)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, x_label: str) -> Iterator[str]:
    points = [(log10(x), log10(y)) for x, y in panel.points if y > 0]
    yield f'<text class="title" x="{_ACROSS / 2}" y="-12" text-anchor="middle">{escape(panel.title)}</text>'
    yield f'<text x="{_ACROSS / 2}" y="{_DOWN + 34}" text-anchor="middle">{escape(x_label)}</text>'
    if not points:
        return
    left, right = _decades([x for x, _ in points])
    low, high = _decades([y for _, y in points])

    def across(x: float) -> float:
        return round((x - left) / (right - left) * _ACROSS, 1)

    def down(y: float) -> float:
        return round((high - y) / (high - low) * _DOWN, 1)

    for power in range(left, right + 1):
        yield f'<path class="grid" d="M{across(power)} 0V{_DOWN}"/>'
        yield f'<text class="tick" x="{across(power)}" y="{_DOWN + 16}" text-anchor="middle">{_tick(power)}</text>'
    for power in range(low, high + 1):
        yield f'<path class="grid" d="M0 {down(power)}H{_ACROSS}"/>'
        yield f'<text class="tick" x="-6" y="{down(power) + 4}" text-anchor="end">{_tick(power)}</text>'
    yield f'<path class="line" d="M{"L".join(f"{across(x)} {down(y)}" for x, y in points)}"/>'
    yield from (f'<circle class="dot" cx="{across(x)}" cy="{down(y)}" r="3"/>' for x, y in points)


def _decades(logarithms: Sequence[float]) -> tuple[int, int]:
    """Returns the powers of ten around the values. They differ by at least one."""
    low = floor(min(logarithms))
    return low, max(ceil(max(logarithms)), low + 1)


def _tick(power: int) -> str:
    """Returns a label: 1, 10, 1k, 1M; below 1 it is 0.1 or 0.01."""
    if power < 0:
        return f"{10.0**power:g}"
    return f"{10 ** (power % 3)}{('', 'k', 'M', 'G')[power // 3]}"
