"""EXCHANGE_BROKER_HA_INFO, GET_BROKER_HA_STATUS and RESET_MASTER_FLUSH_OFFSET (`AdminBrokerProcessor`)."""

from __future__ import annotations

from gantrymq.broker.acting.acting_master import ActingMaster
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.replication import Replication
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.ha import (
    ExchangeHaInfoRequestHeader,
    ExchangeHaInfoResponseHeader,
    ResetMasterFlushOffsetHeader,
)
from gantrymq.remoting.connection import Connection, Reply, RequestHandler

log = peer_log(__name__)

#: Name of the source of an address that the master itself sent. All other sources are addresses of NameServers.
_FROM_MASTER = "EXCHANGE_BROKER_HA_INFO"


class HaInfo(Feature):
    """Handles the replication requests of other brokers and administrators."""

    def __init__(self, context: BrokerContext, *, replication: Replication, acting: ActingMaster) -> None:
        self._config = context.config
        self._address = context.address
        self._replication = replication
        self._acting = acting

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.exchange,
            RequestCode.GET_BROKER_HA_STATUS: self.get_status,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.reset_flush_offset,
        }

    def get_status(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the replication status of this broker."""
        return RemotingCommand.response(body=self._replication.status().encode())

    def exchange(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the HA address of this master to a slave. On a slave, stores the HA address that a master sends."""
        header = request.read_header(ExchangeHaInfoRequestHeader)
        answer, replication = ExchangeHaInfoResponseHeader(), self._replication
        if header.master_ha_address is not None:
            if replication.is_slave:
                log.info("%s reports the master %s", connection.address, header.master_address)
                if self._config.enable_slave_acting_master:
                    # The master next queries the delivery progress of this slave. The slave must not replace this
                    # progress with the master's old one. It therefore stops delivery, and copies tables only after a
                    # NameServer lists the master.
                    replication.connect_to(header.master_ha_address)
                    connection.respond_with(request, self._stand_back())
                    return None
                replication.master_reported(_FROM_MASTER, header.master_address, header.master_ha_address)
        elif replication.is_master:
            answer.master_ha_address = replication.ha_address
            answer.master_flush_offset = replication.flush_offset
            answer.master_address = self._address
        return RemotingCommand.response(header=answer)

    async def _stand_back(self) -> Reply:
        await self._acting.stand_back()
        return RemotingCommand.response(header=ExchangeHaInfoResponseHeader())

    def reset_flush_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Stores the flush offset of a recovering master for the HA status.

        While its master recovers, a Java slave accepts no record beyond that offset.
        """
        header = request.read_header(ResetMasterFlushOffsetHeader)
        if header.master_flush_offset is not None:
            self._replication.set_flush_offset(header.master_flush_offset)
        return RemotingCommand.response()
