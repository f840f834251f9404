"""Tests of the demo's directory: when it is resumed, cleared or rejected."""

from __future__ import annotations

from pathlib import Path

import pytest
from constants import change_constant

from gantrymq.demo.state import DemoState
from gantrymq.errors import GantryError


def interrupted(directory: Path, *, sent: int = 7, total: int = 10, finished: bool = False) -> None:
    """Leaves the directory in the state after an interrupted run."""
    state = DemoState(directory, total=total, fresh=False)
    state.checkpoint.mkdir()
    state.progress.sent = sent
    state.progress.is_finished = finished
    state.save()
    state.close()


def test_an_interrupted_run_is_gone_on_with(tmp_path: Path) -> None:
    interrupted(tmp_path)
    state = DemoState(tmp_path, total=10, fresh=False)
    assert state.was_resumed
    assert state.progress.sent == 7
    assert state.checkpoint.exists()


@pytest.mark.parametrize(
    ("total", "fresh", "finished"), [(10, True, False), (10, False, True), (11, False, False)], ids=str
)
def test_others_start_over(total: int, fresh: bool, finished: bool, tmp_path: Path) -> None:
    interrupted(tmp_path, finished=finished)
    state = DemoState(tmp_path, total=total, fresh=fresh)
    assert not state.was_resumed
    assert state.progress.sent == 0
    assert state.progress.total == total
    assert not state.checkpoint.exists()


def test_a_damaged_progress_file_starts_over(tmp_path: Path) -> None:
    interrupted(tmp_path)
    (tmp_path / "gantry-demo.json").write_text('{"total": 10, "se')
    assert not DemoState(tmp_path, total=10, fresh=False).was_resumed


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "delays" / "thesis.tex"
    precious.parent.mkdir()
    precious.write_text("x")
    with pytest.raises(GantryError, match="other files"):
        DemoState(tmp_path, total=10, fresh=True)
    assert precious.read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["delays"]


def test_two_runs_do_not_share_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "state.LOCK_TIMEOUT_S", 0.1)
    first = DemoState(tmp_path, total=10, fresh=False)
    with pytest.raises(GantryError, match="another demo is running"):
        DemoState(tmp_path, total=10, fresh=True)
    first.close()
    DemoState(tmp_path, total=10, fresh=True).close()
