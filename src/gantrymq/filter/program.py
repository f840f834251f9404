"""Compiled form of an expression: nested tuples with the number of an operation and its operands.

A part of an expression is `(operation, operand...)`. An operand is a value or another part. Python's garbage collector
stops tracking tuples that contain only numbers, bytes and such tuples. Even many filters therefore cost the collector
no time.

Decision record: docs/decisions/filters.md.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from gantrymq.filter.values import (
    NotComparable,
    Value,
    compare,
    compare_doubles,
    compare_order,
    negated,
    to_double,
    to_integer,
)

Program = tuple[Any, ...]
#: Property bytes of a record, with a separator before them. If there are many look-ups, the result of `_by_name`.
Properties = bytes | dict[bytes, bytes]
_Run = Callable[[Any, Properties], Value]

#: With more look-ups than this, the properties are first converted to a dictionary.
_MANY = 8

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
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

#: Operations by number. A program contains the numbers, because the garbage collector tracks functions.
_operations: list[_Run] = []


def matcher(program: Program, look_ups: int) -> Callable[[bytes], bool]:
    """Returns a function that tests a record's property bytes. `look_ups` is the number of property look-ups."""
    return partial(_matches_many if look_ups > _MANY else _matches, _operations[program[0]], program)


def _matches(run: _Run, program: Program, properties: bytes) -> bool:
    try:
        return run(program, b"\x02" + properties) is True
    except NotComparable:
        return False


def _matches_many(run: _Run, program: Program, properties: bytes) -> bool:
    try:
        return run(program, _by_name(properties)) is True
    except NotComparable:
        return False


def evaluate(program: Program, properties: bytes) -> Value:
    """Returns the value of a part, or None if unknown. Raises NotComparable."""
    return _operations[program[0]](program, b"\x02" + properties)


def _find(properties: Properties, name: bytes) -> bytes | None:
    if isinstance(properties, dict):
        return properties.get(name)
    # Properties begin with a separator here. `find_property` expects none before the first property.
    sought = b"\x02" + name + b"\x01"
    start = properties.find(sought)
    if start < 0:
        return None
    start += len(sought)
    end = properties.find(b"\x02", start)
    return (properties[start:end] if end >= 0 else properties[start:]) or None


def _by_name(raw: bytes) -> dict[bytes, bytes]:
    """Returns property bytes as a dictionary, with the same values that `find_property` finds."""
    properties: dict[bytes, bytes] = {}
    for item in raw.split(b"\x02"):
        name, separator, value = item.partition(b"\x01")
        if separator:
            properties.setdefault(name, value)
    return {name: value for name, value in properties.items() if value}


def _operation(run: _Run) -> int:
    """Registers an operation and returns its number. Operations raise NotComparable, or the errors of their parts."""
    _operations.append(run)
    return len(_operations) - 1


# -- operands -------------------------------------------------------------------------------------------------------


@_operation
def CONSTANT(program: tuple[int, Value], properties: Properties) -> Value:
    return program[1]


@_operation
def PROPERTY(program: tuple[int, bytes], properties: Properties) -> Value:
    return _find(properties, program[1])


@_operation
def NEGATIVE(program: tuple[int, Program], properties: Properties) -> Value:
    part = program[1]
    return negated(_operations[part[0]](part, properties))


# -- conditions -----------------------------------------------------------------------------------------------------


@_operation
def PROPERTY_ALONE(program: tuple[int, bytes], properties: Properties) -> Value:
    """A property alone is never true, because its value is a String."""
    return None if _find(properties, program[1]) is None else False


@_operation
def NOT(program: tuple[int, Program], properties: Properties) -> Value:
    part = program[1]
    value = _operations[part[0]](part, properties)
    return None if value is None else not value


@_operation
def AND(program: tuple[int, tuple[Program, ...]], properties: Properties) -> Value:
    """Stops at the first false part."""
    operations = _operations
    outcome: Value = True
    for part in program[1]:
        value = operations[part[0]](part, properties)
        if value is False:
            return False
        if value is None:
            outcome = None
    return outcome


@_operation
def OR(program: tuple[int, tuple[Program, ...]], properties: Properties) -> Value:
    """Stops at the first true part."""
    operations = _operations
    outcome: Value = False
    for part in program[1]:
        value = operations[part[0]](part, properties)
        if value is True:
            return True
        if value is None:
            outcome = None
    return outcome


# -- comparisons ----------------------------------------------------------------------------------------------------


@_operation
def IS_NULL(program: tuple[int, Program], properties: Properties) -> Value:
    part = program[1]
    return _operations[part[0]](part, properties) is None


@_operation
def EQUAL(program: tuple[int, Program, Program], properties: Properties) -> Value:
    _, one, other = program
    a, b = _operations[one[0]](one, properties), _operations[other[0]](other, properties)
    if a is None or b is None:
        return True if a is b else None if a is None else False
    return compare(a, b) == 0


@_operation
def PROPERTY_EQUALS_STRING(program: tuple[int, bytes, bytes], properties: Properties) -> Value:
    """A fast path for a common case, without type checks. The next two operations are such cases, too."""
    _, name, value = program
    found = _find(properties, name)
    return None if found is None else found == value


def _property_and_integer(holds: Callable[[Any, Any], bool]) -> int:
    def run(program: tuple[int, bytes, int, int], properties: Properties) -> Value:
        _, name, number, bits = program
        found = _find(properties, name)
        return None if found is None else holds(to_integer(found, bits), number)

    return _operation(run)


def _property_and_double(holds: Callable[[Any, Any], bool]) -> int:
    def run(program: tuple[int, bytes, float], properties: Properties) -> Value:
        _, name, number = program
        found = _find(properties, name)
        return None if found is None else holds(compare_doubles(to_double(found), number), 0)

    return _operation(run)


def _order(holds: Callable[[Any, Any], bool]) -> int:
    def run(program: tuple[int, Program, Program], properties: Properties) -> Value:
        _, one, other = program
        a = _operations[one[0]](one, properties)
        if a is None:
            return None
        b = _operations[other[0]](other, properties)
        return None if b is None else holds(compare_order(a, b), 0)

    return _operation(run)


def _search(finds: Callable[[bytes, bytes], bool]) -> int:
    def run(program: tuple[int, Program, bytes, bool], properties: Properties) -> Value:
        """The result is never unknown. If the property is missing, it is false, also with NOT."""
        _, part, wanted, is_not = program
        value = _operations[part[0]](part, properties)
        return isinstance(value, bytes) and bool(wanted) and finds(value, wanted) is not is_not

    return _operation(run)


#: Operations by symbol. An Integer has 32 bits, a Long 64.
PROPERTY_AND_INTEGER = {symbol: _property_and_integer(holds) for symbol, holds in _ORDERS.items()}
PROPERTY_AND_DOUBLE = {symbol: _property_and_double(holds) for symbol, holds in _ORDERS.items()}
ORDER = {symbol: _order(holds) for symbol, holds in _ORDERS.items()}
SEARCH = {name: _search(finds) for name, finds in _SEARCHES.items()}


@_operation
def IN(program: tuple[int, bytes, tuple[bytes, ...] | frozenset[bytes], bool], properties: Properties) -> Value:
    _, name, members, is_not = program
    value = _find(properties, name)
    return None if value is None else (value in members) is not is_not
