"""Innocent gRPC client beside an attack on a proxy: requests a route and sends a message, like `prober.py`.

proxy_prober.py BROKER_HOST:PORT PID PROXY_HOST:PORT PID [USER PASSWORD]
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
import time
import uuid
from dataclasses import asdict
from typing import Any

import grpc
from prober import ANSWER_TIMEOUT_S, SAMPLE_S, TOPIC, Prober, _Server, starved_ms

from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb

_SERVICE = "/apache.rocketmq.v2.MessagingService/"


class ProxyProber(Prober):
    """Makes its calls one after the other."""

    def __init__(self, broker: _Server, proxy: _Server, address: str, user: str, password: str) -> None:
        super().__init__(broker, proxy, frozenset())
        self._proxy = proxy
        self._user, self._password = user, password
        channel = grpc.insecure_channel(address)
        self._query_route = self._method(channel, "QueryRoute", rpc_pb.QueryRouteRequest, rpc_pb.QueryRouteResponse)
        self._send = self._method(channel, "SendMessage", rpc_pb.SendMessageRequest, rpc_pb.SendMessageResponse)

    @staticmethod
    def _method(channel: grpc.Channel, name: str, request: Any, response: Any) -> Any:
        return channel.unary_unary(
            _SERVICE + name, request_serializer=request.SerializeToString, response_deserializer=response.FromString
        )

    def _round(self) -> None:
        topic = pb.Resource(name=TOPIC)
        sent = pb.Message(
            topic=topic,
            body=b"round %d" % self.figures.rounds,
            system_properties=pb.SystemProperties(
                message_id=f"01{uuid.uuid4().hex[:30].upper()}", message_type=pb.NORMAL
            ),
        )
        self._call("send", self._send, rpc_pb.SendMessageRequest(messages=[sent]))
        self._call("route", self._query_route, rpc_pb.QueryRouteRequest(topic=topic))
        self.figures.rounds += 1

    def _call(self, what: str, method: Any, request: Any) -> None:
        before, began = self._proxy.schedule(), time.monotonic()
        call = method.future(request, timeout=ANSWER_TIMEOUT_S, metadata=self._metadata())
        while True:
            self._sample()
            try:
                status = call.result(timeout=SAMPLE_S).status
                break
            except grpc.FutureTimeoutError:
                continue
            except grpc.RpcError as e:
                status = pb.Status(code=0, message=f"{e.code()}: {e.details()}")
                break
        took_ms = 1000 * (time.monotonic() - began)
        starved = starved_ms(took_ms, before, self._proxy.schedule())
        figures = self.figures
        if took_ms - starved > figures.stall_ms:
            figures.slowest_ms, figures.starved_ms, figures.slowest_of = took_ms, starved, what
        if status.code != pb.OK:
            self.error(f"{what}: {status.code} {status.message}")

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        fields = (("x-mq-client-id", "innocent"), ("x-mq-language", "JAVA"))
        if not self._user:
            return fields
        now = time.strftime("%Y%m%dT%H%M%SZ")
        signature = hmac.new(self._password.encode(), now.encode(), hashlib.sha1).hexdigest().upper()
        items = f"Credential={self._user}/cn/RocketMQ, SignedHeaders=x-mq-date-time, Signature={signature}"
        return (*fields, ("x-mq-date-time", now), ("authorization", f"MQv2-HMAC-SHA1 {items}"))


def main(broker: str, broker_pid: str, proxy: str, proxy_pid: str, user: str = "", password: str = "") -> None:
    prober = ProxyProber(_Server(broker, int(broker_pid)), _Server(proxy, int(proxy_pid)), proxy, user, password)
    prober.run_until_eof()
    print(json.dumps(asdict(prober.figures)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
