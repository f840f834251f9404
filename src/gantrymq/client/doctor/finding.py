"""Finding: the result of one check."""

from __future__ import annotations

from enum import Enum

import msgspec


class Severity(Enum):
    """OK: as expected. WARNING: clients work, but not as expected. PROBLEM: some client cannot send or receive."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """Result of a check: `what` was found, `why` (cause or effect), and `remedy`. OK findings have only `what`."""

    severity: Severity
    what: str
    why: str = ""
    remedy: str = ""


def ok(what: str) -> Finding:
    return Finding(Severity.OK, what)


def warning(what: str, why: str, remedy: str) -> Finding:
    return Finding(Severity.WARNING, what, why, remedy)


def problem(what: str, why: str, remedy: str) -> Finding:
    return Finding(Severity.PROBLEM, what, why, remedy)
