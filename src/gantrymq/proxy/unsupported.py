"""Rpcs for lite topics. GantryMQ's brokers have no lite topics."""

from __future__ import annotations

from gantrymq.proxy.call import Call, Handlers
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.proxy.v2.service_pb2 import SyncLiteSubscriptionRequest, SyncLiteSubscriptionResponse


class Unsupported:
    """Rejects these rpcs with UNSUPPORTED."""

    @property
    def handlers(self) -> Handlers:
        return {"SyncLiteSubscription": self.sync_lite_subscription}

    async def sync_lite_subscription(
        self, call: Call, request: SyncLiteSubscriptionRequest
    ) -> SyncLiteSubscriptionResponse:
        raise ProxyError(Code.UNSUPPORTED, "lite topics are not supported")
