"""Controllers: leader, in-sync sets, elections (`DefaultMQAdminExtImpl`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gantrymq.client.admin.base import AdminBase
from gantrymq.config import format_properties, parse_properties
from gantrymq.errors import BrokerUnavailable
from gantrymq.protocol.bodies.controller import (
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    EpochEntryCache,
    ReplicasInfo,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.controller import (
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    GetMetaDataResponseHeader,
)


class AdminControllers(AdminBase):
    """Requests to controllers. `controller` is HOST:PORT of any controller; the request goes to the leader."""

    async def controller_metadata(self, controller: str) -> GetMetaDataResponseHeader:
        """Returns the leader and the members of a controller's group."""
        response = await self._call(controller, RequestCode.CONTROLLER_GET_METADATA_INFO)
        return response.read_header(GetMetaDataResponseHeader)

    async def sync_state_sets(self, controller: str, broker_names: Sequence[str]) -> dict[str, ReplicasInfo]:
        """Returns the state of broker sets by name: master, epoch, in-sync replicas. Unknown names are left out."""
        body = encode_json(list(broker_names))
        leader = await self._leader(controller)
        response = await self._call(leader, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body)
        return decode_json(response.body, BrokerReplicasInfo).replicas_info_table

    async def elect_master(
        self, controller: str, cluster: str, broker_name: str, broker_id: int
    ) -> tuple[ElectMasterResponseHeader, dict[int, str]]:
        """Makes the broker with this id the master.

        Returns the new state, and the addresses of the set's brokers by id. Raises BrokerError if the broker is already
        the master, or is not in sync.
        """
        header = ElectMasterRequestHeader(
            cluster_name=cluster, broker_name=broker_name, broker_id=broker_id, designate_elect=True
        )
        response = await self._call(await self._leader(controller), RequestCode.CONTROLLER_ELECT_MASTER, header)
        members = decode_json(response.body, ElectMasterResponseBody).broker_member_group
        elected = response.read_header(ElectMasterResponseHeader)
        return elected, members.broker_addrs if members is not None else {}

    async def clean_broker_metadata(
        self,
        controller: str,
        broker_name: str,
        *,
        cluster: str | None = None,
        broker_ids: Sequence[int] = (),
        living_too: bool = False,
    ) -> None:
        """Removes brokers of a set from the controllers. Default: all brokers of the set.

        Raises BrokerError if a broker is alive, unless `living_too` is true.
        """
        header = CleanControllerBrokerDataRequestHeader(
            broker_name=broker_name,
            cluster_name=cluster,
            broker_controller_ids_to_clean=";".join(map(str, broker_ids)) or None,
            is_clean_living_broker=living_too,
        )
        await self._call(await self._leader(controller), RequestCode.CLEAN_BROKER_DATA, header)

    async def controller_configs(self, controllers: Sequence[str]) -> dict[str, dict[str, str]]:
        """Returns each controller's configuration under Java's keys."""

        async def get(controller: str) -> dict[str, str]:
            response = await self._call(controller, RequestCode.GET_CONTROLLER_CONFIG)
            return parse_properties(response.body.decode("utf-8", "replace"), source=controller)

        return await self._each("reading the configuration", controllers, get)

    async def update_controller_configs(self, controllers: Sequence[str], changes: Mapping[str, str]) -> None:
        """Changes keys of each controller's configuration."""
        body = format_properties(changes).encode()
        await self._each(
            f"setting {', '.join(changes)}",
            controllers,
            lambda a: self._call(a, RequestCode.UPDATE_CONTROLLER_CONFIG, body=body),
        )

    async def broker_epochs(self, address: str) -> EpochEntryCache:
        """Returns the ranges of the broker's log that the master of each epoch has written."""
        response = await self._call(address, RequestCode.GET_BROKER_EPOCH_CACHE)
        return decode_json(response.body, EpochEntryCache)

    async def _leader(self, controller: str) -> str:
        leader = (await self.controller_metadata(controller)).controller_leader_address
        if not leader:
            raise BrokerUnavailable(f"no controller of {controller}'s group leads at the moment")
        return leader
