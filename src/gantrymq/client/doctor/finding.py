"""Finding: one thing that was looked at, and how it is."""

from __future__ import annotations

from enum import Enum

import msgspec


class Severity(Enum):
    """OK; WARNING: works, but not as one may expect; PROBLEM: somebody can't send or can't receive."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """`what` is so, `why` it is or what follows from it, and what to do about it; the last two are empty when OK."""

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
