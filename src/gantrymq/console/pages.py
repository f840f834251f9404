"""Pages of the console. Each page is a query whose result is served as HTML at /NAME and as JSON at /api/v1/NAME.

    query string -> typed arguments -> query(view, arguments) -> structure -> template, or JSON

The OpenAPI document is derived from the same types.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from gantrymq import __version__
from gantrymq.console.cluster_view import ClusterView

API = "/api/v1"

A = TypeVar("A", bound=msgspec.Struct)

_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


@dataclass(frozen=True, slots=True)
class Page:
    """One page. `name` is its path and its template. `menu` is its label in the navigation.

    A page that shows a single object has no label. Its `parent` is the name of the page that lists such objects.
    `section` is the group of the page in the navigation.
    """

    name: str
    title: str
    arguments: type[msgspec.Struct]
    query: Callable[[ClusterView, Any], Awaitable[msgspec.Struct]]
    result: Any
    menu: str = ""
    section: str = ""
    parent: str = ""
    #: Interval at which the browser reloads the live part, s. 0 means never.
    again_s: int = 0


class BadArguments(ValueError):
    """Raised for invalid arguments of a page or a change."""


def menu_of(pages: Sequence[Page]) -> list[tuple[str, list[Page]]]:
    """Returns the pages with a label by section, in the order of the sections' first pages."""
    sections: dict[str, list[Page]] = {}
    for page in pages:
        if page.menu:
            sections.setdefault(page.section, []).append(page)
    return list(sections.items())


def arguments_of(kind: type[A], query: Mapping[str, str]) -> A:
    """Converts the fields of a query to typed arguments. Raises BadArguments."""
    # Browsers send a field without input as an empty text.
    given = {name: value for name, value in query.items() if value != ""}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as e:
        raise BadArguments(str(e)) from None


def parse_time(text: str) -> int | None:
    """Parses a time: milliseconds since 1970, or ISO 8601 with UTC as the default time zone.

    Returns ms since 1970; None for an empty text. Raises BadArguments for an invalid text.
    """
    text = text.strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return min(int(text[:19]), 2**62)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadArguments(f"{text!r} is not a time: expected 2024-05-31T23:59, or milliseconds since 1970") from None
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)


def openapi(pages: Sequence[Page]) -> dict[str, Any]:
    """Builds the OpenAPI document of the JSON API."""
    schemas, components = msgspec.json.schema_components(
        [page.result for page in pages], ref_template="#/components/schemas/{name}"
    )
    paths = {}
    for page, schema in zip(pages, schemas, strict=True):
        parameters = []
        for field in msgspec.structs.fields(page.arguments):
            (kind,), _ = msgspec.json.schema_components([field.type], ref_template="#/components/schemas/{name}")
            parameter = {"name": field.encode_name, "in": "query", "required": field.required, "schema": kind}
            parameters.append(parameter)
        paths[f"{API}/{page.name}"] = {
            "get": {
                "operationId": page.name.replace("-", "_"),
                "summary": page.title,
                "parameters": parameters,
                "responses": {
                    "200": {"description": page.title, "content": {"application/json": {"schema": schema}}},
                    "default": {"description": "What went wrong", "content": {"application/json": {"schema": _ERROR}}},
                },
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "GantryMQ console", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }
