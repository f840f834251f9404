"""Controller mode: the controllers decide whether this broker is master, or which master it follows.

`replicas_manager` communicates with the controllers and changes the role. `roles` derives the role from their
responses. `sync_state_sets` maintains the replicas that must have a message before it is acknowledged. `lease` computes
how long a master accepts messages. `roles`, `lease` and `membership` do no I/O and get the time as an argument.
"""

from __future__ import annotations

from gantrymq.broker.controller.replicas_manager import ReplicasManager

__all__ = ["ReplicasManager"]
