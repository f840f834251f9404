"""Prometheus metrics of tiered storage. Java's are those of its queue files, so the names are GantryMQ's own."""

from __future__ import annotations

from collections.abc import Iterator

from gantrymq.metrics import Kind, Metric
from gantrymq.store.message_store import MessageStore
from gantrymq.tier.tier import Tier


def tier_metrics(tier: Tier, store: MessageStore, labels: dict[str, str]) -> Iterator[Metric]:
    """Yields the metrics of the tier of a broker. The first three only if its segments are known."""
    catalog = tier.catalog
    if catalog is not None:
        yield Metric("gantry_tier_segments", Kind.GAUGE, "Log files in the tier.", [(labels, len(catalog))])
        yield Metric("gantry_tier_bytes", Kind.GAUGE, "Size of the log in the tier.", [(labels, catalog.size)])
        copied = max(catalog.end, store.min_physical_offset)
        yield Metric(
            "gantry_tier_behind_bytes",
            Kind.GAUGE,
            "Bytes of the log that are not in the tier yet, including the current file.",
            [(labels, max(0, store.max_physical_offset - copied))],
        )
    for name, description, value in (
        ("lost_segments", "Log files deleted without a copy, because the disk was full.", tier.lost_segments),
        ("failed_reads", "Reads of the tier that failed or timed out.", tier.failed_reads),
        ("messages_out", "Messages read from the tier.", tier.messages_out),
    ):
        yield Metric(f"gantry_tier_{name}_total", Kind.COUNTER, description, [(labels, value)])
