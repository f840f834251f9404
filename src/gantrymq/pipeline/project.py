"""Creates a pipeline project: the files of `template` with sample messages, or a program of examples/pipelines."""

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
#: The directory for the tables, the checkpoints and the cluster of a project.
STATE = ".pipeline"

#: Matches paths that Spark does not change. In other paths Spark escapes characters once or twice, so that tables and
#: checkpoints would be in different directories. A space would end an option of Spark's JVM.
_GOOD_PATH = re.compile(r"[\w/.~!()*,:$&+=@-]+")

_ITEMS = (("tea", 450), ("coffee", 990), ("chocolate", 320), ("teapot", 4900), ("grinder", 8900))
_ORDERS = 500


def templates() -> dict[str, Traversable]:
    """Returns {name: file} for the programs in examples/pipelines."""
    examples = files("gantrymq.pipeline") / "examples"
    if not examples.is_dir():
        # In an editable installation, the examples are outside of the package.
        examples = Path(__file__).parents[3] / "examples" / "pipelines"
    programs = sorted((path for path in examples.iterdir() if path.name.endswith(".py")), key=lambda path: path.name)
    return {path.name.removesuffix(".py").replace("_", "-"): path for path in programs}


def local_uri(path: Path) -> str:
    """Returns the URI of a path for Spark. Raises ConfigError for a space or another character that URIs escape."""
    if not _GOOD_PATH.fullmatch(str(path)):
        raise ConfigError(f"{path}: in a project's path Spark takes no spaces, quotes, semicolons, #, % and the like")
    return f"file://{path}"


def create_project(directory: Path, template: str = DECLARATIVE) -> Path:
    """Creates a project in the new directory `directory`. The name of the directory is the name of the project.

    Raises ConfigError if the directory exists, the template is unknown, or Spark doesn't support the path.
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
        # JSON text is valid YAML. Without quotes, a name like 2026 or null would not be a string.
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
    """Returns sample orders of ten days, one per line. One order is a duplicate, and one line is not an order."""
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
