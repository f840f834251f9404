"""mqadmin's commands that do not exist here. Each one is registered, and prints the reason."""

from __future__ import annotations

from typing import Any

import typer

from gantrymq.cli.lazy import new_app

app = new_app()

#: {reason: commands}. docs/compatibility.md also lists them.
UNSUPPORTED = {
    "there are no broker containers: start each broker with 'gantry broker'": ("addBroker", "removeBroker"),
    "there are no static topics": ("updateStaticTopic", "remappingStaticTopic"),
    "there is no flow control of cold data": (
        "getColdDataFlowCtrInfo",
        "updateColdDataFlowCtrGroupConfig",
        "removeColdDataFlowCtrGroupConfig",
        "setCommitLogReadAheadMode",
    ),
    "brokers store nothing in RocksDB": (
        "rocksDBConfigToJson",
        "checkRocksdbCqWriteProgress",
        "exportMetadataInRocksDB",
        "exportPopRecord",
    ),
    "brokers have one timer engine, the timer wheel": ("switchTimerEngine",),
    "there are no compaction topics": ("dumpCompactionLog",),
    "there are no lite topics": (
        "getBrokerLiteInfo",
        "getParentTopicInfo",
        "getLiteTopicInfo",
        "getLiteGroupInfo",
        "getLiteClientInfo",
        "triggerLiteDispatch",
    ),
    "there are no exports: 'gantry admin' writes any list as JSON with --json": (
        "exportMetadata",
        "exportConfigs",
        "exportMetrics",
    ),
    "there is no monitoring command: 'gantry doctor' checks a cluster once": ("startMonitoring",),
}


def _register(name: str, reason: str) -> None:
    def refuse() -> None:
        typer.echo(f"gantry: {name} is not supported: {reason}", err=True)
        raise typer.Exit(1)

    # The command accepts any options, so that it always prints the same message.
    settings: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=f"Not supported: {reason}.", context_settings=settings, hidden=True)(refuse)


for _reason, _names in UNSUPPORTED.items():
    for _name in _names:
        _register(_name, _reason)
