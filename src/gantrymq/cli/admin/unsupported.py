"""mqadmin's commands that are not there yet: they are known by name, and say so."""

from __future__ import annotations

from typing import Any

import typer

app = typer.Typer(add_completion=False)

#: By what they need. docs/compatibility.md lists them, too.
UNSUPPORTED = {
    "broker containers": ("addBroker", "removeBroker"),
    "static topics": ("updateStaticTopic", "remappingStaticTopic"),
    "cold data flow control": (
        "getColdDataFlowCtrInfo",
        "updateColdDataFlowCtrGroupConfig",
        "removeColdDataFlowCtrGroupConfig",
        "setCommitLogReadAheadMode",
    ),
    "RocksDB": ("rocksDBConfigToJson", "checkRocksdbCqWriteProgress", "exportMetadataInRocksDB", "exportPopRecord"),
    "compaction topics": ("dumpCompactionLog",),
    "exports": ("exportMetadata", "exportConfigs", "exportMetrics"),
    "monitoring": ("startMonitoring",),
}


def _register(name: str, needs: str) -> None:
    def refuse() -> None:
        typer.echo(f"gantry: {name} ({needs}) is not supported yet", err=True)
        raise typer.Exit(1)

    # Whatever options come with it.
    settings: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=f"Not supported yet ({needs}).", context_settings=settings, hidden=True)(refuse)


for _needs, _names in UNSUPPORTED.items():
    for _name in _names:
        _register(_name, _needs)
