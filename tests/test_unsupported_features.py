"""The table of refused features: it is in the docs, and each entry is refused by its name."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from gantrymq.protocol.unsupported_features import UNSUPPORTED_FEATURES, feature_of_attribute, feature_of_request

TOOLS = Path(__file__).parent.parent / "tools"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    import unsupported_features

    return unsupported_features


def test_the_docs_have_the_table(tool: ModuleType) -> None:
    """If this fails, run tools/unsupported_features.py."""
    for page in tool.PAGES:
        text = page.read_text()
        assert tool.BEGIN in text
        assert text == tool.rendered(page)


def test_a_request_and_an_attribute_belong_to_one_feature() -> None:
    for feature in UNSUPPORTED_FEATURES:
        assert all(feature_of_request(code) is feature for code in feature.requests)
        for attribute in feature.attributes:
            name, _, value = attribute.partition("=")
            assert feature_of_attribute(name, value) is feature
    assert feature_of_request(10) is None
    assert feature_of_attribute("queue.type", "SimpleCQ") is None
    assert feature_of_attribute("light.topic", "") is None
