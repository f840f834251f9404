"""URLs of the console's pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec


def link(name: str, _base: msgspec.Struct | None = None, /, **arguments: object) -> str:
    """Returns the URL of a page. `_base` supplies the values of missing arguments."""
    given: dict[str, object] = {}
    if _base is not None:
        defaults: Mapping[str, Any] = {f.name: f.default for f in msgspec.structs.fields(_base)}
        given = {key: value for key, value in msgspec.structs.asdict(_base).items() if value != defaults.get(key)}
    given |= arguments
    texts = {key: _text(value) for key, value in given.items() if value not in (None, "")}
    return f"/{name}?{urlencode(texts)}" if texts else f"/{name}"


def local(address: str) -> str:
    """Returns the address if it is a path of this console, otherwise `/`."""
    return address if address.startswith("/") and not address.startswith(("//", "/\\")) else "/"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
