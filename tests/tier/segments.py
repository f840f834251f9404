"""Small segments in a tier."""

from __future__ import annotations

from gantrymq.store.config import UNIT_SIZE
from gantrymq.tier.objects import Objects
from gantrymq.tier.segment import (
    INDEX,
    LOG,
    QUEUES,
    VERSION,
    Manifest,
    QueueRange,
    new_id,
    object_name,
)
from gantrymq.tier.uploader import PiecewiseObject


def add_data(objects: Objects, base: int, log: bytes = b"log") -> Manifest:
    """Writes a segment of 3 bytes without its manifest. It begins at the time `base` and ends 3 ms later."""
    manifest = Manifest(VERSION, base, 3, base, base + 3, 0, [QueueRange("orders", 0, base, 2)], new_id(), base, 0, 0)
    for directory, data in ((LOG, log), (QUEUES, bytes(2 * UNIT_SIZE)), (INDEX, b"")):
        writer = PiecewiseObject(objects, object_name(directory, manifest.name))
        writer.write(data)
        writer.commit()
    return manifest
