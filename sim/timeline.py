"""Draws a timeline of a run: states and faults of all programs, and acknowledged, received and lost messages.

The result is a self-contained SVG. A tooltip describes each bar.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from sim.machine import State

if TYPE_CHECKING:
    from sim.run import Run

_LEFT, _WIDTH, _ROW, _CHART = 130, 1000, 18, 80
_COLOURS = {State.RUNNING: "#8fce8f", State.STOPPED: "#f2c14e"}
_WORDS = {State.RUNNING: "up", State.STOPPED: "stopped"}
#: Faults that neither kill nor stop a program. They are strips below the bar of their target.
_STRIPS = {"cut": "#c0392b", "slow": "#2471a3"}
_OTHER_STRIP = "#8e44ad"
_ACKNOWLEDGED, _RECEIVED, _LOST = "#2e7d32", "#1565c0", "#d50000"


@dataclass(frozen=True)
class Span:
    """A period, in seconds."""

    what: str
    begin: float
    end: float


@dataclass
class Timeline:
    """Data of a timeline. All times are in simulated seconds."""

    title: str
    ends_at: float
    #: States and faults of each program.
    lives: dict[str, list[tuple[State, Span]]] = field(default_factory=dict)
    faults: dict[str, list[Span]] = field(default_factory=dict)
    acknowledged: list[float] = field(default_factory=list)
    received: list[float] = field(default_factory=list)
    #: (acknowledgement time, description) of each message that a group never received.
    lost: list[tuple[float, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def of(run: Run, problems: list[str]) -> Timeline:
    """Returns the timeline of a finished run."""
    end = run.world.loop.time()
    line = Timeline(f"seed {run.plan.seed}: {len(problems)} problems", end, problems=problems)
    for host in run.world.hosts.values():
        until = [at for at, _ in host.states[1:]] + [end]
        spans = [
            (state, Span(_WORDS.get(state, ""), at, to)) for (at, state), to in zip(host.states, until, strict=True)
        ]
        line.lives[host.name] = [(state, span) for state, span in spans if state is not State.DEAD]
    known = {str(fault): fault for fault in run.plan.faults}
    for at, what in run.history.trace:
        if (fault := known.get(what.removeprefix("fault "))) is not None:
            line.faults.setdefault(fault.whom, []).append(Span(str(fault), at, at + fault.lasts))
    line.acknowledged = [sent.stored_at for sent in run.history.sent.values() if sent.stored_at is not None]
    line.received = [one.at for one in run.history.received]
    for group in run.clients.scene.reads:
        for name in run.clients.scene.lacks(group):
            line.lost.append((run.history.sent[name].stored_at or 0.0, f"{group} never had {name}"))
    return line


def draw(line: Timeline) -> str:
    """Returns the SVG."""
    scale = _WIDTH / max(line.ends_at, 1.0)
    parts: list[str] = []

    def box(begin: float, end: float, y: float, height: float, colour: str, title: str) -> None:
        x, width = _LEFT + begin * scale, max((end - begin) * scale, 1.0)
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">'
            f"<title>{escape(title)}</title></rect>"
        )

    def text(x: float, y: float, what: str, colour: str = "#222") -> None:
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{escape(what)}</text>')

    y = 40
    text(5, 15, line.title)
    for name, life in line.lives.items():
        text(5, y + 11, name)
        for state, span in life:
            told = f"{name} {span.what} from {span.begin:.2f} to {span.end:.2f} s"
            box(span.begin, span.end, y, 10, _COLOURS[state], told)
        for span in line.faults.get(name, []):
            kind = span.what.split(": ", 1)[1].split(" ")[0]
            box(span.begin, span.end, y + 11, 4, _STRIPS.get(kind, _OTHER_STRIP), span.what)
        y += _ROW
    y += 10
    for name, times, colour in (
        ("acknowledged", line.acknowledged, _ACKNOWLEDGED),
        ("received", line.received, _RECEIVED),
    ):
        counts = Counter(int(at) for at in times)
        most = max(counts.values(), default=1)
        text(5, y + _CHART / 2, name, colour)
        text(5, y + _CHART / 2 + 14, f"{len(times)}, most {most}/s", colour)
        for second, count in sorted(counts.items()):
            height = _CHART * count / most
            box(second, second + 1, y + _CHART - height, height, colour, f"{count} {name} in second {second}")
        y += _CHART + 10
    text(5, y + 11, f"lost: {len(line.lost)}", _LOST)
    for at, what in line.lost:
        box(at, at, y, 14, _LOST, what)
    y += 30
    for second in range(0, int(line.ends_at) + 1, _step(line.ends_at)):
        text(_LEFT + second * scale, y, f"{second} s")
    for problem in line.problems:
        y += 15
        text(5, y, problem, _LOST)
    return _svg(parts, y + 20)


def _step(seconds: float) -> int:
    """Returns the distance of the time labels in seconds: at most about a dozen labels for a run."""
    return next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1 << 30) if seconds / step <= 12)


def _svg(parts: Iterable[str], height: float) -> str:
    width = _LEFT + _WIDTH + 40
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
        f'viewBox="0 0 {width} {height:.0f}" font-family="sans-serif" font-size="11">'
    )
    return "\n".join([head, f'<rect width="{width}" height="{height:.0f}" fill="white"/>', *parts, "</svg>\n"])
