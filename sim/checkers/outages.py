"""Checks of the disks at the moment of each power failure."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

from gantrymq.errors import RecordError
from gantrymq.protocol.record import decode_record
from sim.history import Outage, Sent
from sim.machine import Host, State
from sim.plan import TOPIC

if TYPE_CHECKING:
    from sim.run import Run


def acknowledged_is_on_the_disk(run: Run) -> Iterator[str]:
    """Checks that with SYNC_FLUSH, the disk has each acknowledged message when the power fails.

    A message counts if its response was sent before the failure, even if it arrives afterwards.
    """
    if not run.plan.is_synced:
        return
    scene = run.clients.scene
    for outage in run.history.outages:
        program = next(program for program in run.servers.brokers if program.name == outage.broker)
        if program.name in scene.lied_until or program.name in scene.lost_disks:
            continue
        address, until = run.servers.address_of(program), _restarted_at(program.host, outage.at)
        for sent in run.history.sent.values():
            if sent.is_flushed and sent.stored_by == address and (sent.stored_at or 0.0) <= until:
                problem = _problem(outage, sent, may_be_deleted="retention" in run.plan.extras)
                if problem and not scene.is_excused(sent):
                    yield f"{sent.name} is not on the disk of {program.name} at {outage.at:.3f} s: {problem}"


def _restarted_at(host: Host, at: float) -> float:
    """Returns the time of the first start of a program after `at`."""
    return next((since for since, state in host.states if since > at and state is State.RUNNING), inf)


def _problem(outage: Outage, sent: Sent, *, may_be_deleted: bool) -> str:
    base = sent.physical_offset // outage.file_size * outage.file_size
    file = outage.log.get(base)
    if file is None:
        return "" if may_be_deleted else f"there is no file {base}"
    try:
        record = decode_record(file, sent.physical_offset - base)
    except RecordError as e:
        return str(e)
    # In other topics, a body can be compressed.
    if sent.topic == TOPIC and record.body.decode(errors="replace").strip() != sent.name:
        return f"there is {record.body[:20]!r} at {sent.physical_offset}"
    return ""
