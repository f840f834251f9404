"""A new pipeline project: the files of `template` and messages to try it with, or a program of examples/pipelines."""

from __future__ import annotations

import ast
import json
import re
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from gantrymq.errors import ConfigError

SPEC = "spark-pipeline.yml"
#: The template that is a declarative pipeline.
DECLARATIVE = "orders"
PROGRAM = "pipeline.py"
SAMPLE = Path("sample") / "orders.jsonl"
#: Where a run keeps tables, checkpoints and a cluster of its own.
STATE = ".pipeline"

#: Paths that Spark leaves as they are. Of others it escapes a part, once or twice, and puts tables and checkpoints into
#: directories of other names, and at a space it ends the options of its JVM.
_GOOD_PATH = re.compile(r"[\w/.~!()*,:$&+=@-]+")

_ITEMS = (("tea", 450), ("coffee", 990), ("chocolate", 320), ("teapot", 4900), ("grinder", 8900))
_ORDERS = 500


def templates() -> dict[str, Traversable]:
    """The programs that there are, by name, and their files: those of examples/pipelines."""
    examples = files("gantrymq.pipeline") / "examples"
    if not examples.is_dir():
        # Installed as editable.
        examples = Path(__file__).parents[3] / "examples" / "pipelines"
    programs = sorted((path for path in examples.iterdir() if path.name.endswith(".py")), key=lambda path: path.name)
    return {path.name.removesuffix(".py").replace("_", "-"): path for path in programs}


def local_uri(path: Path) -> str:
    """As Spark takes it. Raises ConfigError for a path with a space or others of the characters that URIs escape."""
    if not _GOOD_PATH.fullmatch(str(path)):
        raise ConfigError(f"{path}: in a project's path Spark takes no spaces, quotes, semicolons, #, % and the like")
    return f"file://{path}"


def create_project(directory: Path, template: str = DECLARATIVE) -> Path:
    """Makes the project `directory`, named after it.

    Raises ConfigError when it is there, or no such template is, or its path is nothing for Spark.
    """
    directory = directory.absolute()
    programs = templates()
    if template != DECLARATIVE and template not in programs:
        raise ConfigError(f"no template {template!r}; there are {', '.join([DECLARATIVE, *programs])}")
    if directory.exists():
        raise ConfigError(f"{directory} is there already: choose another name")
    if template != DECLARATIVE:
        _write_program(directory, programs[template])
        return directory
    values = {
        "name": directory.name,
        # Text of JSON is YAML's, too, and a name like 2026 or null would be something else without quotes.
        "quoted_name": json.dumps(directory.name, ensure_ascii=False),
        "quoted_storage": json.dumps(local_uri(directory / STATE / "storage"), ensure_ascii=False),
    }
    _copy(files("gantrymq.pipeline") / "template", directory, values)
    sample = directory / SAMPLE
    sample.parent.mkdir()
    sample.write_text("".join(line + "\n" for line in sample_orders()))
    (directory / ".gitignore").write_text(f"{STATE}/\n")
    return directory


def _write_program(directory: Path, program: Traversable) -> None:
    text = program.read_text().replace(program.name, PROGRAM)
    about = ast.get_docstring(ast.parse(text)) or ""
    directory.mkdir(parents=True)
    (directory / PROGRAM).write_text(text)
    (directory / "README.md").write_text(f"# {directory.name}\n\n{about}\n")


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
