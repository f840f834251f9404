"""Languages: texts are written in English in pages and templates; zh.json has them in Chinese."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import msgspec

#: {code: what its speakers call it}
LANGUAGES: Mapping[str, str] = {"en": "English", "zh": "中文"}

Translate = Callable[..., str]


@cache
def texts(code: str) -> Mapping[str, str]:
    """{English: this language's}"""
    if code == "en":
        return {}
    return msgspec.json.decode((Path(__file__).parent / f"{code}.json").read_bytes(), type=dict[str, str])


def translator(code: str) -> Translate:
    """A function of an English text and the values of its {names}; what isn't translated stays as it is."""
    table = texts(code)

    def translate(text: str, **values: object) -> str:
        found = table.get(text, text)
        return found.format(**values) if values else found

    return translate


def language_of(chosen: str | None, accepted: str) -> str:
    """The code of the language: what a visitor chose, else the first of its browser's that there is."""
    if chosen is not None and chosen in LANGUAGES:
        return chosen
    for part in accepted.split(","):
        code = part.partition(";")[0].strip().partition("-")[0].lower()
        if code in LANGUAGES:
            return code
    return "en"
