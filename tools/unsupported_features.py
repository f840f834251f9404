"""Writes the table of refused features into docs/compatibility.md and its Chinese page.

.venv/bin/python tools/unsupported_features.py
"""

from __future__ import annotations

from pathlib import Path

from gantrymq.protocol.unsupported_features import UNSUPPORTED_FEATURES, UnsupportedFeature

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "docs" / "compatibility.md", ROOT / "docs" / "zh" / "compatibility.md")
BEGIN, END = "<!-- unsupported features -->\n", "<!-- end of unsupported features -->\n"


def table(heads: str) -> str:
    """Returns the table. `heads` are the names of its columns, separated by `|`."""
    columns = heads.split("|")
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    rows += [f"| {feature.name} | {_requested_by(feature)} | {feature.instead} |" for feature in UNSUPPORTED_FEATURES]
    return "".join(f"{row}\n" for row in rows)


def _requested_by(feature: UnsupportedFeature) -> str:
    settings = [f"`{key}={value}`" if value.isalnum() else f"`{key}`" for key, value in feature.settings.items()]
    names = [*feature.attributes, *feature.commands]
    return ", ".join([*_ranges(feature.requests), *settings, *(f"`{name}`" for name in names)])


def _ranges(codes: tuple[int, ...]) -> list[str]:
    """Returns 7, 8 and 9 as "7 to 9"."""
    found: list[list[int]] = []
    for code in sorted(codes):
        if found and found[-1][-1] == code - 1:
            found[-1].append(code)
        else:
            found.append([code])
    return [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in found]


def rendered(page: str) -> str:
    """Returns the text of a page with the present table. The names of its columns stay."""
    before, _, rest = page.partition(BEGIN)
    old, _, after = rest.partition(END)
    heads = old.partition("\n")[0].strip("| ").replace(" | ", "|")
    return before + BEGIN + table(heads) + END + after


def main() -> None:
    for page in PAGES:
        page.write_text(rendered(page.read_text()))


if __name__ == "__main__":
    main()
