"""Checks the handler of a push consumer."""

from __future__ import annotations

import inspect
from functools import partial

from gantrymq.errors import ClientError


def check_handler(handler: object) -> None:
    """Raises ClientError unless `handler` can be called with one argument."""
    if not callable(handler):
        raise ClientError(f"handler {handler!r} is no function, and can't be called")
    try:
        signature = inspect.signature(handler)
    except ValueError as e:
        if isinstance(handler, partial):
            raise ClientError(f"handler {handler!r} can't be called with a message: {e}") from e
        return  # Some built-in functions have no signature.
    except TypeError as e:
        raise ClientError(f"handler {handler!r}: {e}") from e
    try:
        signature.bind(None)
    except TypeError as e:
        raise ClientError(
            f"handler {getattr(handler, '__name__', None) or handler!r}{signature} can't be called with a message: {e}"
        ) from None
