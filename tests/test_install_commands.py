"""Tests that documents and error texts install the package from the place that PUBLISHED names."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from gantrymq import extras

sys.path.append(str(Path(__file__).parent.parent / "tools"))

import install_commands

ROOT = Path(__file__).parent.parent
DOCUMENTS = [path.relative_to(ROOT).as_posix() for path in install_commands.documents()]
#: Install commands of each form.
OF_AN_INDEX = re.compile(r"\bpip install [^`\n]*(?<![\w/])gantrymq\b(?!/)")
OF_A_CHECKOUT = re.compile(r"\bpip install [^`\n]*(?<![\w/])\./")


def test_the_variable() -> None:
    assert install_commands.is_published() == extras.PUBLISHED
    assert {"README.md", "docs/integrations.md", "docs/zh/tutorial/index.md"} <= set(DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_has_the_form_of_the_variable(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    written = install_commands.rewritten(document, text, published=extras.PUBLISHED)
    assert written == text, "python tools/install_commands.py writes the install commands"
    assert not re.findall(OF_A_CHECKOUT if extras.PUBLISHED else OF_AN_INDEX, text)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_release_and_the_way_back(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    published = install_commands.rewritten(document, text, published=True)
    assert not OF_A_CHECKOUT.findall(published)
    assert install_commands.rewritten(document, published, published=False) == install_commands.rewritten(
        document, text, published=False
    )


@pytest.mark.parametrize(
    ("checkout", "index"),
    [
        ("pip install ./  # all", "pip install gantrymq  # all"),
        ('pip install "./[spark,jdk]"', 'pip install "gantrymq[spark,jdk]"'),
        ("`pip install ./ ./native`", '`pip install "gantrymq[native]"`'),
        ('pip install "./[spark]" ./native', 'pip install "gantrymq[spark,native]"'),
        ("pip install ./ pyspark-client", "pip install gantrymq pyspark-client"),
        ("pip install pytest", "pip install pytest"),
    ],
)
def test_both_forms(checkout: str, index: str) -> None:
    assert install_commands.rewritten("page.md", checkout, published=True) == index
    assert install_commands.rewritten("page.md", index, published=False) == checkout


@pytest.mark.parametrize(("document", "checkout", "index"), install_commands.SENTENCES)
def test_a_sentence_that_changes_is_in_its_document(document: str, checkout: str, index: str) -> None:
    assert (index if extras.PUBLISHED else checkout) in (ROOT / document).read_text(encoding="utf-8")
    assert install_commands.rewritten(document, checkout, published=True) == index
    assert install_commands.rewritten(document, index, published=True) == index
    assert install_commands.rewritten(document, index, published=False) == checkout
    assert install_commands.rewritten(document, checkout, published=False) == checkout


def test_error_texts_have_one_source() -> None:
    files = [path for path in (ROOT / "src").glob("**/*.py") if OF_AN_INDEX.search(path.read_text(encoding="utf-8"))]
    assert [path.name for path in files] == ["extras.py"]


def test_an_error_text() -> None:
    assert extras.install_command("tls", published=False) == 'pip install "./[tls]" in a checkout of gantrymq'
    assert extras.install_command("tls", published=True) == 'pip install "gantrymq[tls]"'
