"""Measures an empty slave that copies a master's log, and plain copies of as many bytes; prints a Markdown table.

    .venv/bin/python bench/catching_up.py [--gib N] [--size BYTES] [--limit-mib N] [--directory DIR] [--controller]

Everything runs on this machine. The slave copies the whole log first. With syncFromLastFile, it copies only the last
file (at most 1 GiB). The measured time starts with the slave's process. Two figures show the upper limit: a copy of the
log by dd(1), and a transfer by sendfile(2) over loopback to a process that writes a file. All runs begin with the log
in the page cache and no data to write back.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

# `systems` comes first: it puts interop on the import path.
import systems
from controllers import gantry_controller, in_sync
from disk_space import check_capacity
from measures import figure, progress
from result_files import add_out, recorded
from servers import Server, call, gantry_command
from systems import GANTRY, Cluster

from gantrymq.protocol.bodies.ha_status import HaStatus
from gantrymq.protocol.codes import RequestCode

TOPIC = "caught_up"
QUEUES = 8
GIB = 1 << 30
MIB = 1 << 20
#: Disk space of a message besides its body, in bytes: log, consume queue and index. Derived from the file formats.
MESSAGE_BYTES = 240
_BATCH_BYTES = 256 * 1024
_READ_BYTES = MIB
_NO_PROGRESS_S = 60.0
_ELECTED_WITHIN_S = 30.0


@dataclass(frozen=True)
class Row:
    """One way to copy: bytes; seconds until all is copied, and until it is on disk; CPU seconds by process."""

    what: str
    size: int
    took_s: float
    on_disk_s: float
    cpu_s: dict[str, float]

    def line(self) -> str:
        gib, mib = self.size / GIB, self.size / MIB
        cpu = ", ".join(f"{who} {figure(s / gib)}" for who, s in self.cpu_s.items())
        return f"| {self.what} | {mib:,.0f} | {mib / self.took_s:,.0f} | {mib / self.on_disk_s:,.0f} | {cpu} |"


def main() -> None:
    args = parse_args()
    with ExitStack() as stack:
        stack.enter_context(recorded(args, "bench/catching_up.py"))
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.directory)))
        check_capacity(root, needed_bytes(args), "fewer --gib, or another --directory")
        of_slave: dict[str, object] = {"brokerRole": "SLAVE", "brokerId": 1}
        of_master: dict[str, object] = {}
        if args.controller:
            controller = gantry_controller(root / "controller")
            stack.callback(controller.kill)
            of_slave = of_master = {
                "enableControllerMode": "true",
                "controllerAddr": controller.address,
                "brokerRole": "SLAVE",
                "brokerId": -1,
            }
        limit = {"haFlowControlEnable": "true", "maxHaTransferByteInSecond": args.limit_mib * MIB}
        master = stack.enter_context(systems.cluster(GANTRY, root, **limit, **of_master))
        if args.controller:
            wait_until_elected(controller, master.broker)
        size = fill(master, args)
        print(
            f"{platform.python_version()}, {os.cpu_count()} CPUs, {size / GIB:.2f} GiB, messages of {args.size} B, "
            f"maxHaTransferByteInSecond {args.limit_mib:,} MiB{', with a controller' if args.controller else ''}\n"
        )
        print("| what | MiB | MiB/s | MiB/s, on the disk | CPU, s per GiB |")
        print("|---|---|---|---|---|")
        for name, from_last_file in (("slave, whole log", "false"), ("slave, last file", "true")):
            keys = of_slave | {"syncFromLastFile": from_last_file}
            print(catch_up(name, master, root / "slave", size, keys).line(), flush=True)
        log = root / "GantryMQ-broker" / "store" / "commitlog"
        for what, copy in (("dd, file to file", copy_files), ("sendfile over loopback, to a file", send_files)):
            print(copied(what, copy, log_files(log, size), root / "copy", size).line(), flush=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--gib", type=gib, default=2.0, help="of bodies, at most 10 (%(default)s)")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body (%(default)s)")
    parser.add_argument(
        "--limit-mib",
        type=int,
        default=100_000,
        help="maxHaTransferByteInSecond in MiB; 100 is the default's (%(default)s)",
    )
    parser.add_argument("--controller", action="store_true", help="both brokers are in controller mode")
    parser.add_argument("--directory", type=Path, help="where the logs go (the system's temporary directory)")
    add_out(parser)
    return parser.parse_args()


def gib(text: str) -> float:
    number = float(text)
    if not 0 < number <= 10:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 10")
    return number


def needed_bytes(args: argparse.Namespace) -> int:
    """Returns the disk space of two copies, each with one preallocated file."""
    return int(2 * (args.gib * GIB * (1 + MESSAGE_BYTES / args.size) + 2 * GIB))


def wait_until_elected(controller: Server, broker: Server) -> None:
    """Waits until the controller has elected the broker. Raises RuntimeError after a timeout."""
    deadline = time.monotonic() + _ELECTED_WITHIN_S
    while list(in_sync(controller.address).values()) != [broker.address]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the broker isn't master:\n{broker.log()}")
        time.sleep(0.05)


def fill(master: Cluster, args: argparse.Namespace) -> int:
    """Sends messages until the log is large enough. Returns its size in bytes."""
    master.make_topics([TOPIC], QUEUES)
    batch = max(1, min(_BATCH_BYTES // args.size, 1024))
    count = max(1, round(args.gib * GIB / args.size))
    options = ["-n", master.namesrv.address, "-t", TOPIC, "-q", str(count), "-s", str(args.size)]
    progress(f"{count:,} messages of {args.size} B")
    subprocess.run(
        gantry_command("bench", "produce", "-i", "0", "-w", "8", "-b", str(batch), *options),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    master.settled_cpu_seconds()
    return ha_status(master.broker).master_commit_log_max_offset


def ha_status(broker: Server) -> HaStatus:
    return HaStatus.decode(call(broker.address, RequestCode.GET_BROKER_HA_STATUS).body)


def catch_up(name: str, master: Cluster, directory: Path, size: int, keys: dict[str, object]) -> Row:
    """Measures a slave with these configuration keys, from its start until it has the whole log. Deletes its files."""
    os.sync()
    master_before_s = master.cpu_seconds()
    began = time.perf_counter()
    slave = GANTRY.start_broker(directory, master.namesrv.address, keys)
    try:
        progress(f"{name}: started")
        wait_until_it_has(slave, size)
        took_s = time.perf_counter() - began
        os.sync()
        on_disk_s = time.perf_counter() - began
        # Consume queues are complete with the log. The index is built later.
        slave_s = systems.settled_cpu_seconds(slave.process.pid, "the slave")
        cpu_s = {"master": master.settled_cpu_seconds() - master_before_s, "slave with its index": slave_s}
        first = min(int(file.name) for file in (directory / "store" / "commitlog").iterdir())
    finally:
        slave.kill()
        shutil.rmtree(directory)
    return Row(name, size - first, took_s, on_disk_s, cpu_s)


def wait_until_it_has(slave: Server, size: int) -> None:
    """Waits until the slave has `size` bytes. Raises RuntimeError if it makes no progress."""
    had, moved = -1, time.monotonic()
    while (has := ha_status(slave).client.max_offset) < size:
        now = time.monotonic()
        if has != had:
            had, moved = has, now
        elif now - moved > _NO_PROGRESS_S:
            raise RuntimeError(f"the slave stays at {has} of {size}:\n{slave.log()}")
        time.sleep(0.02)


def log_files(log: Path, size: int) -> list[Path]:
    """Returns the log files with content. A broker preallocates the next file."""
    return sorted(file for file in log.iterdir() if int(file.name) < size)


def copied(what: str, copy: Callable[[list[Path], Path, int], None], files: list[Path], target: Path, size: int) -> Row:
    """Measures one way to copy. Deletes the copy."""
    target.mkdir()
    os.sync()
    before_s = _children_s()
    began = time.perf_counter()
    copy(files, target, size)
    took_s = time.perf_counter() - began
    os.sync()
    on_disk_s = time.perf_counter() - began
    there = sum(file.stat().st_size for file in target.iterdir())
    shutil.rmtree(target)
    return Row(what, there, took_s, on_disk_s, {"all": _children_s() - before_s})


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def length(file: Path, size: int) -> int:
    """Returns how many bytes of the file belong to the log, which ends at `size`."""
    return min(file.stat().st_size, size - int(file.name))


def copy_files(files: list[Path], target: Path, size: int) -> None:
    for file in files:
        limit = ["iflag=count_bytes", f"count={length(file, size)}"]
        subprocess.run(["dd", "status=none", "bs=1M", *limit, f"if={file}", f"of={target / file.name}"], check=True)


def send_files(files: list[Path], target: Path, size: int) -> None:
    """Copies the files over loopback: one process sends, another one receives and writes."""
    context = multiprocessing.get_context("fork")
    with socket.create_server(("127.0.0.1", 0)) as server:
        receiver = context.Process(target=_receive, args=(server, target / "log"))
        receiver.start()
        sender = context.Process(target=_send, args=(server.getsockname()[1], files, size))
        sender.start()
    for process in (sender, receiver):
        process.join()
        if process.exitcode:
            raise RuntimeError(f"{process.name} ended with {process.exitcode}")


def _send(port: int, files: list[Path], size: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for file in files:
            with file.open("rb") as data:
                connection.sendfile(data, 0, length(file, size))


def _receive(server: socket.socket, target: Path) -> None:
    connection, _ = server.accept()
    room = memoryview(bytearray(_READ_BYTES))
    with connection, target.open("wb", buffering=0) as file:
        while count := connection.recv_into(room):
            file.write(room[:count])


if __name__ == "__main__":
    main()
