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


def test_each_claim_has_one_kind_of_evidence() -> None:
    import trust

    kinds = ("tests", "result", "unproven")
    assert [each for each in trust.claims() if sum(kind in each for kind in kinds) != 1] == []
    assert [each for each in trust.claims() if not each["missing"] or not each["missing_zh"]] == []


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"result": "no_such.json", "run": "checks", "cells": [["faults", "figure"]]},
        {"result": "faults.json", "run": "no such run", "cells": [["faults", "figure"]]},
        {"result": "faults.json", "run": "checks", "cells": [["no such row", "figure"]]},
        {"result": "faults.json", "run": "checks", "cells": [["faults", "no such column"]]},
        {"result": "failover.json", "fault": "no such fault"},
    ],
)
def test_a_claim_without_its_result_fails(evidence: dict[str, object]) -> None:
    import trust

    with pytest.raises((LookupError, OSError)):
        trust.evidence({"text": "It works."} | evidence, trust.ENGLISH)


def test_the_commands_are_of_the_present_programs() -> None:
    """Each program exists, and has each option of the command."""
    import trust

    programs = {"bench": "bench/run.py", "faults": "bench/faults.py", "sim": "sim/__main__.py"}
    commands = {trust.evidence(each, trust.ENGLISH)[1] for each in trust.claims() if "result" in each}
    assert len(commands) >= 4
    for command in commands:
        program, name, *options = command.split()
        assert program in ("./dev", ".venv/bin/python"), command
        source = (ROOT / (programs[name] if program == "./dev" else name)).read_text(encoding="utf-8")
        unknown = [option for option in options if option.startswith("--") and f'"{option}"' not in source]
        assert unknown == [], command
