"""RocketMQ's default delay levels (`MessageStoreConfig.messageDelayLevel`)."""

from __future__ import annotations

#: The delay of each level, from level 1 on.
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
