"""What handlers may ask for besides the body, as with FastStream's own brokers."""

from typing import Annotated

from faststream._internal.configs import UnderlyingDriverAnnotation
from faststream._internal.context import Context
from faststream.annotations import ContextRepo, Logger

from gantrymq.integrations.faststream.messages import RocketMQMessage as ReceivedMessage

__all__ = ["DRIVER_ANNOTATIONS", "ContextRepo", "Logger", "RocketMQMessage"]

RocketMQMessage = Annotated[ReceivedMessage, Context("message")]

#: Who asks for the class itself is told what to import instead.
DRIVER_ANNOTATIONS = {
    ReceivedMessage: UnderlyingDriverAnnotation(type_hint=RocketMQMessage, module=__name__, name="RocketMQMessage")
}
