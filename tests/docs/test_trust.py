"""Tests that docs/trust.md has each claim of the README and of docs/guarantees.md, with the data of bench/results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module", autouse=True)
def tool() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import trust  # noqa: F401
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("language", ["ENGLISH", "CHINESE"])
def test_the_page_equals_the_data(language: str) -> None:
    import trust

    texts = getattr(trust, language)
    assert texts.page.read_text(encoding="utf-8") == trust.page(texts), "python tools/trust.py renders the page"


@pytest.mark.parametrize("language", ["ENGLISH", "CHINESE"])
def test_the_readme_makes_its_claims(language: str) -> None:
    import trust

    texts = getattr(trust, language)
    readme = " ".join(texts.readme.read_text(encoding="utf-8").split())
    assert [each for each in trust.claims() if "text" in each and each[texts.text] not in readme] == []


def test_each_promise_has_a_claim() -> None:
    import trust

    rows = [each["row"] for each in trust.claims() if "row" in each]
    assert rows == trust.promises(trust.ENGLISH.guarantees)


def test_the_tests_of_a_claim_exist() -> None:
    import trust

    paths = [path for each in trust.claims() for path in each.get("tests", ())]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
