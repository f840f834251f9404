"""Innocent broker beside an attack on a controller: sends heartbeats and requests its master, like `prober.py`.

controller_prober.py CONTROLLER_HOST:PORT PID
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from prober import Prober, _Server

from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.controller import (
    ApplyBrokerIdRequestHeader,
    ControllerHeartbeatRequestHeader,
    ElectMasterRequestHeader,
    GetReplicaInfoRequestHeader,
    GetReplicaInfoResponseHeader,
)

CLUSTER = "InnocentCluster"
NAME = "innocent"
ADDRESS = "127.0.0.1:1"


class ControllerProber(Prober):
    """A broker that is the master of its name. It must stay master regardless of requests for other names."""

    def __init__(self, controller: _Server) -> None:
        super().__init__(controller, controller, frozenset())
        self._controller = controller
        applied = ApplyBrokerIdRequestHeader(
            cluster_name=CLUSTER, broker_name=NAME, applied_broker_id=1, register_check_code=f"{ADDRESS};1"
        )
        elected = ElectMasterRequestHeader(cluster_name=CLUSTER, broker_name=NAME, broker_id=1)
        self._ask("apply", controller, RequestCode.CONTROLLER_APPLY_BROKER_ID, applied)
        self._ask("elect", controller, RequestCode.CONTROLLER_ELECT_MASTER, elected)

    def _round(self) -> None:
        heartbeat = ControllerHeartbeatRequestHeader(
            cluster_name=CLUSTER, broker_addr=ADDRESS, broker_name=NAME, broker_id=1, epoch=1, max_offset=0
        )
        answer = self._ask("heartbeat", self._controller, RequestCode.BROKER_HEARTBEAT, heartbeat)
        if answer.code != ResponseCode.SUCCESS:
            self.error(f"heartbeat: {answer.code} {answer.remark}")
        header = GetReplicaInfoRequestHeader(broker_name=NAME)
        answer = self._ask("info", self._controller, RequestCode.CONTROLLER_GET_REPLICA_INFO, header)
        info = answer.read_header(GetReplicaInfoResponseHeader)
        if (answer.code, info.master_broker_id, info.master_epoch) != (ResponseCode.SUCCESS, 1, 1):
            self.error(f"info: {answer.code} {answer.remark} {info}")
        self.figures.rounds += 1


if __name__ == "__main__":
    prober = ControllerProber(_Server(sys.argv[1], int(sys.argv[2])))
    prober.run_until_eof()
    print(json.dumps(asdict(prober.figures)), flush=True)
