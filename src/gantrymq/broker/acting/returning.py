"""A master that comes back takes over how far its slave has got that stood in (`BrokerPreOnlineService`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gantrymq.broker.acting.members import members_of
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_offsets import ConsumerOffsets, OffsetTable
from gantrymq.broker.part import Part
from gantrymq.broker.replication.replicating import Replicating
from gantrymq.broker.schedule import Schedule
from gantrymq.broker.timer.timer import Timer
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.ha import ExchangeHaInfoRequestHeader
from gantrymq.remoting.client import RemotingClient

log = peer_log(__name__)

_TIMEOUT_MS = 3000


class Returning(Part):
    """Asks the slaves that NameServers know, before those parts start that deliver.

    A broker's start must not depend on others: who doesn't answer is left out, and its messages come once more.
    """

    def __init__(
        self,
        config: BrokerConfig,
        address: str,
        replicating: Replicating,
        remoting: RemotingClient,
        offsets: ConsumerOffsets,
        schedule: Schedule,
        timer: Timer,
    ) -> None:
        self._config = config
        self._address = address
        self._replicating = replicating
        self._remoting = remoting
        self._offsets = offsets
        self._schedule = schedule
        self._timer = timer

    async def start(self) -> None:
        config = self._config
        if not config.enable_slave_acting_master or config.broker_id != MASTER_ID:
            return
        try:
            members = await members_of(config, self._remoting)
        except GantryError as e:
            log.warning("it isn't known whether a slave stood in for this master: %s", e)
            return
        for broker_id, address in sorted(members.items()):
            if broker_id != MASTER_ID:
                await self._take_over(address)

    async def _take_over(self, slave: str) -> None:
        """A slave of ours has ended standing in when it has answered that it knows this master."""
        header = ExchangeHaInfoRequestHeader(
            master_ha_address=self._replicating.ha_address,
            master_flush_offset=self._replicating.log_end,
            master_address=self._address,
        )
        try:
            request = RemotingCommand.request(RequestCode.EXCHANGE_BROKER_HA_INFO, header)
            await self._remoting.call(slave, request, _TIMEOUT_MS)
        except GantryError as e:
            log.warning("the slave %s doesn't know that this master is back: %s", slave, e)
        steps: dict[int, Callable[[bytes], Awaitable[None]]] = {
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._take_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self._take_delays,
        }
        if self._config.store.timer_wheel_enable:
            steps[RequestCode.GET_TIMER_CHECK_POINT] = self._timer.take_over
        for code, step in steps.items():
            try:
                answer = await self._remoting.call(slave, RemotingCommand.request(code), _TIMEOUT_MS)
                await step(answer.body)
            except (GantryError, OSError) as e:
                log.warning("how far the slave %s has got isn't known: %s", slave, e)

    async def _take_offsets(self, body: bytes) -> None:
        self._offsets.advance(decode_json(body, OffsetTable))

    async def _take_delays(self, body: bytes) -> None:
        self._schedule.advance_offsets(body)
