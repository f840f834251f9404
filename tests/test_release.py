"""Tests of the published files, the wheel and the sdist, and of clients without uvloop."""

from __future__ import annotations

import email
import importlib.util
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.testing.embedded import EmbeddedCluster

sys.path.append(str(Path(__file__).parent.parent / "tools"))

import release

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Maximum number of direct dependencies of the package, without extras.
MOST_DEPENDENCIES = 10

needs_build = pytest.mark.skipif(
    importlib.util.find_spec("build") is None or importlib.util.find_spec("twine") is None,
    reason="build and twine make the files",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the sdist and, from it, the wheel. Returns their directory."""
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
@pytest.mark.skipif(importlib.util.find_spec("check_wheel_contents") is None, reason="it is not installed")
def test_check_wheel_contents_finds_nothing_wrong(built: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_wheel_contents", *map(str, built.glob("*.whl"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_build
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_wheel_has_the_package_and_its_modules_for_spark(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (path,) = [name for name in names if name.endswith("/METADATA")]
        metadata = email.message_from_bytes(archive.read(path))
    assert {name.split("/")[0] for name in names} == {
        "gantrymq",
        "pyspark_rocketmq",
        "pyspark_rocketmq_store",
        path.split("/")[0],
    }
    assert {"gantrymq/py.typed", "gantrymq/pipeline/examples/change_capture.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".log", ".tmp"))]
    assert metadata["Author"] == "The GantryMQ authors"
    assert metadata["License-Expression"] == "Apache-2.0"
    needed = [text for text in metadata.get_all("Requires-Dist") or [] if "extra ==" not in text]
    assert len(needed) <= MOST_DEPENDENCIES
    description = str(metadata.get_payload())
    assert not re.findall(r"\]\((?!https?:|#)", description), "links that lead nowhere on a page of the index"
    assert "in Python: a message broker, its clients, and a data source" in description


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


@needs_build
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_packages_have_the_files_of_the_list(built: Path) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    for path in built.iterdir():
        names = release.contents(path)
        assert not release.unexpected(names, release.patterns(path))
        assert not release.expected(path, set(tracked.splitlines())) - set(names)


def test_a_file_without_a_pattern_and_a_pattern_without_a_file() -> None:
    patterns = ["gantrymq/**.py", "gantrymq/static/*.css", "LICENSE"]
    names = ["gantrymq/__init__.py", "gantrymq/store/log.py", "gantrymq/static/a.css", "gantrymq/static/b/c.css"]
    assert release.unexpected(names, patterns) == [
        "no file matches LICENSE",
        "gantrymq/static/b/c.css is not in release_files.toml",
    ]


def test_one_version_everywhere() -> None:
    assert set(release.versions().values()) == {PROJECT["version"]}


def test_release_notes_are_the_section_of_the_version() -> None:
    changelog = "# Changelog\n\n## [0.2.0] - 2030-01-31\n\n- two\n\n## [0.1.0] - unreleased\n\n- one\n"
    assert release.release_notes(changelog, "0.2.0") == ("2030-01-31", "- two\n")
    assert release.release_notes(changelog, "0.1.0") == ("unreleased", "- one\n")
    with pytest.raises(release.NotReleasable, match=r"no section '## \[0\.3\.0\]"):
        release.release_notes(changelog, "0.3.0")
    assert release.release_notes((ROOT / "CHANGELOG.md").read_text(), release.version())[1]


def test_native_packages_that_cannot_be_copied(tmp_path: Path) -> None:
    for package, error in ((tmp_path / "lost.whl", "there is no file"), (release.DIST / "a.whl", "is in dist/")):
        with pytest.raises(release.NotReleasable, match=error):
            release.build([package])


def test_a_final_release_needs_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    with pytest.raises(release.NotReleasable, match="git has no commit"):
        release.check_final()


def test_an_environment_without_native_code(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    with pytest.raises(release.NotReleasable, match="env ended with 1: env GANTRYMQ_NATIVE=1 "):
        release.check_native(tmp_path / "env" / "bin" / "python")


def test_few_dependencies() -> None:
    assert len(PROJECT["dependencies"]) <= MOST_DEPENDENCIES
    (uvloop,) = [text for text in PROJECT["dependencies"] if text.startswith("uvloop")]
    assert "sys_platform != 'win32'" in uvloop


def test_links_and_images_of_the_readme_that_would_lead_nowhere() -> None:
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (
        "[a](docs/a.md), [b](https://b.example), [c](#c), [d](LICENSE)\n\n![e](e.png)\n\n![f](https://f.example/f.png)"
    )
    assert module.outside(text) == (
        "a (`docs/a.md` in the sources), [b](https://b.example), [c](#c), d (`LICENSE` in the sources)\n\n"
        "![f](https://f.example/f.png)"
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
from gantrymq import Message, Producer, PushConsumer, SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster


async def main():
    assert type(asyncio.get_running_loop()).__module__.startswith("asyncio.")
    got = asyncio.Queue()
    consumer = PushConsumer(NAME_SERVER, "without", got.put, start_from="earliest")
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
        # The doctor warns about groups of other tests, whose members are gone.
        assert done.returncode in ((0, 3) if arguments == ["doctor"] else (0,)), done.stdout + done.stderr
