"""Replaces the functions of the real system.

Call `install` before an import of gantrymq modules other than `system`.

Each function uses the clock or the disk of the host whose process calls it. There is one world at a time, created by
`begin`. A call without a world or from outside of a process is an error, because the run would depend on the real
machine.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from stat import S_ISDIR, S_ISREG
from typing import Any

from gantrymq.system import clock, files, network, randomness, threads
from sim.disk import PLENTY, Disk
from sim.loop import SimLoop
from sim.machine import PROCESS, Host
from sim.network import SimSocket

#: Start time of a simulation in seconds since 1970: 2026-01-01.
EPOCH_S = 1_767_225_600.0
_DESCRIPTORS = 4096
_MEMORY_BYTES = 1 << 30
#: Longest delay before a notified thread continues, in seconds.
_WAKE_S = 0.001


class World:
    """One simulation: its loop, its random numbers, and its hosts by address."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.loop = SimLoop(Random(f"{seed} network"))
        self.chance = Random(f"{seed} programs")
        self.hosts: dict[str, Host] = {}
        self.disks: dict[str, Disk] = {}
        #: True while the work of a background thread runs. The loop of its process may run meanwhile.
        self.is_in_worker = False
        #: Process ids by process name.
        self.pids: dict[str, int] = {}

    def host(self, name: str, address: str) -> Host:
        host = self.hosts[address] = Host(self.loop, name, address)
        self.disks[address] = Disk(Random(f"{self.seed} disk of {name}"))
        return host


_world: World | None = None
#: Loop of the world. A separate variable, because the clock is read a hundred times for each message.
_loop: SimLoop


def begin(seed: str) -> World:
    """Creates a world and makes it the current one."""
    global _world, _loop
    _world = World(seed)
    _loop = _world.loop
    return _world


def _now() -> World:
    assert _world is not None, "nothing is simulated now"
    return _world


def _host() -> Host:
    process = PROCESS.get()
    assert process is not None, "the simulator itself has no clock and no files"
    return process.host


def _disk() -> Disk:
    return _now().disks[_host().address]


# -- clock ------------------------------------------------------------------------------------------------------


def _monotonic() -> float:
    return _loop.now


def _wall_s() -> float:
    process = PROCESS.get()
    assert process is not None, "the simulator itself has no clock"
    return process.host.wall_s(EPOCH_S)


def _wall_ns() -> int:
    return round(_wall_s() * 1e9)


def _now_ms() -> int:
    process = PROCESS.get()
    assert process is not None, "the simulator itself has no clock"
    return int(process.host.wall_s(EPOCH_S) * 1000)


def _sleep(seconds: float) -> None:
    """Does nothing: the work of a thread runs within one loop iteration, which takes no time."""


# -- files ------------------------------------------------------------------------------------------------------


@dataclass
class _Entry:
    """Replaces `os.DirEntry`."""

    name: str
    path: str

    def stat(self) -> os.stat_result:
        return _disk().stat(self.path)

    def is_dir(self) -> bool:
        return S_ISDIR(self.stat().st_mode)

    def is_file(self) -> bool:
        return S_ISREG(self.stat().st_mode)


@contextmanager
def _scandir(path: Path) -> Iterator[list[_Entry]]:
    yield [_Entry(name, f"{path}/{name}") for name in _disk().names(path)]


def _read_bytes(path: Path, most: int = -1) -> bytes:
    fd = _disk().open(path, os.O_RDONLY)
    try:
        return _disk().pread(fd, _disk().fstat(fd).st_size if most < 0 else most, 0)
    finally:
        _disk().close(fd)


def _write(path: Path, data: bytes) -> None:
    fd = _disk().open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        _disk().pwrite(fd, data, 0)
    finally:
        _disk().close(fd)


def _write_beside(path: Path, data: bytes, mode: int | None = None) -> Path:
    temporary = path.with_name(path.name + ".tmp")
    _disk().make_directory(path.parent, lasting=True)
    _write(temporary, data)
    fd = _disk().open(temporary, os.O_RDWR)
    try:
        _disk().fsync(fd)
    finally:
        _disk().close(fd)
    return temporary


def _unlink(path: Path, *, missing_ok: bool = False) -> None:
    try:
        _disk().unlink(path)
    except FileNotFoundError:
        if not missing_ok:
            raise


def _children(path: Path) -> Iterator[Path]:
    return iter([path / name for name in _disk().names(path)])


def _below(path: Path) -> Iterator[Path]:
    if _disk().is_directory(path):
        for child in _children(path):
            yield child
            yield from _below(child)


def _remove_tree(path: Path) -> None:
    if _disk().is_directory(path):
        for child in _children(path):
            if _disk().is_directory(child):
                _remove_tree(child)
            else:
                _disk().unlink(child)
        _disk().remove_directory(path)


def _disk_use(path: Path) -> files.DiskUse:
    disk = _disk()
    # The sum over all files is slow, and only matters for a limited disk.
    used = disk.used() if disk.faults.capacity < PLENTY else 0
    return files.DiskUse(disk.faults.capacity, used, max(disk.faults.capacity - used, 0))


def _set_descriptor_limit(limit: int) -> None:
    """Does nothing: the limit is constant."""


def _is_locked_by_java(fd: int) -> bool:
    return _disk().is_locked(fd)


# -- network ----------------------------------------------------------------------------------------------------


def _bind(host: str, port: int, *, shared: bool = False) -> SimSocket:
    assert not shared, "a host runs one process at a time"
    return _now().loop.network.bind(host, port)


def _process_id() -> int:
    process = PROCESS.get()
    assert process is not None
    return _now().pids.setdefault(process.name, 1000 + len(_now().pids))


# -- threads ----------------------------------------------------------------------------------------------------


class _Worker:
    """Replaces `threads.Worker`. Each step runs in the event loop."""

    def __init__(
        self, name: str, step: Callable[[], float | None], pause_s: float, died: Callable[[BaseException], None]
    ) -> None:
        self._step = step
        self._pause_s = pause_s
        self._died = died
        self._timer: Any = None
        self._is_running = False
        self._is_over = False

    def start(self) -> None:
        self._is_running = True
        self._again(self._pause_s)

    @property
    def is_alive(self) -> bool:
        return self._is_running and not self._is_over

    def wake(self) -> None:
        if self._is_running and not self._is_over:
            self._again(_now().chance.uniform(0, _WAKE_S + _host().thread_s))

    def join(self) -> None:
        while self._is_running and not self._is_over:
            self._run()

    def _again(self, pause_s: float) -> None:
        loop = _now().loop
        if self._timer is not None:
            pause_s = min(pause_s, self._timer.when() - loop.time())
            self._timer.cancel()
        self._timer = loop.call_later(pause_s, self._turn)

    def _turn(self) -> None:
        """Runs a step as the background thread. `join` calls `_run` directly, because it blocks its caller."""
        world = _now()
        world.is_in_worker = True
        try:
            self._run()
        finally:
            world.is_in_worker = False

    def _run(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_over:
            return
        try:
            pause_s = self._step()
        except BaseException as e:
            self._is_over = True
            self._died(e)
            return
        if pause_s is None:
            self._is_over = True
        else:
            self._again(pause_s)


def _of_disk(name: str) -> Callable[..., Any]:
    method = getattr(Disk, name)

    def call(*args: Any) -> Any:
        return method(_disk(), *args)

    return call


def _of_chance(name: str) -> Callable[..., Any]:
    method = getattr(Random, name)

    def call(*args: Any, **options: Any) -> Any:
        return method(_now().chance, *args, **options)

    return call


_CLOCK = {
    "monotonic": _monotonic,
    "now_ms": _now_ms,
    "sleep": _sleep,
    "thread_time": _monotonic,
    "time": _wall_s,
    "time_ns": _wall_ns,
    "localtime": time.gmtime,
}
_FILES: dict[str, Any] = {
    "allocate": _of_disk("posix_fallocate"),
    "below": _below,
    "children": _children,
    "chmod": lambda path, mode: None,
    "close": _of_disk("close"),
    "copy": lambda source, target: _write(target, _read_bytes(source)),
    "descriptor_limits": lambda: (_DESCRIPTORS, _DESCRIPTORS),
    "disk_use": _disk_use,
    "exists": _of_disk("exists"),
    "fdatasync": _of_disk("fsync"),
    "fstat": _of_disk("fstat"),
    "fsync": _of_disk("fsync"),
    "ftruncate": _of_disk("ftruncate"),
    "is_directory": _of_disk("is_directory"),
    "is_file": lambda path: _disk().exists(path) and not _disk().is_directory(path),
    "is_locked_by_java": _is_locked_by_java,
    "lock_as_java": _of_disk("lock"),
    "lock_whole": _of_disk("lock"),
    "lseek": _of_disk("lseek"),
    "make_directory": _of_disk("make_directory"),
    "make_lasting_directory": lambda path, mode=0o777: _disk().make_directory(path, lasting=True),
    "map_file": _of_disk("map"),
    "map_to_read": _of_disk("map"),
    "memory": lambda: _MEMORY_BYTES,
    "open": _of_disk("open"),
    "open_nothing": lambda: _disk().open("/null", os.O_RDWR | os.O_CREAT),
    "pread": _of_disk("pread"),
    "pwrite": _of_disk("pwrite"),
    "read_bytes": _read_bytes,
    "remove_directory": _of_disk("remove_directory"),
    "remove_tree": _remove_tree,
    "rename": _of_disk("rename"),
    "scandir": _scandir,
    "set_descriptor_limit": _set_descriptor_limit,
    "stat": _of_disk("stat"),
    "sync_entries": _of_disk("fsync"),
    "target": lambda path: path,
    "unlink": _unlink,
    "write": _write,
    "write_beside": _write_beside,
}
_NETWORK: dict[str, Any] = {
    "bind": _bind,
    "host_name": lambda: _host().name,
    "local_ip": lambda: _host().address,
    "process_id": _process_id,
}
_IN_PARALLEL = threads.in_parallel
_CHANCE = [name for name in vars(randomness) if name.islower() and hasattr(Random, name)]


def install() -> None:
    """Replaces the functions of the real system by these."""
    # Skip asyncio's weak set of all tasks. Nothing uses it here, and adding to it takes as long as the task itself. Its
    # second name is that of Python 3.12 and 3.13. Python 3.14 has no such set.
    for name in ("_all_tasks", "_scheduled_tasks"):
        if (tasks := getattr(asyncio.tasks, name, None)) is not None:
            tasks.add = lambda task: None
    for module, functions in ((clock, _CLOCK), (files, _FILES), (network, _NETWORK)):
        for name, function in functions.items():
            assert hasattr(module, name), f"{module.__name__} has no {name}"
            setattr(module, name, function)
    for name in _CHANCE:
        setattr(randomness, name, _of_chance(name))
    randomness.secret_bytes = _of_chance("randbytes")
    threads.Worker = _Worker  # type: ignore[assignment, misc]
    threads.in_parallel = lambda work, items, most: _IN_PARALLEL(work, items, 1)
