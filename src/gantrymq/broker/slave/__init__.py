"""Copies the master's metadata to a slave. `broker.replication` copies the log."""

from __future__ import annotations

from gantrymq.broker.slave.metadata_sync import MetadataSync

__all__ = ["MetadataSync"]
