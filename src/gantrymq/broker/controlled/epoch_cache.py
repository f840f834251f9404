"""The answer to GET_BROKER_EPOCH_CACHE: from where to where the masters of which epochs have written the log."""

from __future__ import annotations

from gantrymq.broker.config import BrokerConfig
from gantrymq.protocol.bodies.controller import EpochEntry, EpochEntryCache
from gantrymq.replication.epochs import Epochs


def epoch_cache(config: BrokerConfig, epochs: Epochs, log_end: int) -> EpochEntryCache:
    """Of a broker; its last epoch is open."""
    known = epochs.all()
    ends = [epoch.start_offset for epoch in known[1:]]
    entries = [EpochEntry(*epoch, end) for epoch, end in zip(known, ends, strict=False)]
    entries += [EpochEntry(*epoch) for epoch in known[-1:]]
    return EpochEntryCache(config.broker_cluster_name, config.broker_name, config.broker_id, entries, log_end)
