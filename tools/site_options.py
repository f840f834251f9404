"""Adds a table of the options to the reference of each client class.

`gantrymq.client.options.takes` creates the constructors at run time, so MkDocs cannot read their arguments from the
source files.
"""

from __future__ import annotations

import html
import importlib
from typing import Any

from griffe import Class, Docstring, Extension

from gantrymq.client.options import Options, default_text, in_order


def options_table(options: Any) -> str:
    """Returns the options of a class as a Markdown table."""
    rows = ["| option | type | default | meaning |", "|---|---|---|---|"]
    for each in in_order(options):
        default = default_text(each)
        cells = [f"`{each.name}`", _code(str(each.type)), _code(default) if default else "", each.metadata["doc"]]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _code(text: str) -> str:
    # Markdown parsers treat a pipe in backticks differently.
    return f"<code>{html.escape(text).replace('|', '&#124;')}</code>"


def options_of(client: type) -> Any:
    """Returns the options class of a client, an options class itself, or None for any other class."""
    if issubclass(client, Options):
        return client
    return getattr(client.__init__, "options", None)  # type: ignore[misc]


class OptionsExtension(Extension):
    """Griffe extension that adds the table to each class with options."""

    def on_class(self, *, cls: Class, **kwargs: Any) -> None:
        """Adds the table to a class. Griffe calls this for each class that it loads."""
        if not cls.path.startswith("gantrymq.client."):
            return
        client = getattr(importlib.import_module(cls.module.path), cls.name, None)
        options = options_of(client) if isinstance(client, type) else None
        if options is None:
            return
        table = options_table(options)
        if cls.docstring is None:
            cls.docstring = Docstring("", parent=cls)
        cls.docstring.value = f"{cls.docstring.value}\n\n{table}"
        by_name = {each.name: each for each in in_order(options)}
        for name, member in cls.members.items():
            if member.is_attribute and name in by_name:
                member.value = repr(by_name[name].default)
