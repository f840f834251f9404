"""Faults of a failover: the servers that each one hits, its begin and its end.

| word | effect |
|---|---|
| killed, ended, stopped | SIGKILL; SIGTERM; SIGSTOP and later SIGCONT |
| cut off | no bytes pass between this server and all others, including clients |
| cut, half-open | no bytes pass over one link, in both directions or in one |
| slow, lossy | bytes pass late, all or some of them; see failover_links.py |
| no file may grow | each write beyond 1,000 bytes of a file fails with EFBIG |
| disk full | a file takes all free space of the disk of this broker: writes fail with ENOSPC |
| fsync fails | each fsync and fdatasync fails with EIO; at the end, the broker is restarted |
| clock ahead, behind | the clock of the server is wrong by CLOCK_S |
| handed over | `electMaster` names another broker of the sync-state set |
| upgraded | SIGTERM to the next server of an earlier version, and start of the present one |
"""

from __future__ import annotations

import random
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass

from failover_links import ANYBODY
from failover_servers import BROKERS, Servers
from failover_tools import fill, free

#: Shortest and longest absence of a server after sends continue, or of a link, in seconds.
AWAY_S = (0.0, 3.0)
#: The same for long faults: every lease and heartbeat expires in this time.
LONG_S = (16.0, 22.0)
#: The same for faults that leave the server in service.
SOME_S = (3.0, 10.0)
#: Largest file of a server that may not write, in bytes.
FILE_LIMIT = 1000
#: Error of a wrong clock, in seconds.
CLOCK_S = 60
#: Clients of bench/faults.py that faults hit.
CLIENTS = ("load", "concurrent", "orderly", "pop")
#: The fault that does not occur at random: bench/faults.py upgrades each server once.
UPGRADED = "upgraded"


@dataclass(frozen=True, slots=True)
class Hit:
    """One fault of a run, and the servers that it hits."""

    fault: Fault
    names: tuple[str, ...]

    @property
    def label(self) -> str:
        return "-".join(self.names)

    @property
    def former_master(self) -> str | None:
        """The broker that must be replaced before sends count as restored."""
        return self.names[0] if self.fault.replaces_master else None


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault. `whom` are roles: master, slave, controller, namesrv, etcd, or outdated.

    With `returns_first`, this server returns before sends are expected to continue.
    """

    whom: tuple[str, ...]
    begin: Callable[[Servers, tuple[str, ...], random.Random], None] | None
    end: Callable[[Servers, tuple[str, ...]], None] | None
    away_s: tuple[float, float] = AWAY_S
    replaces_master: bool = False
    returns_first: str = ""
    #: True if a correct cluster stores no delayed message and no transaction again.
    is_orderly: bool = False


def _kill(servers: Servers, names: tuple[str, ...], _: random.Random) -> None:
    for name in names:
        servers.kill(name)


def _terminate(servers: Servers, names: tuple[str, ...], _: random.Random) -> None:
    for name in names:
        servers.terminate(name)


def _start(servers: Servers, names: tuple[str, ...]) -> None:
    for name in names:
        if not servers.is_running(name):
            servers.start(name)


def _stop(servers: Servers, names: tuple[str, ...], _: random.Random) -> None:
    for name in names:
        servers.send_signal(name, signal.SIGSTOP)


def _continue(servers: Servers, names: tuple[str, ...]) -> None:
    for name in names:
        servers.send_signal(name, signal.SIGCONT)


def _cut_off(servers: Servers, names: tuple[str, ...], _: random.Random) -> None:
    servers.links.cut(names[0])


def _heal(servers: Servers, names: tuple[str, ...]) -> None:
    servers.links.heal(names[0])


def _cut_link(servers: Servers, names: tuple[str, ...], _: random.Random) -> None:
    servers.links.cut_link(*names)


def _half_open(servers: Servers, names: tuple[str, ...], chance: random.Random) -> None:
    servers.links.cut_link(*chance.sample(names, 2), half_open=True)


def _heal_link(servers: Servers, names: tuple[str, ...]) -> None:
    servers.links.heal_link(*names)


def _slow(servers: Servers, names: tuple[str, ...], _: random.Random) -> None:
    servers.links.slow_link(*(*names, ANYBODY)[:2])


def _lossy(servers: Servers, names: tuple[str, ...], _: random.Random) -> None:
    servers.links.lossy_link(*(*names, ANYBODY)[:2])


def _limit_files(servers: Servers, names: tuple[str, ...], _: random.Random) -> None:
    for name in names:
        _, hard = resource.prlimit(servers.processes[name].pid, resource.RLIMIT_FSIZE)
        resource.prlimit(servers.processes[name].pid, resource.RLIMIT_FSIZE, (FILE_LIMIT, hard))


def _unlimit_files(servers: Servers, names: tuple[str, ...]) -> None:
    for name in names:
        # A broker can have ended after the errors.
        if servers.is_running(name):
            _, hard = resource.prlimit(servers.processes[name].pid, resource.RLIMIT_FSIZE)
            resource.prlimit(servers.processes[name].pid, resource.RLIMIT_FSIZE, (hard, hard))
        else:
            servers.start(name)


def _fill_disk(servers: Servers, names: tuple[str, ...], _: random.Random) -> None:
    fill(servers.directory / names[0])


def _free_disk(servers: Servers, names: tuple[str, ...]) -> None:
    free(servers.directory / names[0])
    # A broker can have ended after the errors.
    _start(servers, names)


def _fail_fsync(servers: Servers, names: tuple[str, ...], _: random.Random) -> None:
    servers.fail_fsync(names[0])


def _restart(servers: Servers, names: tuple[str, ...]) -> None:
    if servers.is_running(names[0]):
        servers.terminate(names[0])
    servers.start(names[0])


def _set_clock_ahead(servers: Servers, names: tuple[str, ...], _: random.Random) -> None:
    servers.set_clock(names[0], CLOCK_S)


def _set_clock_behind(servers: Servers, names: tuple[str, ...], _: random.Random) -> None:
    servers.set_clock(names[0], -CLOCK_S)


def _correct_clock(servers: Servers, names: tuple[str, ...]) -> None:
    servers.set_clock(names[0], 0)


def _kill_members(servers: Servers, names: tuple[str, ...], _: random.Random) -> None:
    for name in names:
        servers.etcd[int(name.removeprefix("etcd"))].kill()


def _start_members(servers: Servers, names: tuple[str, ...]) -> None:
    for name in names:
        servers.etcd[int(name.removeprefix("etcd"))].start_again()


_FAULTS_OF_SERVERS = {
    "killed": Fault(("master",), _kill, _start, replaces_master=True),
    "ended": Fault(("master",), _terminate, _start, replaces_master=True, is_orderly=True),
    "stopped": Fault(("master",), _stop, _continue, replaces_master=True),
    "cut off": Fault(("master",), _cut_off, _heal, replaces_master=True),
    "handed over": Fault(("master",), None, None, replaces_master=True, is_orderly=True),
    "slave killed": Fault(("slave",), _kill, _start),
    "slave ended": Fault(("slave",), _terminate, _start, is_orderly=True),
    "slave stopped": Fault(("slave",), _stop, _continue, LONG_S),
    "slave cut off": Fault(("slave",), _cut_off, _heal, LONG_S),
    "controller killed": Fault(("controller",), _kill, _start),
    "controller stopped": Fault(("controller",), _stop, _continue, LONG_S),
    "controller away": Fault(("controller",), _kill, _start, LONG_S),
    "controller and master killed": Fault(
        ("master", "controller"), _kill, _start, replaces_master=True, returns_first="controller"
    ),
    "link to controller cut": Fault(("master", "controller"), _cut_link, _heal_link, LONG_S),
    "link to controller half-open": Fault(("master", "controller"), _half_open, _heal_link, LONG_S),
    "link to slave cut": Fault(("master", "slave"), _cut_link, _heal_link, LONG_S),
    "link to slave half-open": Fault(("master", "slave"), _half_open, _heal_link, LONG_S),
    "link to NameServer cut": Fault(("master", "namesrv"), _cut_link, _heal_link, LONG_S),
    "link to NameServer half-open": Fault(("master", "namesrv"), _half_open, _heal_link, LONG_S),
    "member killed": Fault(("etcd",), _kill_members, _start_members),
    "two members killed": Fault(("etcd", "etcd"), _kill_members, _start_members, LONG_S),
}
_FAULTS_OF_RUNS = {
    "slow": Fault(("master",), _slow, _heal, SOME_S),
    "lossy": Fault(("master",), _lossy, _heal, SOME_S),
    "link to slave slow": Fault(("master", "slave"), _slow, _heal_link, SOME_S),
    "link to slave lossy": Fault(("master", "slave"), _lossy, _heal_link, SOME_S),
    "no file may grow": Fault(("master",), _limit_files, _unlimit_files, SOME_S),
    "slave's files may not grow": Fault(("slave",), _limit_files, _unlimit_files, SOME_S),
    "disk full": Fault(("master",), _fill_disk, _free_disk, SOME_S),
    "slave's disk full": Fault(("slave",), _fill_disk, _free_disk, SOME_S),
    "fsync fails": Fault(("master",), _fail_fsync, _restart, SOME_S),
    "slave's fsync fails": Fault(("slave",), _fail_fsync, _restart, SOME_S),
    "clock ahead": Fault(("master",), _set_clock_ahead, _correct_clock, SOME_S),
    "clock behind": Fault(("master",), _set_clock_behind, _correct_clock, SOME_S),
    "NameServer killed": Fault(("namesrv",), _kill, _start),
    "NameServer ended": Fault(("namesrv",), _terminate, _start),
    "NameServer stopped": Fault(("namesrv",), _stop, _continue),
    "proxy killed": Fault(("proxy",), _kill, _start),
    "proxy ended": Fault(("proxy",), _terminate, _start),
    "proxy stopped": Fault(("proxy",), _stop, _continue),
    **{f"{client} killed": Fault((client,), _kill, _start) for client in CLIENTS},
    **{f"{client} stopped": Fault((client,), _stop, _continue) for client in CLIENTS},
    # Not orderly: the server that ends is of the earlier version, which may have no delivery journal.
    UPGRADED: Fault(("outdated",), _terminate, _start),
}

FAULTS = _FAULTS_OF_SERVERS | _FAULTS_OF_RUNS
#: Faults that only bench/faults.py has, and those of them that need libfaketime, a small disk, or libfiu.
OF_FAULT_RUNS = tuple(_FAULTS_OF_RUNS)
OF_CLOCKS = ("clock ahead", "clock behind")
OF_DISKS = ("disk full", "slave's disk full")
OF_FSYNC = ("fsync fails", "slave's fsync fails")
#: Faults that need several controllers with their state in etcd.
OF_ETCD = tuple(name for name, fault in FAULTS.items() if "etcd" in fault.whom)


def slaves(master: str) -> tuple[str, ...]:
    return tuple(name for name in BROKERS if name != master)
