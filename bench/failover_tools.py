"""Tools of a machine for faults of clocks and disks: libfaketime, libfiu, and a small disk for each broker."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: The libraries of Debian's packages libfiu0 and fiu-utils. The first one opens the pipe for fiu-ctrl.
LIBFIU = ("/usr/lib/fiu/fiu_run_preload.so", "/usr/lib/fiu/fiu_posix_preload.so")
#: Size of a small disk, in bytes. Its image is a sparse file. A run of an hour writes less.
DISK_BYTES = 4 << 30
#: Name of the file that takes the free space of a disk.
FILLER = "filler"
#: Shortest piece of the filler, in bytes.
BLOCK_BYTES = 1024
#: Timeout of mkfs, mount, umount and fiu-ctrl, in seconds.
COMMAND_S = 30.0


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that a run uses. A fault without its tool is left out."""

    #: Path of libfaketime: the clocks of brokers can be wrong.
    faketime: Path | None = None
    #: True if brokers load libfiu: their fsync can fail.
    libfiu: bool = False
    #: True if each broker has a small disk, which can be full. Needs root.
    small_disks: bool = False


def has_libfiu() -> bool:
    return shutil.which("fiu-ctrl") is not None and all(map(os.path.exists, LIBFIU))


def can_mount() -> bool:
    """Returns true if this process can make a small disk."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            with mounted(Path(directory) / "disk"):
                return True
        except (OSError, subprocess.SubprocessError):
            return False


@contextmanager
def mounted(directory: Path) -> Iterator[None]:
    """Mounts a new small disk at `directory`. Its image, DIRECTORY.img, stays."""
    image = directory.with_name(f"{directory.name}.img")
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    # No blocks for root only. A small journal and few inodes keep the image small.
    _run("mkfs.ext4", "-q", "-m", "0", "-J", "size=8", "-i", "65536", str(image))
    directory.mkdir()
    _run("mount", "-o", "loop", str(image), str(directory))
    try:
        yield
    finally:
        # Succeeds also if a process still has a file open.
        _run("umount", "--lazy", str(directory))


def fill(directory: Path) -> None:
    """Takes all free space of the disk at `directory`, without writing to it."""
    stat = os.statvfs(directory)
    size, step = 0, stat.f_bavail * stat.f_frsize
    with (directory / FILLER).open("wb") as file:
        while step >= BLOCK_BYTES:
            try:
                os.posix_fallocate(file.fileno(), size, step)
                size += step
            except OSError as e:
                if e.errno != errno.ENOSPC:
                    raise
                step //= 2


def free(directory: Path) -> None:
    """Frees the space that `fill` took."""
    (directory / FILLER).unlink()


def fsync_variables(pipe: Path) -> dict[str, str]:
    """Returns the variables of a process whose fsync can fail. libfiu appends the process id to the name `pipe`."""
    return {"LD_PRELOAD": ":".join(LIBFIU), "FIU_CTRL_FIFO": str(pipe)}


def fail_fsync(pipe: Path, pid: int) -> None:
    """Makes every fsync and fdatasync of a process fail with EIO until it ends."""
    _run("fiu-ctrl", "-f", str(pipe), "-c", f"enable name=posix/io/sync/*,failinfo={errno.EIO}", str(pid))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=COMMAND_S)
