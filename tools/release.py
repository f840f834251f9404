"""Builds the files of a release in dist/ and checks them.

    ./dev release                     # for this platform
    ./dev release --native FILE...    # with packages of gantrymq-native that are built already
    ./dev release --final             # fails first if the checkout is not ready to be published

1. Builds the sdist and the wheel of gantrymq, and, if cargo is installed, of gantrymq-native.
2. Checks them with twine and check-wheel-contents, and compares their files with `tools/release_files.toml`.
3. Installs the wheels into an empty environment, and runs the first steps of a new user (`tools/newcomer.py`). With a
   wheel of gantrymq-native, also runs its tests (`tests/kernels`).
4. Writes an SBOM (CycloneDX) of this environment, and the release notes from `CHANGELOG.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import install_commands

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
FILES = Path(__file__).parent / "release_files.toml"
#: Directories of the sources whose tracked files are all in the sdist.
COMPLETE = ("src", "proto", "sim", "tests", "docs", "examples", "tools")


class NotReleasable(Exception):
    """A release cannot be made. The text says why."""


# -- the checkout ----------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """Returns {place: version of the package} for each place in the sources that has it."""
    project = _toml("pyproject.toml")["project"]
    (native,) = project["optional-dependencies"]["native"]
    found = {"pyproject.toml": project["version"], "the extra native": native.partition("==")[2]}
    for name, table in (("native/pyproject.toml", "project"), ("native/Cargo.toml", "package")):
        if (ROOT / name).exists():
            found[name] = _toml(name)[table]["version"]
    return found


def version() -> str:
    """Returns the version to release. Raises NotReleasable if two places differ."""
    found = versions()
    if len(set(found.values())) != 1:
        raise NotReleasable(f"the versions differ: {', '.join(f'{place} has {text}' for place, text in found.items())}")
    return found["pyproject.toml"]


def release_notes(changelog: str, version: str) -> tuple[str, str]:
    """Returns the date and the text of a version's section in the changelog."""
    section = re.search(rf"^## \[{re.escape(version)}\] - (\S+)\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
    if section is None:
        raise NotReleasable(f"CHANGELOG.md has no section '## [{version}] - DATE'")
    return section[1], section[2].strip() + "\n"


def check_final() -> None:
    """Raises NotReleasable if the checkout is not ready to be published."""
    if not _output("git", "rev-parse", "HEAD"):
        raise NotReleasable(f"git has no commit of {ROOT}: run 'git rev-parse HEAD' there for the cause")
    date, _ = release_notes(_text("CHANGELOG.md"), version())
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        raise NotReleasable(f"CHANGELOG.md has no date for {version()}, but '{date}'")
    if not install_commands.is_published():
        raise NotReleasable("PUBLISHED is False: run 'python tools/install_commands.py --published'")
    if changed := _output("git", "status", "--porcelain"):
        raise NotReleasable(f"the checkout has changes that are not committed:\n{changed}")


def set_tag(*, push: bool) -> None:
    """Sets the tag of the version on the current commit. Raises NotReleasable if another commit has it."""
    check_final()
    tag, commit = f"v{version()}", _output("git", "rev-parse", "HEAD")
    tagged = subprocess.run(["git", "rev-list", "-n", "1", tag, "--"], cwd=ROOT, capture_output=True, text=True)
    if tagged.returncode:
        _run("git", "tag", tag)
    elif tagged.stdout.strip() != commit:
        raise NotReleasable(f"the tag {tag} is on another commit, {tagged.stdout.strip()}")
    if push:
        _run("git", "push", "origin", f"refs/tags/{tag}")


# -- the files -------------------------------------------------------------------------------------------------------


def build(native: list[Path]) -> None:
    """Builds all packages in dist/. With `native`, copies these packages instead of building gantrymq-native."""
    for package in native:
        if package.resolve().is_relative_to(DIST.resolve()):
            raise NotReleasable(f"{package} is in dist/, which a build empties: move it to another directory")
        if not package.is_file():
            raise NotReleasable(f"there is no file {package}")
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    _build(ROOT)
    if native:
        for package in native:
            shutil.copy(package, DIST)
    elif not (ROOT / "native").exists():
        _say("gantrymq-native is not built: these sources do not have it")
    elif not _has_cargo():
        _say("gantrymq-native is not built: it needs cargo and a C compiler")
    else:
        _build(ROOT / "native")


def _has_cargo() -> bool:
    # rustup's cargo is on PATH but fails if no toolchain is installed.
    try:
        return subprocess.run(["cargo", "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _build(directory: Path) -> None:
    _say(f"building {directory.name if directory != ROOT else 'gantrymq'}")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, directory)


def packages() -> list[Path]:
    return sorted(path for path in DIST.iterdir() if path.name.endswith((".whl", ".tar.gz")))


def wheels() -> list[Path]:
    return [path for path in packages() if path.suffix == ".whl"]


def check_packages() -> None:
    _say("checking the packages")
    _run(sys.executable, "-m", "twine", "check", "--strict", *packages())
    _run(Path(sys.executable).parent / "check-wheel-contents", *wheels())
    tracked = set(_output("git", "ls-files").splitlines())
    if not tracked:
        _say("the packages are not compared with the files that git tracks: git lists none")
    faults = []
    for path in packages():
        names = contents(path)
        faults += [f"{path.name}: {fault}" for fault in unexpected(names, patterns(path))]
        if tracked:
            faults += [f"{path.name}: {name} is missing" for name in sorted(expected(path, tracked) - set(names))]
    if faults:
        raise NotReleasable("\n".join(faults))


def contents(path: Path) -> list[str]:
    """Returns the names of the files in a wheel, or in an sdist without its directory."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return [name for name in wheel.namelist() if not name.endswith("/")]
    with tarfile.open(path) as sdist:
        return [member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()]


def patterns(path: Path) -> list[str]:
    """Returns the patterns of `tools/release_files.toml` for a package."""
    kind = "wheel" if path.suffix == ".whl" else "sdist"
    found: list[str] = tomllib.loads(FILES.read_text(encoding="utf-8"))[path.name.partition("-")[0]][kind]
    return found


def unexpected(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Returns a text for each file without a pattern, and for each pattern without a file."""
    rest, faults = set(names), []
    for pattern in patterns:
        # `**` is any text, `*` is any text without a slash.
        parts = [re.escape(part).replace(r"\*", "[^/]*") for part in pattern.split("**")]
        if not (matching := {name for name in rest if re.fullmatch(".*".join(parts), name)}):
            faults.append(f"no file matches {pattern}")
        rest -= matching
    return [*faults, *(f"{name} is not in {FILES.name}" for name in sorted(rest))]


def expected(path: Path, tracked: set[str]) -> set[str]:
    """Returns the files that a package must have because git tracks them."""
    native = path.name.startswith("gantrymq_native")
    if path.suffix == ".whl":
        return set() if native else {name.removeprefix("src/") for name in tracked if name.startswith("src/")}
    if native:
        return {name.removeprefix("native/") for name in tracked if name.startswith("native/src/")}
    return {name for name in tracked if name.partition("/")[0] in COMPLETE}


# -- an installation -------------------------------------------------------------------------------------------------


def check_installation() -> None:
    """Installs the wheels into an empty environment, writes its SBOM and runs a newcomer's first steps."""
    with tempfile.TemporaryDirectory(prefix="release-") as directory:
        _say("installing the wheels into an empty environment")
        venv.create(directory, with_pip=False)
        python = Path(directory) / "bin" / "python"
        _install(python, *_installable())
        if any(path.name.startswith("gantrymq_native") for path in wheels()):
            check_native(python)
        write_sbom(python)
        _say("running the first steps of a new user")
        _install(python, "pytest", "pytest-asyncio")
        # Without the checkout's packages on the path, and without the settings of this machine's user.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [sys.executable, ROOT / "tools" / "newcomer.py", "--no-limits", "--python", python],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            check=False,
        )
        if done.returncode:
            raise NotReleasable("the first steps of a new user failed, see above")


def _installable() -> list[Path]:
    """Returns the wheels for this interpreter: wheels of other platforms can be in dist/, too."""
    from packaging.tags import sys_tags
    from packaging.utils import parse_wheel_filename

    supported = frozenset(sys_tags())
    return [path for path in wheels() if parse_wheel_filename(path.name)[3] & supported]


def _install(python: Path, *requirements: Path | str) -> None:
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *requirements)


def check_native(python: Path) -> None:
    """Raises NotReleasable if the wheels in an environment do not load gantrymq-native, or if its tests fail."""
    _say("testing gantrymq-native")
    code = "import gantrymq.kernels, sys; sys.exit(gantrymq.kernels.native is None and 'gantrymq-native is not loaded')"
    _run("env", "GANTRYMQ_NATIVE=1", python, "-I", "-c", code)
    # pytest and the packages of the tests come from this environment, everything else from the other one.
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernels")
    _run("env", "GANTRYMQ_NATIVE=1", f"PYTHONPATH={packages}", sys.executable, *tests)


def write_sbom(python: Path) -> None:
    """Writes the SBOM of an environment: gantrymq with the packages that it depends on."""
    path = DIST / f"gantrymq-{version()}.cdx.json"
    command = (Path(sys.executable).parent / "cyclonedx-py", "environment", "--output-reproducible")
    _run(*command, "--mc-type", "library", "--pyproject", ROOT / "pyproject.toml", "--of", "JSON", "-o", path, python)
    sbom = json.loads(path.read_text(encoding="utf-8"))
    for component in sbom["components"]:
        # pip records the file that a package was installed from: a path of this machine.
        component["externalReferences"] = [
            each for each in component.get("externalReferences", []) if not each["url"].startswith("file:")
        ]
    path.write_text(json.dumps(sbom, indent=2) + "\n", encoding="utf-8")
    names = {component["name"].lower() for component in sbom["components"]}
    needed = {re.split(r"[^\w-]", text)[0].lower() for text in _toml("pyproject.toml")["project"]["dependencies"]}
    if missing := needed - names:
        raise NotReleasable(f"{path.name} lacks {', '.join(sorted(missing))}")


def write_notes() -> None:
    _, text = release_notes(_text("CHANGELOG.md"), version())
    (DIST / "release-notes.md").write_text(text, encoding="utf-8")


# -- helpers ---------------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(f"release: {text}", file=sys.stderr, flush=True)


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads(_text(name))


def _run(*command: Path | str) -> None:
    # The commands of this environment come first: maturin's hooks call maturin by name.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    done = subprocess.run([str(each) for each in command], cwd=ROOT, env={**os.environ, "PATH": path}, check=False)
    if done.returncode:
        raise NotReleasable(f"{Path(command[0]).name} ended with {done.returncode}: {' '.join(map(str, command))}")


def _output(*command: str) -> str:
    """Returns the output of a command of git; nothing outside of a repository."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if not done.returncode else ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds the files of a release in dist/ and checks them.")
    parser.add_argument(
        "--native", nargs="+", type=Path, default=[], metavar="FILE", help="its packages, built already"
    )
    parser.add_argument("--final", action="store_true", help="fail first if the checkout is not ready to be published")
    parser.add_argument("--tag", action="store_true", help="only set the tag vVERSION on the current commit")
    parser.add_argument("--push", action="store_true", help="with --tag: push it to origin")
    options = parser.parse_args()
    try:
        if options.tag:
            set_tag(push=options.push)
            return 0
        if options.final:
            check_final()
        build(options.native)
        check_packages()
        check_installation()
        write_notes()
    except NotReleasable as e:
        _say(str(e))
        return 1
    _say(f"dist/ has {', '.join(sorted(path.name for path in DIST.iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
