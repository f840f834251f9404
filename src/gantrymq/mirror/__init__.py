"""Copies topics and the offsets of consumer groups from one cluster to another (`gantry mirror`).

- Start with `mirror`: it finds the topics, runs one task for each queue, and stores the state.
- `queue_copier` copies one queue. `copies` searches the target for its copies, `origin` defines their properties.
- `state` stores positions on the target.
- `group_offsets` translates the offsets of groups, with an `offset_map` for each queue.
- `cluster` has the requests to one side. `message_rate` limits the messages per second.

Guide: docs/mirror.md.
"""

from gantrymq.mirror.mirror import Mirror, MirrorOptions
from gantrymq.mirror.progress import Progress

__all__ = ["Mirror", "MirrorOptions", "Progress"]
