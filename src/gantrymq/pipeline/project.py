"""A new pipeline project: the files of `template`, and messages to try it with."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from gantrymq.errors import ConfigError

SPEC = "spark-pipeline.yml"
SAMPLE = Path("sample") / "orders.jsonl"
#: Where a run keeps tables, checkpoints and a cluster of its own.
STATE = ".pipeline"

_ITEMS = (("tea", 450), ("coffee", 990), ("chocolate", 320), ("teapot", 4900), ("grinder", 8900))
_ORDERS = 500


def create_project(directory: Path) -> Path:
    """Makes the project `directory`, named after it. Raises ConfigError when it is there already."""
    directory = directory.absolute()
    if directory.exists():
        raise ConfigError(f"{directory} is there already: choose another name")
    values = {"name": directory.name, "storage": (directory / STATE / "storage").as_uri()}
    _copy(files("gantrymq.pipeline") / "template", directory, values)
    sample = directory / SAMPLE
    sample.parent.mkdir()
    sample.write_text("".join(line + "\n" for line in sample_orders()))
    (directory / ".gitignore").write_text(f"{STATE}/\n")
    return directory


def sample_orders() -> list[str]:
    """Orders of ten days, always the same; one is there twice, and one line is none."""
    start = datetime(2026, 1, 1, 8, tzinfo=UTC)
    lines = []
    for n in range(_ORDERS):
        item, price = _ITEMS[n * 7 % len(_ITEMS)]
        order = {
            "id": f"order-{n}",
            "customer": f"customer-{n * 13 % 40}",
            "item": item,
            "quantity": n * 3 % 8 + 1,
            "price_cents": price,
            "time": (start + timedelta(minutes=27 * n)).isoformat(),
        }
        lines.append(json.dumps(order))
    return [*lines, lines[0], "this is no order"]


def _copy(source: Traversable, target: Path, values: dict[str, str]) -> None:
    if source.is_dir():
        target.mkdir(parents=True)
        for entry in source.iterdir():
            if entry.name != "__pycache__":
                _copy(entry, target / entry.name, values)
        return
    text = source.read_text()
    for name, value in values.items():
        text = text.replace("{{ " + name + " }}", value)
    target.write_text(text)
