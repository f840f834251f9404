"""Searches and sorts lists, and divides them into pages, on the server, because a list can have 20,000 rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

R = TypeVar("R")

DEFAULT_SIZE = 50
MAX_SIZE = 500


class ListArguments(msgspec.Struct, kw_only=True):
    """Arguments of a page with a list. `sort` is a column; a `-` before it reverses the order. Pages count from 1."""

    search: str = ""
    sort: str = ""
    page: int = 1
    size: int = DEFAULT_SIZE


class Cut(msgspec.Struct, Generic[R]):
    """One page of a list. `found` of `total` rows match the search."""

    rows: list[R]
    total: int
    found: int
    page: int
    pages: int
    size: int
    sort: str
    search: str


def cut(
    rows: Iterable[R],
    arguments: ListArguments,
    columns: Mapping[str, Callable[[R], Any]],
    *,
    text: Callable[[R], str],
    default: str,
) -> Cut[R]:
    """Returns the requested page of a list.

    `default` replaces an unknown column. The nearest page replaces a page that is out of range.
    """
    rows = list(rows)
    total = len(rows)
    wanted = arguments.search.strip().casefold()
    if wanted:
        rows = [row for row in rows if wanted in text(row).casefold()]
    sort = arguments.sort if arguments.sort.removeprefix("-") in columns else default
    # The rows are sorted by text first. Rows with equal values stay in this order.
    rows.sort(key=text)
    rows.sort(key=columns[sort.removeprefix("-")], reverse=sort.startswith("-"))
    size = min(max(arguments.size, 1), MAX_SIZE)
    pages = max(-(-len(rows) // size), 1)
    page = min(max(arguments.page, 1), pages)
    shown = rows[(page - 1) * size : page * size]
    return Cut(shown, total, len(rows), page, pages, size, sort, arguments.search)
