"""An orderly POP consumer: its pop requests have `order` set, as those of the proxy for FIFO groups."""

from __future__ import annotations

from typing import Any

import msgspec.structs

from gantrymq.client.popping.pop_api import PopApi
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.protocol.headers.pop import PopMessageRequestHeader
from gantrymq.protocol.message import MessageExt


class _OrderedPops(PopApi):
    async def pop(self, broker_name: str, header: PopMessageRequestHeader, *args: Any) -> list[MessageExt]:
        return await super().pop(broker_name, msgspec.structs.replace(header, order=True), *args)


class OrderlySimpleConsumer(SimpleConsumer):
    """Receives further messages of a queue only after the earlier ones are acknowledged."""

    async def _pop(self, api: PopApi, *args: Any) -> list[MessageExt]:
        return await super()._pop(_OrderedPops(self._started(), self._wire_group), *args)
