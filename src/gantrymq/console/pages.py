"""Pages: each is a query that is served twice, as HTML at /NAME and as JSON at /api/v1/NAME.

    a request's query string -> typed arguments -> query(eye, arguments) -> a structure -> template, or JSON

OpenAPI is made from the same types.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from gantrymq import __version__
from gantrymq.console.eye import Eye

API = "/api/v1"

A = TypeVar("A", bound=msgspec.Struct)

_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


@dataclass(frozen=True, slots=True)
class Page:
    """`name` is its address and its template; `menu` what the navigation calls it, empty for a page of one thing."""

    name: str
    title: str
    arguments: type[msgspec.Struct]
    query: Callable[[Eye, Any], Awaitable[msgspec.Struct]]
    result: Any
    menu: str = ""
    #: The part that changes is asked for again after so many seconds; 0: it isn't.
    again_s: int = 0


class BadArguments(ValueError):
    """A query string that a page can't take."""


def arguments_of(kind: type[A], query: Mapping[str, str]) -> A:
    """Raises BadArguments."""
    # An empty field of a form means that it wasn't filled in.
    given = {name: value for name, value in query.items() if value != ""}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as e:
        raise BadArguments(str(e)) from None


def openapi(pages: Sequence[Page]) -> dict[str, Any]:
    """The OpenAPI document of the JSON API."""
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
