"""Languages of the console. Pages and templates contain the English texts, and zh.json the Chinese texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import msgspec

#: Available languages: {code: name in that language}.
LANGUAGES: Mapping[str, str] = {"en": "English", "zh": "中文"}

Translate = Callable[..., str]


@cache
def texts(code: str) -> Mapping[str, str]:
    """Returns {English text: text in this language}."""
    if code == "en":
        return {}
    return msgspec.json.decode((Path(__file__).parent / f"{code}.json").read_bytes(), type=dict[str, str])


def translator(code: str) -> Translate:
    """Returns a function that translates an English text and fills in the values of its {names}."""
    table = texts(code)

    def translate(text: str, /, **values: object) -> str:
        found = table.get(text, text)
        return found.format(**values) if values else found

    return translate


def language_of(chosen: str | None, accepted: str) -> str:
    """Returns the language that the visitor has chosen, or else the first available one of the browser's languages."""
    if chosen is not None and chosen in LANGUAGES:
        return chosen
    for part in accepted.split(","):
        code = part.partition(";")[0].strip().partition("-")[0].lower()
        if code in LANGUAGES:
            return code
    return "en"
