"""Parts of error texts that name a field of a JSON value. Texts and schemas of any size give short errors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

from gantrymq.errors import CodecError

_LONGEST = 50
_MOST_NAMES = 20


def named(path: str) -> str:
    """Returns the name of a field; the path of the whole value is empty."""
    return f"field {path}" if path else "the value"


def json_text(value: Any) -> str:
    """Returns the beginning of a value as JSON."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def listed(names: Iterable[str]) -> str:
    """Returns the first names."""
    first = list(islice(names, _MOST_NAMES + 1))
    return ", ".join(first) if len(first) <= _MOST_NAMES else f"{', '.join(first[:_MOST_NAMES])}, ..."


def wrong_value(path: str, value: Any, wanted: str) -> CodecError:
    """Returns the error for a value that a field can't have."""
    return CodecError(f"{named(path)} is {json_text(value)}: write {wanted}")
