"""Implements `gantry doctor`: prints the findings of `gantrymq.client.doctor`."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from gantrymq.background.event_loop import new_event_loop
from gantrymq.cli.exit_codes import WARNINGS
from gantrymq.cli.target import Target
from gantrymq.client.doctor.diagnosis import diagnose
from gantrymq.client.doctor.finding import Finding, Severity

_MARKS = {Severity.OK: ("ok", "green"), Severity.WARNING: ("!!", "yellow"), Severity.PROBLEM: ("XX", "bold red")}


def run_doctor(
    target: Target, topic: str | None, group: str | None, proxy: str | None, *, is_cluster_meant: bool, json: bool
) -> int:
    """Prints the findings about the cluster (if `is_cluster_meant`) and about the given proxy.

    Returns the exit code: 1 if there is a problem, WARNINGS if there are only warnings, otherwise 0.
    """
    findings: list[Finding] = []
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        if is_cluster_meant:
            findings += runner.run(
                diagnose(
                    target.name_servers,
                    topic,
                    group=group,
                    ssl_context=target.ssl_context,
                    credentials=target.credentials,
                )
            )
        if proxy is not None:
            from gantrymq.proxy.doctor.diagnosis import diagnose_proxy

            findings += runner.run(
                diagnose_proxy(proxy, topic, ssl_context=target.ssl_context, credentials=target.credentials)
            )
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(findings), indent=2).decode() + "\n")
    else:
        _print(findings)
    severities = {finding.severity for finding in findings}
    if Severity.PROBLEM in severities:
        return 1
    return WARNINGS if Severity.WARNING in severities else 0


def _print(findings: Sequence[Finding]) -> None:
    console = Console(highlight=False)
    for finding in findings:
        mark, style = _MARKS[finding.severity]
        console.print(Text.assemble((mark, style), " ", finding.what), soft_wrap=True)
        for label, text in (("why:    ", finding.why), ("remedy: ", finding.remedy)):
            if text:
                console.print(Text.assemble("   ", (label, "dim"), text), soft_wrap=True)
    counts = Counter(finding.severity for finding in findings)
    summary = ", ".join(
        f"{count} {severity.value}{'s' if count > 1 else ''}"
        for severity in (Severity.PROBLEM, Severity.WARNING)
        if (count := counts[severity])
    )
    console.print(Text(summary or "no problems found", _MARKS[max(counts, key=list(Severity).index)][1]))
