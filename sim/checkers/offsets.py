"""Checks of the committed offsets after all consumers ended in order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from gantrymq.broker.config import BrokerRole
from sim.plan import QUEUES, TOPIC

if TYPE_CHECKING:
    from sim.run import Run


def handled_is_committed(run: Run) -> Iterator[str]:
    """Checks that each group has committed all of each queue, so that the next consumer receives nothing again."""
    if any(run.clients.scene.is_put_off(sent) for sent in run.history.sent.values()):
        # This message can become due while the consumers end.
        return
    groups = [group for group in ("push", "orderly", "lite") if run.plan.consumers[group]]
    for program in run.servers.brokers:
        broker = run.servers.running.get(program.name)
        if broker is None or broker.config.broker_role is BrokerRole.SLAVE:
            continue
        for queue_id in range(QUEUES):
            end = program.look(partial(broker.store.queue, TOPIC, queue_id)).max_offset
            for group in groups:
                offset = broker.offsets.queues(group, TOPIC).get(queue_id, 0)
                if offset != end:
                    yield f"{group} has committed {offset} of queue {queue_id} of {program.name}, which ends at {end}"
