"""Builds the parts of an expression and checks which of them fit together (Java's package `filter.expression`).

Logic has three values. None means unknown. Most unknown values come from a missing property. A message with an unknown
result does not match. Java's peculiarities are kept: without the property `a`, `a <> 'x'` is unknown, but `'x' <> a` is
true.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from gantrymq.filter import program
from gantrymq.filter.program import Program
from gantrymq.filter.values import Long, NotComparable, Present, Value, compare, negated

#: Largest depth of nested parts, because evaluation is recursive. Chains of AND or OR, and parentheses, add no depth.
MAX_DEPTH = 100
#: Maximum number of property look-ups of one evaluation, which then takes a millisecond. CONTAINS in a long value takes
#: as long as two hundred look-ups, so it counts as several (_CONTAINS).
MAX_LOOK_UPS = 2000
_CONTAINS = 8

_LONG_MAX = (1 << 63) - 1
_INT_MAX = (1 << 31) - 1
#: Number of decimal digits of _LONG_MAX, plus one for the suffix L.
_LONGEST_DECIMAL = 20
#: Larger sets of values are frozensets. Unlike tuples, these are visible to the garbage collector (see `program`).
_FEW_VALUES = 8


class Unfit(Exception):
    """Raised for parts that cannot be combined. The exception's text has the reason."""


class Kind(Enum):
    """Kinds of parts that Java's classes distinguish."""

    CONSTANT = "constant"
    PROPERTY = "property"
    CONDITION = "condition"
    NEGATIVE = "negative"


class Part(NamedTuple):
    """A part of an expression. `value` is set for a constant, with or without a sign.

    `look_ups` is the approximate number of property look-ups, which is the cost of an evaluation.
    """

    kind: Kind
    program: Program
    depth: int = 1
    value: Value = None
    look_ups: int = 0

    @property
    def is_condition(self) -> bool:
        return self.kind is Kind.CONDITION or (
            self.kind is Kind.CONSTANT and (self.value is None or isinstance(self.value, bool))
        )


def _condition(compiled: Program, *parts: Part) -> Part:
    return Part(Kind.CONDITION, compiled, _depth(1 + max(part.depth for part in parts)), look_ups=_look_ups(parts))


def _look_ups(parts: Sequence[Part]) -> int:
    look_ups = sum(part.look_ups for part in parts)
    if look_ups > MAX_LOOK_UPS:
        raise Unfit(
            f"too much to look for: {MAX_LOOK_UPS} properties, or {MAX_LOOK_UPS // _CONTAINS} CONTAINS, at most"
        )
    return look_ups


def _depth(depth: int) -> int:
    if depth > MAX_DEPTH:
        raise Unfit(f"more than {MAX_DEPTH} conditions within one another")
    return depth


# -- operands -------------------------------------------------------------------------------------------------------


def constant(value: Value) -> Part:
    return Part(Kind.CONSTANT, (program.CONSTANT, value), value=value)


def string(literal: str) -> bytes:
    """Returns the value of a literal in quotes, in which `''` stands for one quote."""
    return literal[1:-1].replace("''", "'").encode()


def decimal(literal: str) -> Part:
    """Returns a whole number: an Integer if it fits, else a Long."""
    number = int(literal.rstrip("lL")) if len(literal) <= _LONGEST_DECIMAL else _LONG_MAX + 1
    if number > _LONG_MAX:
        raise Unfit(f"the number is greater than {_LONG_MAX}")
    return constant(number if number <= _INT_MAX else Long(number))


def floating(literal: str) -> Part:
    """Returns a Double. As in Java, zero in this form is an error."""
    number = float(literal)
    if number == float("inf") or number == 0.0:
        raise Unfit("a number with a point or an exponent must be greater than 0 and less than 1.8E308 (zero is 0)")
    return constant(number)


def prop(name: str) -> Part:
    """Returns a property of the message."""
    return Part(Kind.PROPERTY, (program.PROPERTY, name.encode()), look_ups=1)


def negative(part: Part) -> Part:
    """Returns the negative of a number. For other values, also properties with numbers, the result is unknown."""
    depth = _depth(1 + part.depth)
    if part.value is not None:
        value = negated(part.value)
        return Part(Kind.NEGATIVE, (program.CONSTANT, value), depth, value)
    return Part(Kind.NEGATIVE, (program.NEGATIVE, part.program), depth, look_ups=part.look_ups)


# -- conditions -----------------------------------------------------------------------------------------------------


def condition(part: Part) -> Part:
    """Returns the part as a condition. A property alone is never true, because its value is a String."""
    if part.is_condition:
        return part
    if part.kind is not Kind.PROPERTY:
        raise Unfit("a condition is needed here, not a value")
    _, name = part.program
    return _condition((program.PROPERTY_ALONE, name), part)


def negation(part: Part) -> Part:
    inner = condition(part)
    return _condition((program.NOT, inner.program), inner)


def conjunction(left: Part, right: Part) -> Part:
    return _junction(program.AND, left, right)


def disjunction(left: Part, right: Part) -> Part:
    return _junction(program.OR, left, right)


def _junction(operation: int, left: Part, right: Part) -> Part:
    """Joins conditions. A chain of ANDs, or of ORs, is one part of any length."""
    left, right = condition(left), condition(right)
    if left.program[0] != operation:
        return _condition((operation, (left.program, right.program)), left, right)
    _, chain = left.program
    depth = max(left.depth, _depth(1 + right.depth))
    return Part(Kind.CONDITION, (operation, (*chain, right.program)), depth, look_ups=_look_ups((left, right)))


# -- comparisons ----------------------------------------------------------------------------------------------------


def equal(left: Part, right: Part) -> Part:
    for part in (left, right):
        if part.kind is Kind.CONSTANT and part.value is None:
            raise Unfit("NULL is compared by IS NULL or IS NOT NULL")
    if isinstance(left.value, bool) and right.kind is Kind.CONSTANT and not isinstance(right.value, bool):
        raise Unfit("TRUE and FALSE are compared with conditions, not with values")
    if left.kind is Kind.PROPERTY and isinstance(right.value, bytes):
        _, name = left.program
        return _condition((program.PROPERTY_EQUALS_STRING, name, right.value), left, right)
    quick = None if isinstance(right.value, bool) else _property_and_number("=", left, right.value)
    return _condition(quick or (program.EQUAL, left.program, right.program), left, right)


def is_null(part: Part) -> Part:
    return _condition((program.IS_NULL, part.program), part)


def order(symbol: str, left: Part, right: Part) -> Part:
    """Returns a comparison by `<`, `<=`, `>` or `>=`."""
    for part in (left, right):
        is_number = isinstance(part.value, (int, float)) and not isinstance(part.value, bool)
        if part.is_condition or (part.kind is Kind.CONSTANT and not is_number):
            raise Unfit(f"{symbol} compares numbers: properties and numeric literals")
    quick = _property_and_number(symbol, left, right.value)
    return _condition(quick or (program.ORDER[symbol], left.program, right.program), left, right)


def _property_and_number(symbol: str, left: Part, value: Value) -> Program | None:
    """Returns the faster program for the common case of a property and a number, else None."""
    if left.kind is not Kind.PROPERTY or not isinstance(value, (int, float)):
        return None
    _, name = left.program
    if isinstance(value, float):
        return program.PROPERTY_AND_DOUBLE[symbol], name, value
    return program.PROPERTY_AND_INTEGER[symbol], name, int(value), 64 if isinstance(value, Long) else 32


def between(part: Part, low: Part, high: Part) -> Part:
    if low.kind is Kind.CONSTANT and high.kind is Kind.CONSTANT:
        a, b = low.value, high.value
        if a is not None and b is not None and _compare_literals(a, b) > 0:
            raise Unfit("of BETWEEN the first value must not be greater than the second")
    return conjunction(order(">=", part, low), order("<=", part, high))


def _compare_literals(low: Present, high: Present) -> int:
    try:
        return compare(low, high)
    except NotComparable:
        raise Unfit("BETWEEN compares numbers: properties and numeric literals") from None


def not_between(part: Part, low: Part, high: Part) -> Part:
    return disjunction(order("<", part, low), order(">", part, high))


def search(how: str, part: Part, wanted: bytes, is_not: bool) -> Part:
    """Returns a CONTAINS, STARTSWITH or ENDSWITH condition."""
    costly = part._replace(look_ups=part.look_ups * _CONTAINS) if how == "CONTAINS" else part
    return _condition((program.SEARCH[how], part.program, wanted, is_not), costly)


def is_in(part: Part, values: Sequence[bytes], is_not: bool) -> Part:
    if part.kind is not Kind.PROPERTY:
        raise Unfit("before IN stands a property")
    _, name = part.program
    members = tuple(values) if len(values) <= _FEW_VALUES else frozenset(values)
    return _condition((program.IN, name, members, is_not), part)
