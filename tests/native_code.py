"""Lets a test run in Python although native code is installed."""

from __future__ import annotations

from types import ModuleType

import pytest

from gantrymq.kernels import native

#: Parameters of tests and fixtures that run with both. `use_python` does it for "python".
BOTH = ["python", pytest.param("native", marks=pytest.mark.skipif(native is None, reason="isn't installed"))]


def use_python(patch: pytest.MonkeyPatch, module: ModuleType) -> None:
    """Makes a module that uses native code work as without it."""
    patch.setattr(module, "native", None)
