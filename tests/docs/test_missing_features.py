"""Tests that docs/missing.md has the present differences from Java, and a reason for each of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import missing_features

    return missing_features


def test_the_pages_have_the_tables(tool: ModuleType) -> None:
    """If this fails, run tools/missing_features.py. If it names missing reasons, add them to its data file."""
    for language, page in tool.PAGES.items():
        text = page.read_text(encoding="utf-8")
        assert tool.BEGIN in text
        assert text == tool.rendered(language, text), page


def test_a_difference_without_a_reason_is_an_error(tool: ModuleType) -> None:
    lite = tool.Reason("metrics", ("rocketmq_lite_*",), "there are no lite topics", "")
    lacking = {"metrics": ["rocketmq_lite_lag", "rocketmq_wet_paint"]}
    with pytest.raises(ValueError, match="no reason for metrics: rocketmq_wet_paint"):
        tool.explained(lacking, [lite])


def test_a_reason_without_a_difference_is_an_error(tool: ModuleType) -> None:
    lite = tool.Reason("metrics", ("rocketmq_lite_*", "lite"), "there are no lite topics", "")
    lacking = {"metrics": ["rocketmq_lite_lag"], "attributes": ["lite"]}
    with pytest.raises(ValueError, match="nothing is missing for 'lite' of metrics"):
        tool.explained(lacking, [lite, tool.Reason("attributes", ("*",), "any", "")])


def test_the_first_reason_counts(tool: ModuleType) -> None:
    first, second = tool.Reason("keys", ("a*",), "first", ""), tool.Reason("keys: Config", ("*",), "second", "")
    found = tool.explained({"keys: Config": ["ab", "bc"]}, [first, second])
    assert found == {"keys: Config": {first: ["ab"], second: ["bc"]}}


def test_names_that_gantrymq_has_are_not_listed(tool: ModuleType) -> None:
    java = tool.stored_features()
    lacking = tool.missing(java)
    listed = {name for names in lacking.values() for name in names}
    assert not {"flushDiskType", "SEND_MESSAGE 10", "updateTopic", "topic message.type=FIFO", "KEYS"} & listed
    assert {"flushDiskType", "updateTopic", "topic message.type=FIFO", "KEYS"} <= {
        name for names in java.values() for name in names
    }
    assert {"popConsumerKVServiceEnable", "POP_ROLLBACK 200056", "topic queue.type=BatchCQ"} <= listed


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed")
def test_the_stored_names_are_those_of_the_jars(tool: ModuleType) -> None:
    """If this fails, run tools/missing_features.py --java."""
    if not all((ROOT / directory).is_dir() for directory in tool.JARS):
        pytest.skip("the jars are not here: run ./dev interop")
    assert tool.java_features() == tool.stored_features()
