"""SlowConsumers: disables consumer groups with a large lag (`BrokerController.protectBroker`).

The broker reads the messages of such a group from disk, which slows down all other groups.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.errors import StoreError
from gantrymq.logs import peer_log
from gantrymq.protocol.topic_name import is_system_group
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Interval of the check, in seconds.
_CHECK_S = 180.0
#: Longest time slice of the check in one event-loop iteration, in seconds.
_SLICE_S = 0.005


class SlowConsumers(Feature):
    """Checks the lag of each group while `disableConsumeIfConsumerReadSlowly` is true.

    The lag is the number of bytes from the group's next message to the end of the log at the group's last read. It is
    0 at the end of the queue. If it exceeds `consumerFallbehindThreshold`, the group cannot read until an administrator
    enables it. Reads before the key was set to true do not count. Unlike Java, it never disables groups of tools.

    Source: `recordDiskFallBehindSize` in `DefaultMessageStore.getMessage`.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        #: The lags that the current check has not compared yet. None between two checks.
        self._lags: Iterator[tuple[tuple[str, str, int], int]] | None = None
        self._checking = context.jobs.repeating("check for slow consumers", self._check, _CHECK_S)
        context.events.config_changed.subscribe(self._config_changed)

    async def start(self) -> None:
        self._checking.start(0.0)

    async def stop(self) -> None:
        self._checking.cancel()

    def _config_changed(self) -> None:
        # Without this, a changed key would take effect only after up to 3 minutes.
        self._checking.wake()

    def _check(self) -> float | None:
        config, deliveries = self._context.config, self._context.deliveries
        # A slave copies the groups of its master.
        if not config.disable_consume_if_consumer_read_slowly or self._context.is_slave:
            self._lags = None
            deliveries.record_lags(None)
            return None
        if self._lags is None:
            deliveries.record_lags(self._lag)
            self._lags = iter(list(deliveries.lags.items()))
        slice_ends = monotonic() + _SLICE_S
        for key, lag in self._lags:
            if lag > config.consumer_fallbehind_threshold:
                # If an administrator enables the group again, its earlier reads must not count.
                deliveries.lags.pop(key, None)
                _, group, _ = key
                self._disable(group, lag)
            if monotonic() >= slice_ends:
                return 0.0
        self._lags = None
        return None

    def _lag(self, queue: ConsumeQueue, offset: int) -> int:
        """Returns the lag of a group that reads a queue from an offset on. It is 0 if no message follows."""
        try:
            unit = queue.peek(max(offset, queue.min_offset))
        except StoreError as e:
            # The group's next read tries again, and raises the same error to the client.
            log.debug("the lag in queue %d of topic %s is unknown: %s", queue.queue_id, queue.topic, e)
            return 0
        return 0 if unit is None else self._context.store.max_physical_offset - unit[0]

    def _disable(self, name: str, lag: int) -> None:
        group = self._context.groups.find(name)
        if group is None or not group.consume_enable or is_system_group(name):
            return
        log.warning(
            "group %s is disabled: its lag of %d bytes exceeds consumerFallbehindThreshold; to enable it, run "
            "'gantry admin updateSubGroup -c %s -g %s -s true' with its other settings",
            name,
            lag,
            self._context.config.broker_cluster_name,
            name,
        )
        self._context.groups.put([replace(group, consume_enable=False)])
