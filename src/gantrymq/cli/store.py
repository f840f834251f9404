"""Implements `gantry store`: shows and checks the files of a store, and rebuilds queues and index from the log.

Exit codes: 0 without problems, 1 with problems. With --json, the result is one object on standard output. `dump` prints
one object per line.
"""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from gantrymq.broker.tables import read_deleted_topics
from gantrymq.cli.admin.values import parse_time
from gantrymq.cli.lazy import new_app
from gantrymq.cli.values import TIME_HELP
from gantrymq.config import from_properties, load_properties
from gantrymq.protocol.message import MessageExt
from gantrymq.store import verify as verifying
from gantrymq.store.config import StoreConfig
from gantrymq.store.dump import MessageFilter
from gantrymq.store.dump import dump as dump_messages
from gantrymq.store.offline import StoreSummary, is_in_use
from gantrymq.store.offline import inspect as inspect_store
from gantrymq.store.rebuild import rebuild as rebuild_store

app = new_app(
    no_args_is_help=True,
    help="Look into a broker's store, check it, rebuild its queues and index.",
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="storePathRootDir.")]
Config = Annotated[
    Path | None,
    typer.Option("-c", "--config", metavar="FILE", help="The broker's configuration, where it isn't the default."),
]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]


@app.command()
def inspect(directory: Directory, config: Config = None, as_json: Json = False) -> None:
    """Show the content of a store, as far as file names, sizes and headers show it."""
    summary = inspect_store(_store_config(directory, config))
    if as_json:
        print(json.dumps(_summary(summary)))
        return
    console = Console()
    state = "in use by a broker" if summary.in_use else "closed" if summary.was_closed else "not closed (a crash)"
    console.print(f"{summary.root}: {state}, {_size(summary.disk_bytes)} on the disk", highlight=False, soft_wrap=True)
    if summary.log_files:
        first, last = summary.log_files[0], summary.log_files[-1]
        console.print(
            f"log: {len(summary.log_files)} files of {_size(first.length)}, physical offsets {first.base} to at most "
            f"{last.base + last.length}; {summary.checkpoint.confirm_phy_offset} were surely on the disk",
            highlight=False,
            soft_wrap=True,
        )
    by_directory = Counter(file.path.parent for file in summary.log_files)
    if len(by_directory) > 1:
        for directory, count in sorted(by_directory.items()):
            console.print(f"log: {count} of the files are in {directory}", highlight=False, soft_wrap=True)
    for path, header in summary.index_files:
        console.print(
            f"index {path.name}: {header.index_count - 1} entries, {_time(header.begin_timestamp)} to "
            f"{_time(header.end_timestamp)}",
            highlight=False,
            soft_wrap=True,
        )
    table = Table("topic", *(Column(name, justify="right") for name in ("queue", "first offset", "next offset")))
    for queue in summary.queues:
        table.add_row(queue.topic, str(queue.queue_id), str(queue.first_offset), str(queue.max_offset))
    console.print(table)


@app.command()
def verify(directory: Directory, config: Config = None, as_json: Json = False) -> None:
    """Check every record, the index, and every queue against the log. Exit code 1 if there is a fault."""
    store = _store_config(directory, config)
    inspect_store(store)
    _warn_if_in_use(directory)
    with _progress() as progress:
        report = verifying.verify(store, progress, deleted_topics=read_deleted_topics(store.config_directory))
    if as_json:
        print(json.dumps(_camel(asdict(report))))
    else:
        for problem in report.problems:
            print(problem)
        if report.problem_count > len(report.problems):
            print(f"... and {report.problem_count - len(report.problems)} more")
        index = (
            "the index not checked, since a broker writes it"
            if report.in_use
            else f"{report.index_entries} entries in {report.index_files} index files"
        )
        print(
            f"{report.records} records from {report.log_begin} to {report.log_end}, {report.units} units in "
            f"{report.queues} queues, {index}: {report.problem_count or 'no'} problems"
        )
    raise typer.Exit(int(report.problem_count > 0))


@app.command()
def dump(
    directory: Directory,
    config: Config = None,
    as_json: Json = False,
    topic: Annotated[str | None, typer.Option(help="Only this topic's.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, help="Only of this queue id.")] = None,
    from_offset: Annotated[int, typer.Option(min=0, help="From this queue offset on.")] = 0,
    to_offset: Annotated[int | None, typer.Option(min=0, help="Before this queue offset.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help=f"Stored then or later: {TIME_HELP}.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Stored then or before.")] = None,
    key: Annotated[str | None, typer.Option(help="With this unique key, or among its KEYS.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number.")] = None,
) -> None:
    """Print the messages in the log, in its order."""
    store = _store_config(directory, config)
    inspect_store(store)
    _warn_if_in_use(directory)
    wanted = MessageFilter(
        topic,
        queue,
        from_offset,
        to_offset,
        0 if since is None else parse_time(since, "'--since'"),
        None if until is None else parse_time(until, "'--until'"),
        key,
    )
    for number, message in enumerate(dump_messages(store, wanted), 1):
        print(json.dumps(_message(message), ensure_ascii=False) if as_json else _line(message))
        if number == limit:
            break


@app.command()
def rebuild(
    directory: Directory,
    config: Config = None,
    cut: Annotated[bool, typer.Option("--cut", help="Truncate the log at its first bad record.")] = False,
    as_json: Json = False,
) -> None:
    """Rebuild the queues and the index from the log. No broker may use the store.

    Messages of deleted topics come back, if the log still has them.
    """
    store = _store_config(directory, config)
    with _progress() as progress:
        rebuild_store(store, cut=cut, progress=progress)
    summary = inspect_store(store)
    if as_json:
        print(json.dumps(_summary(summary)))
    else:
        print(f"{len(summary.queues)} queues and {len(summary.index_files)} index files are made anew")


# -- input ---------------------------------------------------------------------------------------------------------


def _store_config(directory: Path, config: Path | None) -> StoreConfig:
    properties = load_properties(config) if config else {}
    properties["storePathRootDir"] = str(directory)
    return from_properties(StoreConfig, properties, source=str(config or "the command line"))


def _warn_if_in_use(directory: Path) -> None:
    if is_in_use(directory):
        print("gantry: a broker uses this store: what it writes meanwhile may be missing", file=sys.stderr)


# -- output --------------------------------------------------------------------------------------------------------


@contextmanager
def _progress() -> Iterator[verifying.Progress]:
    """Shows a progress bar for each step on standard error, if this is a terminal."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show


def _summary(summary: StoreSummary) -> dict[str, Any]:
    return _camel(
        summary._asdict()
        | {
            "root": str(summary.root),
            "checkpoint": _camel(asdict(summary.checkpoint)),
            "log_files": [_camel(file._asdict() | {"path": str(file.path)}) for file in summary.log_files],
            "queues": [_camel(queue._asdict()) for queue in summary.queues],
            "index_files": [_camel({"path": str(path)} | header._asdict()) for path, header in summary.index_files],
        }
    )


def _camel(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields with names in camel case, as in Java."""
    return {"".join([key.split("_")[0], *map(str.title, key.split("_")[1:])]): value for key, value in fields.items()}


def _message(message: MessageExt) -> dict[str, Any]:
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"bodyBase64": base64.b64encode(message.body).decode()}
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.commit_log_offset,
        "storeSize": message.store_size,
        "storeTimestamp": message.store_timestamp,
        "bornTimestamp": message.born_timestamp,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": message.properties,
        **body,
    }


def _line(message: MessageExt) -> str:
    fields = [
        f"{message.topic}-{message.queue_id} {message.queue_offset}",
        f"at {message.commit_log_offset}",
        _time(message.store_timestamp),
        *(f"{name}={value}" for name, value in message.properties.items()),
        repr(message.body)[1:]
        if len(message.body) <= 200
        else f"{message.body[:200]!r}... ({len(message.body)} bytes)"[1:],
    ]
    return "  ".join(fields)


def _time(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.4g} {unit}"
