"""Tests that the examples of the documents run and that their links exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq import Message, Producer, SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))

from code_blocks import code_blocks  # noqa: E402

DOCUMENTS = [
    "README.md",
    "README.zh-CN.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")),
]
#: Pages that tools/site_reference.py generates when the site is built.
GENERATED = {"configuration.md", "metrics.md", "errors.md"}
#: The address in every example.
ADDRESS = "127.0.0.1:9876"


def blocks(document: str, language: str) -> list[str]:
    return code_blocks((ROOT / document).read_text(), language)


def examples(*documents: str) -> list[object]:
    """Returns (document, code) of each Python block in order. Blocks with Spark are marked."""
    return [
        pytest.param(
            code,
            id=f"{document}-{number}",
            # Each of these starts its own Spark.
            marks=[pytest.mark.spark, pytest.mark.slow] if "pyspark" in code or ".spark" in code else [],
        )
        for document in documents
        for number, code in enumerate(blocks(document, "python"), 1)
    ]


@pytest.fixture
def address() -> Iterator[str]:
    """Runs a cluster with the messages of the examples that send. Each test has its own: `show` prints 20 rows."""
    with EmbeddedCluster() as cluster:
        with SyncProducer(Producer(cluster.name_server, "quick-start")) as producer:
            for number in range(10):
                producer.send(Message("greetings", b"hello %d" % number, tags="hello", keys=f"greeting-{number}"))
        yield cluster.name_server


@pytest.mark.timeout(240)
@pytest.mark.parametrize("code", examples("README.md", "docs/index.md", "CONTRIBUTING.md"))
def test_an_example_runs(code: str, address: str, tmp_path: Path) -> None:
    script = tmp_path / "test_example.py"
    script.write_text(code.replace(ADDRESS, address))
    command = ["-m", "pytest", "-o", "asyncio_mode=auto", "-q"] if "def test_" in code else []
    done = subprocess.run(
        [sys.executable, *command, str(script)], capture_output=True, text=True, timeout=200, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    if any(reads in code for reads in ("PushConsumer(", "spark.read.")):
        for number in range(10):
            assert f"hello {number}" in done.stdout, done.stdout + done.stderr


def test_the_command_lines_of_the_home_page(address: str) -> None:
    """Runs the examples of the tabs for the command line: one sends, the other reads."""
    send, receive = [code for code in blocks("docs/index.md", "sh") if "gantry up" not in code]
    environment = os.environ | {"NAMESRV_ADDR": address, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for code in (send, receive):
        done = subprocess.run(
            ["sh", "-c", code], capture_output=True, text=True, timeout=60, env=environment, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines().count("hello 9") >= 1, done.stdout


def test_the_translation_has_the_same_examples() -> None:
    for language in ("python", "sh"):
        english, chinese = (blocks(name, language) for name in ("README.md", "README.zh-CN.md"))
        assert english
        without_comments = [re.sub(r"\s*#.*", "", "\n".join(each)) for each in (english, chinese)]
        assert without_comments[0] == without_comments[1]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / document).parent / path if path else ROOT / document
        if file.parent.name == "reference" and file.name in GENERATED:
            continue
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings], (
                target
            )


def test_commands_of_dev_exist() -> None:
    usage = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True, timeout=30).stdout
    known = set(re.findall(r"^  ([\w-]+) ", usage, re.MULTILINE))
    commands = {"demo", "test", "lint", "spark-matrix", "sim", "docs", "bench", "lock", "proto", "release", "workflows"}
    commands |= {"chart", "faults", "fuzz", "image", "interop"}
    assert known == commands
    for document in DOCUMENTS:
        for command in re.findall(r"\./dev ([\w-]+)", (ROOT / document).read_text()):
            assert command in known, (document, command)
