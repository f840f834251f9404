"""The parts of an expression as functions of a message's properties (Java's package `filter.expression`).

Truth has three values; None, unknown, is what a missing property mostly leads to, and a message whose outcome is
unknown doesn't match. Java's own turns are kept: `a <> 'x'` is unknown without `a`, but `'x' <> a` is true.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from gantrymq.filter.values import (
    Long,
    NotComparable,
    Present,
    Value,
    compare,
    compare_doubles,
    compare_order,
    to_double,
    to_integer,
)
from gantrymq.protocol.properties import find_property

#: A record's property bytes, or, where many are looked for, what `by_name` makes of them.
Properties = bytes | dict[bytes, bytes]
#: A function of a record's properties. Raises NotComparable.
Evaluate = Callable[[Properties], Value]
Truth = Callable[[Properties], bool | None]

#: Evaluation recurses: no part may contain more within one another. Chains of AND or OR are flat, parentheses free.
MAX_DEPTH = 100
#: An evaluation looks for so many properties at most; it takes a millisecond then. Within a long value CONTAINS takes
#: as long as two hundred of them, so it counts for some.
MAX_LOOK_UPS = 2000
_CONTAINS = 8

_LONG_MAX = (1 << 63) - 1
_INT_MAX = (1 << 31) - 1
#: Decimal digits of _LONG_MAX, and one for the L.
_LONGEST_DECIMAL = 20

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SEARCHES: dict[str, Callable[[bytes, bytes], bool]] = {
    "CONTAINS": bytes.__contains__,
    "STARTSWITH": bytes.startswith,
    "ENDSWITH": bytes.endswith,
}


class Unfit(Exception):
    """Parts that can't be put together like this; the message says why."""


class Kind(Enum):
    """What Java's classes tell apart."""

    CONSTANT = "constant"
    PROPERTY = "property"
    CONDITION = "condition"
    NEGATIVE = "negative"


class Part(NamedTuple):
    """A part of an expression; `value` is that of a constant, or of a constant with a sign.

    `look_ups` is how often it looks for a property, about: what its evaluation costs.
    """

    kind: Kind
    evaluate: Evaluate
    depth: int = 1
    value: Value = None
    look_ups: int = 0

    @property
    def is_condition(self) -> bool:
        return self.kind is Kind.CONDITION or (
            self.kind is Kind.CONSTANT and (self.value is None or isinstance(self.value, bool))
        )


def _condition(evaluate: Truth, *parts: Part) -> Part:
    return Part(Kind.CONDITION, evaluate, _depth(parts), look_ups=_look_ups(parts))


def _look_ups(parts: Sequence[Part]) -> int:
    look_ups = sum(part.look_ups for part in parts)
    if look_ups > MAX_LOOK_UPS:
        raise Unfit(
            f"too much to look for: {MAX_LOOK_UPS} properties, or {MAX_LOOK_UPS // _CONTAINS} CONTAINS, at most"
        )
    return look_ups


def _depth(parts: Sequence[Part]) -> int:
    depth = 1 + max(part.depth for part in parts)
    if depth > MAX_DEPTH:
        raise Unfit(f"more than {MAX_DEPTH} conditions within one another")
    return depth


# -- operands -------------------------------------------------------------------------------------------------------


def constant(value: Value) -> Part:
    return Part(Kind.CONSTANT, lambda _: value, value=value)


def string(literal: str) -> bytes:
    """The value of a literal in quotes, in which `''` is one quote."""
    return literal[1:-1].replace("''", "'").encode()


def decimal(literal: str) -> Part:
    """A whole number: an Integer if it fits."""
    number = int(literal.rstrip("lL")) if len(literal) <= _LONGEST_DECIMAL else _LONG_MAX + 1
    if number > _LONG_MAX:
        raise Unfit(f"the number is greater than {_LONG_MAX}")
    return constant(number if number <= _INT_MAX else Long(number))


def floating(literal: str) -> Part:
    """A Double; Java takes no zero in this form."""
    number = float(literal)
    if number == float("inf") or number == 0.0:
        raise Unfit("a number with a point or an exponent must be greater than 0 and less than 1.8E308 (zero is 0)")
    return constant(number)


def prop(name: str) -> Part:
    """A message's property."""
    return Part(Kind.PROPERTY, partial(_find, name.encode()), look_ups=1)


def _find(name: bytes, properties: Properties) -> bytes | None:
    return properties.get(name) if isinstance(properties, dict) else find_property(properties, name)


def by_name(raw: bytes) -> dict[bytes, bytes]:
    """Property bytes as a dictionary that has what `find_property` finds."""
    properties: dict[bytes, bytes] = {}
    for item in raw.split(b"\x02"):
        name, separator, value = item.partition(b"\x01")
        if separator:
            properties.setdefault(name, value)
    return {name: value for name, value in properties.items() if value}


def negative(part: Part) -> Part:
    """Minus a number; unknown for anything else, a property with a number in it among them."""
    inner = part.evaluate
    if part.value is not None:
        value = _negated(part.value)
        return Part(Kind.NEGATIVE, lambda _: value, _depth((part,)), value)
    return Part(Kind.NEGATIVE, lambda raw: _negated(inner(raw)), _depth((part,)), look_ups=part.look_ups)


def _negated(value: Value) -> Value:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return Long(-value) if isinstance(value, Long) else -value


# -- conditions -----------------------------------------------------------------------------------------------------


def condition(part: Part) -> Part:
    """The part as a condition. A property alone is one, but never true: its value is a String."""
    if part.is_condition:
        return part
    if part.kind is not Kind.PROPERTY:
        raise Unfit("a condition is needed here, not a value")
    evaluate = part.evaluate
    return _condition(lambda raw: None if evaluate(raw) is None else False, part)


def negation(part: Part) -> Part:
    inner = condition(part)
    evaluate = inner.evaluate

    def negate(raw: Properties) -> bool | None:
        value = evaluate(raw)
        return None if value is None else not value

    return _condition(negate, inner)


def conjunction(parts: Sequence[Part]) -> Part:
    return _junction(parts, False)


def disjunction(parts: Sequence[Part]) -> Part:
    return _junction(parts, True)


def _junction(parts: Sequence[Part], decisive: bool) -> Part:
    """AND and OR: the first part that has the decisive value ends it."""
    conditions = [condition(part) for part in parts]
    evaluations = tuple(part.evaluate for part in conditions)

    def evaluate(raw: Properties) -> bool | None:
        outcome: bool | None = not decisive
        for part in evaluations:
            value = part(raw)
            if value is decisive:
                return decisive
            if value is None:
                outcome = None
        return outcome

    return _condition(evaluate, *conditions)


# -- comparisons ----------------------------------------------------------------------------------------------------


def equal(left: Part, right: Part) -> Part:
    for part in (left, right):
        if part.kind is Kind.CONSTANT and part.value is None:
            raise Unfit("NULL is compared by IS NULL or IS NOT NULL")
    if isinstance(left.value, bool) and right.kind is Kind.CONSTANT and not isinstance(right.value, bool):
        raise Unfit("TRUE and FALSE are compared with conditions, not with values")
    return _equal(left, right)


def is_null(part: Part) -> Part:
    return _equal(part, constant(None))


def _equal(left: Part, right: Part) -> Part:
    value = right.value
    one, other = left.evaluate, right.evaluate

    def evaluate(raw: Properties) -> bool | None:
        a, b = one(raw), other(raw)
        if a is None or b is None:
            return True if a is b else None if a is None else False
        return compare(a, b) == 0

    def property_is_string(raw: Properties) -> bool | None:
        a = one(raw)
        return None if a is None else a == value

    if left.kind is Kind.PROPERTY and isinstance(value, bytes):
        return _condition(property_is_string, left, right)
    is_number = not isinstance(value, bool)
    quick = _property_and_number(left, operator.eq, value) if is_number else None
    return _condition(quick or evaluate, left, right)


def order(symbol: str, left: Part, right: Part) -> Part:
    """`<`, `<=`, `>` or `>=`, as the symbol says."""
    for part in (left, right):
        is_number = isinstance(part.value, (int, float)) and not isinstance(part.value, bool)
        if part.is_condition or (part.kind is Kind.CONSTANT and not is_number):
            raise Unfit(f"{symbol} compares numbers: properties and numeric literals")
    holds = _ORDERS[symbol]
    one, other = left.evaluate, right.evaluate

    def evaluate(raw: Properties) -> bool | None:
        a = one(raw)
        if a is None:
            return None
        b = other(raw)
        return None if b is None else holds(compare_order(a, b), 0)

    return _condition(_property_and_number(left, holds, right.value) or evaluate, left, right)


def _property_and_number(left: Part, holds: Callable[[Any, Any], bool], value: Value) -> Truth | None:
    """The common case, a property beside a number, spared the look at types."""
    if left.kind is not Kind.PROPERTY or not isinstance(value, (int, float)):
        return None
    find = left.evaluate
    if isinstance(value, float):
        double = value

        def double_evaluate(raw: Properties) -> bool | None:
            text = find(raw)
            return None if text is None else holds(compare_doubles(to_double(text), double), 0)  # type: ignore[arg-type]

        return double_evaluate
    integer = int(value)
    bits = 64 if isinstance(value, Long) else 32

    def integer_evaluate(raw: Properties) -> bool | None:
        text = find(raw)
        return None if text is None else holds(to_integer(text, bits), integer)  # type: ignore[arg-type]

    return integer_evaluate


def between(part: Part, low: Part, high: Part) -> Part:
    if low.kind is Kind.CONSTANT and high.kind is Kind.CONSTANT:
        a, b = low.value, high.value
        if a is not None and b is not None and _compare_literals(a, b) > 0:
            raise Unfit("of BETWEEN the first value must not be greater than the second")
    return conjunction([order(">=", part, low), order("<=", part, high)])


def _compare_literals(low: Present, high: Present) -> int:
    try:
        return compare(low, high)
    except NotComparable:
        raise Unfit("BETWEEN compares numbers: properties and numeric literals") from None


def not_between(part: Part, low: Part, high: Part) -> Part:
    return disjunction([order("<", part, low), order(">", part, high)])


def search(how: str, part: Part, wanted: bytes, is_not: bool) -> Part:
    """CONTAINS, STARTSWITH or ENDSWITH; never unknown: false without the property, with NOT as well."""
    finds, inner = _SEARCHES[how], part.evaluate

    def evaluate(raw: Properties) -> bool:
        value = inner(raw)
        return isinstance(value, bytes) and bool(wanted) and finds(value, wanted) is not is_not

    costly = part._replace(look_ups=part.look_ups * _CONTAINS) if how == "CONTAINS" else part
    return _condition(evaluate, costly)


def is_in(part: Part, values: Sequence[bytes], is_not: bool) -> Part:
    if part.kind is not Kind.PROPERTY:
        raise Unfit("before IN stands a property")
    members = frozenset(values)
    find = part.evaluate

    def evaluate(raw: Properties) -> bool | None:
        value = find(raw)
        return None if value is None else (value in members) is not is_not

    return _condition(evaluate, part)
