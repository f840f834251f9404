"""Annotations for handler arguments other than the body, as in FastStream's own brokers."""

from typing import Annotated

from faststream._internal.configs import UnderlyingDriverAnnotation
from faststream._internal.context import Context
from faststream.annotations import ContextRepo, Logger

from gantrymq.integrations.faststream.messages import RocketMQMessage as ReceivedMessage

__all__ = ["DRIVER_ANNOTATIONS", "ContextRepo", "Logger", "RocketMQMessage"]

RocketMQMessage = Annotated[ReceivedMessage, Context("message")]

#: If a handler uses the class itself as an annotation, FastStream's error names the annotation to import.
DRIVER_ANNOTATIONS = {
    ReceivedMessage: UnderlyingDriverAnnotation(type_hint=RocketMQMessage, module=__name__, name="RocketMQMessage")
}
