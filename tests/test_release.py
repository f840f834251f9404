"""What would be published: the wheel and the sdist, and clients where uvloop isn't."""

from __future__ import annotations

import email
import importlib.util
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.testing.embedded import EmbeddedCluster

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: What `pip install gantrymq` is asked for, at most.
MOST_DEPENDENCIES = 10

needs_build = pytest.mark.skipif(
    importlib.util.find_spec("build") is None or importlib.util.find_spec("twine") is None,
    reason="build and twine make the files",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel, made from the sdist, and the sdist."""
    directory = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return directory


@needs_build
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_twine_finds_nothing_wrong(built: Path) -> None:
    files = sorted(str(path) for path in built.iterdir())
    assert len(files) == 2
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_build
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_wheel_has_the_package_alone(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (path,) = [name for name in names if name.endswith("/METADATA")]
        metadata = email.message_from_bytes(archive.read(path))
    assert {name.split("/")[0] for name in names} == {"gantrymq", path.split("/")[0]}
    assert {"gantrymq/py.typed", "gantrymq/pipeline/examples/change_capture.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".log", ".tmp"))]
    assert metadata["Author"] == "The GantryMQ authors"
    assert metadata["License-Expression"] == "Apache-2.0"
    needed = [text for text in metadata.get_all("Requires-Dist") or [] if "extra ==" not in text]
    assert len(needed) <= MOST_DEPENDENCIES
    description = str(metadata.get_payload())
    assert not re.findall(r"\]\((?!https?:|#)", description), "links that lead nowhere on a page of the index"
    assert "GantryMQ is Apache RocketMQ rebuilt in Python" in description


@needs_build
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_sdist_has_no_stray_files(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if tracked.returncode:
        pytest.skip("no repository to compare with")
    untracked = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    known = {*tracked.stdout.splitlines(), *untracked.stdout.splitlines(), "PKG-INFO", ".gitignore"}
    assert {name for name in names if name} <= known
    for name in ("README.md", "LICENSE", "hatch_build.py", "docs/client.md", "tests/conftest.py"):
        assert name in names


def test_few_dependencies() -> None:
    assert len(PROJECT["dependencies"]) <= MOST_DEPENDENCIES
    (uvloop,) = [text for text in PROJECT["dependencies"] if text.startswith("uvloop")]
    assert "sys_platform != 'win32'" in uvloop


def test_links_of_the_readme_that_would_lead_nowhere() -> None:
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = "[a](docs/a.md), [b](https://b.example), [c](#c), [d](LICENSE) ![e](e.png)"
    assert module.outside(text) == (
        "a (`docs/a.md` in the sources), [b](https://b.example), [c](#c), d (`LICENSE` in the sources) ![e](e.png)"
    )


# -- without uvloop -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


WITHOUT = """
import sys
sys.modules["uvloop"] = None

import asyncio
import gantrymq
from gantrymq import CONSUME_FROM_FIRST_OFFSET, Message, Producer, PushConsumer, SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster


async def main():
    assert type(asyncio.get_running_loop()).__module__.startswith("asyncio.")
    got = asyncio.Queue()
    consumer = PushConsumer(NAME_SERVER, "without", got.put, consume_from_where=CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("without")
    async with Producer(NAME_SERVER, "without") as producer:
        await producer.send(Message("without", b"one"))
        async with consumer, asyncio.timeout(30):
            print((await got.get()).body)


NAME_SERVER = sys.argv[1]
gantrymq.run(main)
with SyncProducer(Producer(NAME_SERVER, "without")) as producer:
    print(producer.send(Message("without", b"two")).status.name)
with EmbeddedCluster() as cluster, SyncProducer(Producer(cluster.name_server, "without")) as producer:
    print(producer.send(Message("without", b"three")).status.name)
"""


def test_clients_and_a_cluster_run_without_uvloop(cluster: EmbeddedCluster) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, cluster.name_server], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout.split() == ["b'one'", "SEND_OK", "SEND_OK"], done.stderr
    assert "Traceback" not in done.stderr


def test_commands_run_without_uvloop(cluster: EmbeddedCluster) -> None:
    script = "import sys; sys.modules['uvloop'] = None; from gantrymq.cli.main import run; sys.exit(run(sys.argv[1:]))"
    for arguments in (["admin", "topicList"], ["doctor"], ["consume", "TBW102", "-e"]):
        command = [sys.executable, "-c", script, *arguments, "-n", cluster.name_server]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        # Other tests' groups are gone: doctor warns of them.
        assert done.returncode in ((0, 3) if arguments == ["doctor"] else (0,)), done.stdout + done.stderr
