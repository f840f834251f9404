"""Tests the tables, charts and arithmetic of bench/scale.py, and runs each measurement briefly."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parent.parent / "bench"
WHAT = ("messages", "topics", "queues", "groups", "connections", "size", "brokers")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import scale

    return scale


def test_what_there_is_to_measure(scale: ModuleType) -> None:
    assert tuple(scale.DIMENSIONS) == WHAT
    for dimension in scale.DIMENSIONS.values():
        assert dimension.points[-1] >= 1000 * dimension.points[0]
        assert set(dimension.charted) <= dimension.columns.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "topics" else name for name in WHAT]
)
def test_a_measurement(scale: ModuleType, name: str, tmp_path: Path) -> None:
    dimension = scale.DIMENSIONS[name]
    points = dimension.points[:2]
    found = scale.measure(name, dimension, scale.Run(tmp_path, quick=True), points)
    assert [row["x"] for row in found["rows"]] == list(points)
    for row in found["rows"]:
        assert dimension.columns.keys() <= row.keys()
        assert all(value >= 0 for value in row.values())
        assert all(row[figure] > 0 for figure in dimension.charted if figure != "idle")
    assert len(scale.table(name, found).splitlines()) == 4 + len(points)
    assert not left_running(tmp_path)


def left_running(directory: Path) -> list[bytes]:
    """Returns the command lines of processes that contain this directory."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        # The process can end meanwhile.
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes())
    return [line for line in lines if str(directory).encode() in line]


def test_a_table_takes_the_place_of_the_one_before(scale: ModuleType) -> None:
    text = "before\n<!-- size: written by bench/scale.py -->\nold\n<!-- end of size -->\nafter\n"
    for _ in range(2):
        text = scale.between_marks(text, "size", "| new |\n")
    assert text == "before\n<!-- size: written by bench/scale.py -->\n| new |\n<!-- end of size -->\nafter\n"
    with pytest.raises(ValueError, match="no marks of topics"):
        scale.between_marks(text, "topics", "| new |\n")


def test_the_document_has_the_figures_that_are_kept(
    scale: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = tmp_path / "performance.md"
    written.write_text(scale.DOCUMENT.read_text())
    images = scale.IMAGES
    monkeypatch.setattr(scale, "DOCUMENT", written)
    monkeypatch.setattr(scale, "IMAGES", tmp_path)
    scale.write_document(json.loads(scale.RESULTS.read_text()))
    assert written.read_text() == (BENCH.parent / "docs" / "performance.md").read_text()
    charts = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert charts == {path.name: path.read_text() for path in images.glob("scale-*.svg")}
    assert charts.keys() == {f"scale-{name}.svg" for name in WHAT}


def test_a_chart(scale: ModuleType) -> None:
    points = [(50, 0.5), (500, 5.0), (5_000, 0.0), (50_000, 500.0)]
    panel = scale.Panel("CPU a send & more, µs", points)
    root = ET.fromstring(scale.chart("Cost by topics", "topics", [panel, scale.Panel("nothing", [(50, 0.0)])]))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[:2] == ["CPU a send & more, µs", "topics"]
    assert texts[2:8] == ["10", "100", "1k", "10k", "100k", "0.1"]
    dots = [(float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in root.iter(f"{SVG}circle")]
    # Both axes are logarithmic, with four decades each.
    assert [round(x, 1) for x, _ in dots] == [28.7, 69.7, 151.7]
    assert [round(y, 1) for _, y in dots] == [99.0, 69.0, 9.0]
    assert "prefers-color-scheme: dark" in ET.tostring(root, encoding="unicode")


def test_arithmetic(scale: ModuleType) -> None:
    size = [{"x": 128, "send": 2.0, "read": 0.5}, {"x": 1024, "send": 4.0, "read": 1.0}]
    rows = {
        "size": size,
        "messages": [{"x": 0, "disk": 0}, {"x": 1 << 20, "disk": 400, "batched": 1.0}],
        "topics": [{"x": 0, "unused": 20, "namesrv": 16}, {"x": 1024, "unused": 22, "namesrv": 17}],
        "groups": [{"x": 0, "own": 20}, {"x": 1024, "own": 24, "heartbeat": 10.0}],
        "connections": [{"x": 1000, "send": 20.0, "each": 16, "idle": 5.0}],
        "brokers": [
            {"x": 10, "route": 10.0, "answer": 2},
            {"x": 100, "again": 3000.0, "route": 30.0, "answer": 20},
        ],
    }
    text = scale.limits(rows)
    assert "| single sends of 128 B, 32 in flight | 2 µs of CPU | 500,000/s per core |" in text
    assert "| memory of a topic of 8 queues without messages | 2 KiB | 524,288 per GiB |" in text
    assert "| memory of a connection with heartbeat and waiting pull | 16 KiB | 65,536 per GiB |" in text
    # 10 µs every 30 s is 1/3,000,000 of a processor.
    assert "| heartbeat of a group, every 30 s | 10 µs of CPU | 300,000 groups use 10% of a core |" in text
    assert "| 0.005 % of a core | 2,000 connections use 10% of a core |" in text
    assert "| disk space of a message of 128 B | 400 B |" in text
    # 100 registrations of 10,000 topics at 3 µs each, every 30 s; 10,000 clients that request 10 routes every 30 s.
    assert "| 10,000 topics, 10,000 clients | 10.0% | 3.3% | 10.0% | 6.51 to 65.1 | 9.77 |" in text


def test_the_documented_options_exist() -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "scale.py", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    documented = (BENCH / "README.md").read_text().partition("## How cost grows\n")[2].partition("\n## ")[0]
    options = set(re.findall(r"--[a-z]+", documented))
    assert {"--only", "--quick"} <= options
    assert all(option in done.stdout for option in options)
