"""Settings of the client as options of a read or a write: `rocketmq.client.NAME`.

NAME is an option of this package's consumers or producers (`ConsumerOptions`, `ProducerOptions`), with the same
meaning and default. Only the settings below have a meaning here. Most of the others have an option of their own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from typing import Any

from gantrymq.client.consuming.options import LitePullConsumerOptions
from gantrymq.client.producing.options import ProducerOptions
from gantrymq.client.producing.send_command import DEFAULT_TOPIC_QUEUE_NUMS
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC

PREFIX = "rocketmq.client."
MAX_BODY_SIZE = f"{PREFIX}max_body_size"
READ_SETTINGS = (MAX_BODY_SIZE,)

#: The options that replace a setting of the client, if the action has them.
_INSTEAD = {
    "name_servers": "nameServer",
    "group": "consumerGroup",
    "start_from": "startingOffsets",
    "credentials": "accessKey and secretKey",
    "ssl_context": "tls.enable",
    "retry_times": "retryTimeoutMs",
    "try_timeout": "retryTimeoutMs",
}
_OF_CLIENT = {each.name for kind in (LitePullConsumerOptions, ProducerOptions) for each in fields(kind)}


@dataclass(frozen=True, slots=True)
class NewTopic:
    """The settings of a topic that a broker creates for the first row of a write."""

    create_topic_key: str = AUTO_CREATE_TOPIC
    default_topic_queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS
    unit_mode: bool = False

    def arguments(self) -> dict[str, Any]:
        """Returns the settings as arguments of `send_command`."""
        return asdict(self)


WRITE_SETTINGS = tuple(f"{PREFIX}{each.name}" for each in fields(NewTopic))


def unknown_setting(given: str, action: str, known: Collection[str]) -> str:
    """Returns the error for a setting that the action does not have, with the remedy.

    Args:
        given: The name of the option.
        action: `read` or `write`.
        known: All options of the action.
    """
    name = given.lower().removeprefix(PREFIX)
    instead = _INSTEAD.get(name)
    if instead is not None and instead.partition(" ")[0] in known:
        return f"option {given!r}: use the option {instead} instead"
    if name in _OF_CLIENT:
        return f"option {given!r}: this setting of the client has no meaning in a {action}, leave it out"
    settings = ", ".join(sorted(option for option in known if option.startswith(PREFIX)))
    return f"no option {given!r}: the client settings of a {action} are {settings}"
