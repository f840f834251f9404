"""The values of an expression, and Java's rules for comparing them (`ComparisonExpression.__compare`).

All properties of a message are Strings. Here they are the UTF-8 bytes of the record. If a String is compared with a
number or a Boolean, it is converted to that type. If that is not possible, the evaluation of the whole expression
fails.

    Java:    null    Boolean    Integer    Long    Double    String
    here:    None    bool       int        Long    float     bytes
"""

from __future__ import annotations

import math
import re

#: Values that can be compared.
Present = bool | int | float | bytes
Value = Present | None


class Long(int):
    """An integer with 64 bits in Java; a plain int has 32. A String is converted to the same size."""

    # Without a dictionary, Python's garbage collector does not track it.
    __slots__ = ()


class NotComparable(Exception):
    """Raised if Java cannot compare two values. Then the expression matches no message."""


_INTEGER = re.compile(r"[+-]?\d+")
#: Syntax of Double.valueOf.
_FLOAT = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?"
    r"|0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?)"
)
#: Characters that String.trim removes.
_BLANKS = bytes(range(33)).decode()
_LAST_OF_BMP = "\uffff"
#: Size in bytes above which a String is never a number. Java accepts any number of zeros.
_LONGEST_NUMBER = 1000
#: Numbers with up to 9 digits always fit an Integer, and numbers with more than 19 never fit a Long.
_ALWAYS_FIT, _NEVER_FIT = 9, 19


def to_integer(text: bytes, bits: int) -> int:
    """Converts a String to an Integer (`bits` 32) or a Long (64). Raises NotComparable."""
    if len(text) > _LONGEST_NUMBER:
        raise NotComparable
    if text.isdigit() and len(text) <= _ALWAYS_FIT:
        return int(text)
    string = text.decode(errors="replace")
    # Digits of any script are valid, but only in the basic plane, because Java reads UTF-16 units.
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
    """Converts a String to a Double. Raises NotComparable."""
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
    """Returns the negative of a number, and None for other values."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return Long(-value) if isinstance(value, Long) else -value


def compare(left: Present, right: Present) -> int:
    """Returns -1 if `left` is less than `right`, 0 if they are equal, and 1 if it is greater.

    If only one of them is a Boolean, the result is -1. Raises NotComparable.
    """
    if isinstance(left, bytes):
        if isinstance(right, bytes):
            return (left > right) - (left < right)
        left = _converted(left, right)
    elif isinstance(right, bytes):
        if isinstance(left, bool):
            # In this case, Java casts the wrong operand and fails.
            raise NotComparable
        right = _converted(right, left)
    if isinstance(left, bool) is not isinstance(right, bool):
        return -1
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def compare_order(left: Present, right: Present) -> int:
    """Compares for `<` and similar operators: like `compare`, but two Strings are compared as numbers."""
    if isinstance(left, bytes) and isinstance(right, bytes):
        return compare_doubles(to_double(left), to_double(right))
    return compare(left, right)


def _converted(text: bytes, beside: bool | int | float) -> bool | int | float:
    """Converts a String to the type of the other operand."""
    if isinstance(beside, bool):
        return text.lower() == b"true"
    if isinstance(beside, float):
        return to_double(text)
    return to_integer(text, 64 if isinstance(beside, Long) else 32)


def compare_doubles(left: float, right: float) -> int:
    """Compares like Double.compare: -0.0 is less than 0.0, and NaN is equal to itself and greater than all others."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return int(math.copysign(1, left) - math.copysign(1, right)) if left == 0 else 0
    return math.isnan(left) - math.isnan(right)
