"""The values of an expression, and Java's rules for comparing them (`ComparisonExpression.__compare`).

A message's properties are all Strings; here they stay the UTF-8 bytes of the record. A String that meets a number or a
Boolean is converted to that one's type, and where it can't be, the evaluation of the whole expression fails.

    Java:    null    Boolean    Integer    Long    Double    String
    here:    None    bool       int        Long    float     bytes
"""

from __future__ import annotations

import math
import re

#: What can be compared.
Present = bool | int | float | bytes
Value = Present | None


class Long(int):
    """An integer that Java holds in 64 bits; a plain int is one of 32. What a String may hold depends on it."""

    # Without a dictionary of its own it is nothing that Python's collector of cycles looks at.
    __slots__ = ()


class NotComparable(Exception):
    """Two values that Java fails to compare. Then no message matches, whatever the rest of the expression says."""


_INTEGER = re.compile(r"[+-]?\d+")
#: What Double.valueOf takes.
_FLOAT = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?"
    r"|0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?)"
)
#: What String.trim takes away.
_BLANKS = bytes(range(33)).decode()
_LAST_OF_BMP = "\uffff"
#: No String is longer that is taken for a number, bytes: Java reads any number of zeros.
_LONGEST_NUMBER = 1000
#: Of so many digits every number fits an Integer, and of more than the second none fits a Long.
_ALWAYS_FIT, _NEVER_FIT = 9, 19


def to_integer(text: bytes, bits: int) -> int:
    """A String as an Integer (`bits` 32) or a Long (64). Raises NotComparable."""
    if len(text) > _LONGEST_NUMBER:
        raise NotComparable
    if text.isdigit() and len(text) <= _ALWAYS_FIT:
        return int(text)
    string = text.decode(errors="replace")
    # Digits of any script will do, but Java looks at them in UTF-16.
    digits = string.lstrip("+-0")
    if not _INTEGER.fullmatch(string) or max(string) > _LAST_OF_BMP or len(digits) > _NEVER_FIT:
        raise NotComparable
    number = int(digits or "0")
    if string[0] == "-":
        number = -number
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise NotComparable
    return number


def to_double(text: bytes) -> float:
    """A String as a Double. Raises NotComparable."""
    if len(text) > _LONGEST_NUMBER:
        raise NotComparable
    string = text.decode(errors="replace").strip(_BLANKS)
    if not _FLOAT.fullmatch(string):
        raise NotComparable
    if "x" in string or "X" in string:
        try:
            return float.fromhex(string.rstrip("fFdD") if string[-1] in "fFdD" else string)
        except OverflowError:
            return -math.inf if string[0] == "-" else math.inf
    return float(string if string[-1] in "Ny" else string.rstrip("fFdD"))


def negated(value: Value) -> Value:
    """Minus a number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return Long(-value) if isinstance(value, Long) else -value


def compare(left: Present, right: Present) -> int:
    """Negative, zero or positive as `left` is less, equal or greater; -1 too for a Boolean beside a number.

    Raises NotComparable.
    """
    if isinstance(left, bytes):
        if isinstance(right, bytes):
            return (left > right) - (left < right)
        left = _converted(left, right)
    elif isinstance(right, bytes):
        if isinstance(left, bool):
            # Java casts the wrong one of the two, and fails.
            raise NotComparable
        right = _converted(right, left)
    if isinstance(left, bool) is not isinstance(right, bool):
        return -1
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def compare_order(left: Present, right: Present) -> int:
    """As `compare`, for `<` and its like: two Strings are compared as numbers."""
    if isinstance(left, bytes) and isinstance(right, bytes):
        return compare_doubles(to_double(left), to_double(right))
    return compare(left, right)


def _converted(text: bytes, beside: bool | int | float) -> bool | int | float:
    """A String as the type of the value that it is compared with."""
    if isinstance(beside, bool):
        return text.lower() == b"true"
    if isinstance(beside, float):
        return to_double(text)
    return to_integer(text, 64 if isinstance(beside, Long) else 32)


def compare_doubles(left: float, right: float) -> int:
    """Double.compare: -0.0 is before 0.0, and NaN, equal to itself, behind all."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return int(math.copysign(1, left) - math.copysign(1, right)) if left == 0 else 0
    return math.isnan(left) - math.isnan(right)
