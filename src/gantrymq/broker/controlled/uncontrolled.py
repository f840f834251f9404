"""What a broker without a controller answers to requests about it (`AdminBrokerProcessor`)."""

from __future__ import annotations

from gantrymq.broker.part import Part
from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection, Reply, RequestHandler


class Uncontrolled(Part):
    """In place of `Controlled`."""

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_BROKER_EPOCH_CACHE: self.get_epochs,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.role_changed,
        }

    def get_epochs(self, connection: Connection, request: RemotingCommand) -> Reply:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")

    def role_changed(self, connection: Connection, request: RemotingCommand) -> Reply:
        return RemotingCommand.response()
