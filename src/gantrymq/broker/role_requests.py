"""Requests of controllers and administrators about the role of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.controller import EpochEntry, EpochEntryCache
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.replication.epochs import Epochs

if TYPE_CHECKING:
    from gantrymq.broker.controller import ReplicasManager


class RoleRequests(Feature):
    """Handles these requests (`AdminBrokerProcessor`). `replicas_manager` is None outside controller mode."""

    def __init__(self, context: BrokerContext, *, replicas_manager: ReplicasManager | None) -> None:
        self._config = context.config
        self._store = context.store
        self._replicas_manager = replicas_manager

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_BROKER_EPOCH_CACHE: self.get_epochs,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.role_changed,
        }

    def get_epochs(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the part of the log that the master of each epoch has written."""
        if self._replicas_manager is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")
        return RemotingCommand.response(body=encode_json(self._epoch_cache(self._replicas_manager.epochs)))

    def _epoch_cache(self, epochs: Epochs) -> EpochEntryCache:
        """Returns the epochs with their start and end offsets. The last epoch has no end."""
        config, known = self._config, epochs.all()
        ends = [epoch.start_offset for epoch in known[1:]]
        entries = [EpochEntry(*epoch, end) for epoch, end in zip(known, ends, strict=False)]
        entries += [EpochEntry(*epoch) for epoch in known[-1:]]
        log_end = self._store.max_physical_offset
        return EpochEntryCache(config.broker_cluster_name, config.broker_name, config.broker_id, entries, log_end)

    def role_changed(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Queries the controllers for a new master. Any client can send this request, so its content is not used."""
        if self._replicas_manager is not None:
            self._replicas_manager.query_soon()
        return RemotingCommand.response()
