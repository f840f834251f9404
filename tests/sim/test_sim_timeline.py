"""sim/timeline.py: the timeline of a run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from sim.machine import State
from sim.timeline import Span, Timeline, draw

ROOT = Path(__file__).parents[2]
_SVG = "{http://www.w3.org/2000/svg}"


def titles(svg: str) -> list[str]:
    return [title.text or "" for title in ElementTree.fromstring(svg).iter(f"{_SVG}title")]


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{_SVG}text")]


def test_a_picture_says_what_happened() -> None:
    line = Timeline(
        "seed 5: <one> problem",
        100.0,
        lives={
            "broker-0": [
                (State.RUNNING, Span("up", 0.0, 20.0)),
                (State.STOPPED, Span("stopped", 20.0, 30.0)),
                (State.RUNNING, Span("up", 30.0, 100.0)),
            ],
            "push-0": [(State.RUNNING, Span("up", 5.0, 100.0))],
        },
        faults={"push-0": [Span("3.00 s: cut of push-0 for 7.00 s (0.50)", 10.0, 17.0)]},
        acknowledged=[1.0, 1.5, 3.0],
        received=[1.2],
        lost=[(3.0, "push never had a.2")],
        problems=["push never had 1 & more"],
    )
    svg = draw(line)
    assert titles(svg) == [
        "broker-0 up from 0.00 to 20.00 s",
        "broker-0 stopped from 20.00 to 30.00 s",
        "broker-0 up from 30.00 to 100.00 s",
        "push-0 up from 5.00 to 100.00 s",
        "3.00 s: cut of push-0 for 7.00 s (0.50)",
        "2 acknowledged in second 1",
        "1 acknowledged in second 3",
        "1 received in second 1",
        "push never had a.2",
    ]
    assert "seed 5: <one> problem" in texts(svg)
    assert "lost: 1" in texts(svg)
    assert texts(svg)[-1] == "push never had 1 & more"
    # 10 s of 100 s are a tenth of the width.
    stopped = next(
        rect
        for rect in ElementTree.fromstring(svg).iter(f"{_SVG}rect")
        if "stopped" in (rect.findtext(f"{_SVG}title") or "")
    )
    assert stopped.get("width") == "100.0"


def test_nothing_makes_a_picture_too() -> None:
    assert titles(draw(Timeline("seed 0: 0 problems", 0.0))) == []


def test_the_picture_of_a_run(tmp_path: Path) -> None:
    """A small cluster whose broker is killed and later stopped."""
    plan = (
        '{"seed": "13", "name_servers": 1, "brokers": 1, "producers": 1, "is_synced": true, "messages": 10, '
        '"consumers": {"push": 1, "orderly": 1, "pop": 0, "lite": 0}, "pause_s": 0.5, "ordered": 0.0, '
        '"delayed": 0.0, "batches": 0.0, "transactions": 0.0, "failures": 0.0, "tiny_reads": 0.0, "extras": [], '
        '"faults": ['
        '{"kind": "kill", "whom": "broker-0", "at": 2.0, "lasts": 3.0, "strength": 0.5}, '
        '{"kind": "stop", "whom": "broker-0", "at": 12.0, "lasts": 4.0, "strength": 0.5}, '
        '{"kind": "cut", "whom": "push-0", "at": 20.0, "lasts": 2.0, "strength": 0.5}]}'
    )
    file = tmp_path / "picture.svg"
    done = subprocess.run(
        [sys.executable, "-m", "sim", "--seed", plan, "--timeline", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = titles(file.read_text())
    spans = [re.fullmatch(r"broker-0 (\w+) from (\S+) to (\S+) s", title) for title in found]
    lives = [(span[1], float(span[2]), float(span[3])) for span in spans if span]
    assert [state for state, _, _ in lives] == ["up", "up", "stopped", "up"]
    assert 2.9 < lives[1][1] - lives[0][2] < 3.1
    assert 3.9 < lives[2][2] - lives[2][1] < 4.1
    assert "20.00 s: cut of push-0 for 2.00 s (0.50)" in found
    assert "lost: 0" in texts(file.read_text())
    counts = [int(title.split()[0]) for title in found if " acknowledged in second " in title]
    assert f"{sum(counts)}, most {max(counts)}/s" in texts(file.read_text())
