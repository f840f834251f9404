"""Runs the steps of deploy/Containerfile in empty root directories, without a container runtime.

    python tools/image_steps.py [--python /usr/local] [--keep DIRECTORY]

Each stage gets a root directory with the base of its image: the programs of this machine in /usr, read-only and without
compilers, and the Python of --python in /usr/local. `COPY` copies into it, and `RUN` runs in it (chroot, in a mount
namespace of its own). At the end, the image's user starts a NameServer with the image's entry point, the health check
succeeds, and SIGTERM stops the server.

Needs Linux, root, `unshare` and a package index.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
#: Programs that a stage cannot run.
COMPILER = re.compile(r"(.*-)?(gcc|g\+\+|cpp|cc|c\+\+|clang|clang\+\+|rustc|cargo|ld|as)(-[0-9.]+)?")
#: Variables of this machine that a package index can need.
PASSED = re.compile(r"PIP_.*|SSL_CERT_.*|REQUESTS_CA_BUNDLE|(https?|no|all)_proxy", re.IGNORECASE)
#: The check of the finished image. Its user runs it.
CHECK = """
umask 077
cat >/var/lib/gantrymq/namesrv.conf <<END
listenPort=0
metricsPort={port}
bindAddress=127.0.0.1
kvConfigPath=/var/lib/gantrymq/kvConfig.json
END
export GANTRY_HEALTH_PORT={port}
{entry} namesrv -c /var/lib/gantrymq/namesrv.conf &
server=$!
for try in $(seq 120); do
    if {health} 2>/dev/null; then break; fi
    sleep 0.5
done
{health}
kill -TERM $server
wait $server
"""


class Step(NamedTuple):
    """An instruction, such as COPY, and its arguments."""

    name: str
    text: str


class Stage(NamedTuple):
    """A stage of a Containerfile. `name` is its name in `FROM ... AS name`, or empty."""

    image: str
    name: str
    steps: list[Step]


def stages_of(text: str) -> list[Stage]:
    """Parses a Containerfile. Raises ValueError for a step before the first FROM."""
    stages: list[Stage] = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(" ")
        if name == "FROM":
            image, _, alias = rest.partition(" AS ")
            stages.append(Stage(image.strip(), alias.strip(), []))
        elif not stages:
            raise ValueError(f"{line!r} precedes FROM")
        else:
            stages[-1].steps.append(Step(name, rest.strip()))
    return stages


def context_files(ignore: str) -> list[Path]:
    """Returns the files of the build context, relative to the checkout: those that .dockerignore keeps."""
    lines = [line for line in ignore.splitlines() if line and not line.startswith("#")]
    kept = [line.removeprefix("!") for line in lines if line.startswith("!")]
    left_out = [line for line in lines if line.startswith("**/")]
    found: list[Path] = []
    for name in kept:
        path = ROOT / name
        found += [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    relative = [path.relative_to(ROOT) for path in found]
    return [
        path
        for path in relative
        if not any(fnmatch.fnmatch(part, pattern[3:]) for pattern in left_out for part in path.parts)
    ]


class Root:
    """The root directory of a stage."""

    def __init__(self, directory: Path, python: Path) -> None:
        self.directory = directory
        self._python = python
        self.environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root"}
        for name in ("usr", "dev", "proc", "root", "tmp", "opt", "home", "var/lib"):
            (directory / name).mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            (directory / name).symlink_to(f"usr/{name}")
        shutil.copytree("/etc", directory / "etc", symlinks=True, ignore_dangling_symlinks=True)

    def run(self, script: str, user: str = "0") -> None:
        """Runs a shell script in the root. Raises CalledProcessError if it fails."""
        root = shlex.quote(str(self.directory))
        hidden = " ".join(
            shlex.quote(f"{self.directory}/usr/bin/{path.name}")
            for path in Path("/usr/bin").iterdir()
            if COMPILER.fullmatch(path.name) and not path.is_symlink()
        )
        mounts = f"""
mount --rbind /usr {root}/usr && mount -o remount,bind,ro {root}/usr
mount --bind {shlex.quote(str(self._python))} {root}/usr/local && mount -o remount,bind,ro {root}/usr/local
for one in {hidden}; do mount --bind /dev/null "$one"; done
mount --rbind /dev {root}/dev
mount -t proc proc {root}/proc
chroot {root} ldconfig
exec chroot --userspec={user}:{user} {root} /bin/sh -ec {shlex.quote(script)}
"""
        given = {name: value for name, value in os.environ.items() if PASSED.fullmatch(name)}
        subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-ec", mounts],
            check=True,
            env=given | self.environment,
        )

    def copy(self, source: Path, files: Iterable[Path], target: str) -> None:
        """Copies files, which are relative to `source`. A target that ends with / is a directory."""
        for path in files:
            to = self.directory / target.lstrip("/") / path
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, to)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, default=Path(sys.base_prefix), help="prefix of the Python of the image")
    parser.add_argument("--keep", type=Path, help="keep the root directories here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run(options.keep or Path(directory), options.python)
    print("all steps of the image have run")
    return 0


def run(directory: Path, python: Path) -> None:
    roots: dict[str, Root] = {}
    context = context_files((ROOT / ".dockerignore").read_text())
    for number, stage in enumerate(stages_of(CONTAINERFILE.read_text())):
        root = roots[stage.name or str(number)] = Root(directory / f"root{number}", python)
        user, entry, health = "0", "", ""
        for step in stage.steps:
            print(f"{step.name} {step.text}", flush=True)
            if step.name == "RUN":
                root.run(step.text, user)
            elif step.name == "ENV":
                for pair in shlex.split(step.text):
                    name, _, value = pair.partition("=")
                    root.environment[name] = value.replace("$PATH", root.environment["PATH"])
            elif step.name == "COPY":
                copy(step.text, root, roots, context)
            elif step.name == "USER":
                user = step.text
            elif step.name == "ENTRYPOINT":
                entry = shlex.join(json.loads(step.text))
            elif step.name == "HEALTHCHECK":
                health = shlex.join(json.loads(step.text.partition("CMD ")[2]))
        if entry:
            root.run(CHECK.format(entry=entry, health=health, port=free_port()), user)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def copy(text: str, root: Root, roots: dict[str, Root], context: list[Path]) -> None:
    stage = re.match(r"--from=(\S+) ", text)
    source, target = text[stage.end() :].split() if stage else text.split()
    if stage:
        shutil.copytree(
            roots[stage[1]].directory / source.lstrip("/"), root.directory / target.lstrip("/"), symlinks=True
        )
    elif source == ".":
        root.copy(ROOT, context, target)
    elif Path(source) in context:
        root.copy((ROOT / source).parent, [Path(Path(source).name)], target)
    else:
        raise ValueError(f"{source} is not in the build context")


if __name__ == "__main__":
    sys.exit(main())
