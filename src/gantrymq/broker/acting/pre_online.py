"""A restarted master takes over the delivery progress of its acting master (`BrokerPreOnlineService`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gantrymq.broker.acting.members import members_of
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.delay import DelayLevels, Timer
from gantrymq.broker.feature import Feature
from gantrymq.broker.replication import Replication
from gantrymq.broker.tables import OffsetTable
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.ha import ExchangeHaInfoRequestHeader

log = peer_log(__name__)

_TIMEOUT_MS = 3000


class PreOnline(Feature):
    """Queries the slaves that NameServers list, before the broker starts to deliver messages.

    The start of a broker must not depend on other brokers. A slave that does not respond is skipped. The master then
    delivers again what this slave delivered.
    """

    def __init__(
        self, context: BrokerContext, *, replication: Replication, schedule: DelayLevels, timer: Timer
    ) -> None:
        self._config = context.config
        self._address = context.address
        self._replication = replication
        self._remoting = context.remoting
        self._offsets = context.offsets
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
        """Takes over the progress of one slave. A GantryMQ slave responds only after it has ended its acting role."""
        header = ExchangeHaInfoRequestHeader(
            master_ha_address=self._replication.ha_address,
            master_flush_offset=self._replication.log_end,
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
