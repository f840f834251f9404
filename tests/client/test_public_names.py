"""`from gantrymq import *` imports the names of the reference, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gantrymq
from gantrymq import errors

API = Path(__file__).parent.parent.parent / "docs" / "reference" / "api"
#: Pages of names that the package itself exports. The other pages are about modules of their own.
PAGES = ("producers.md", "consumers.md", "messages.md", "administration.md", "sync.md")
ERRORS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and kind.__module__ == errors.__name__}


def documented() -> set[str]:
    text = "".join((API / page).read_text() for page in PAGES)
    entries = re.findall(r"^::: gantrymq\.\S*\.(\w+)$", text, re.MULTILINE)
    constants = re.findall(r"`([A-Z]+_[A-Z_]+)`", text)
    return {*entries, *constants, "run"}


def test_star_import() -> None:
    names: dict[str, Any] = {}
    exec("from gantrymq import *", names)
    names.pop("__builtins__")
    assert names.keys() == documented() | ERRORS
    assert all(names[name] is getattr(errors, name) for name in ERRORS)


def test_unknown_names() -> None:
    assert "Prducer" not in dir(gantrymq)
    with pytest.raises(AttributeError, match="module 'gantrymq' has no attribute 'Prducer'"):
        getattr(gantrymq, "Prducer")  # noqa: B009


def test_the_import_of_an_error_imports_no_client() -> None:
    code = "import sys; from gantrymq import BrokerError; print(*(m for m in sys.modules if m.startswith('gantrymq')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["gantrymq", "gantrymq.errors"]
