"""Lists that are cut, searched and sorted here, not in a browser: there may be 20,000 rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

R = TypeVar("R")

DEFAULT_SIZE = 50
MAX_SIZE = 500


class ListArguments(msgspec.Struct, kw_only=True):
    """`sort` names a column, with a - before it the largest comes first. Pages count from 1."""

    search: str = ""
    sort: str = ""
    page: int = 1
    size: int = DEFAULT_SIZE


class Cut(msgspec.Struct, Generic[R]):
    """One page of a list: `found` rows have the text that was searched for, of `total`."""

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
    """The page that is asked for. An unknown column, or a page that isn't there, is no error: the nearest counts."""
    rows = list(rows)
    total = len(rows)
    wanted = arguments.search.strip().casefold()
    if wanted:
        rows = [row for row in rows if wanted in text(row).casefold()]
    sort = arguments.sort if arguments.sort.removeprefix("-") in columns else default
    # Rows that are equal in it stay in the order of their names, whichever comes first.
    rows.sort(key=text)
    rows.sort(key=columns[sort.removeprefix("-")], reverse=sort.startswith("-"))
    size = min(max(arguments.size, 1), MAX_SIZE)
    pages = max(-(-len(rows) // size), 1)
    page = min(max(arguments.page, 1), pages)
    shown = rows[(page - 1) * size : page * size]
    return Cut(shown, total, len(rows), page, pages, size, sort, arguments.search)
