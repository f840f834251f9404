"""The proxy: serves RocketMQ's gRPC protocol and forwards the requests to brokers over the remoting protocol.

A proxy stores no messages, and has only the state of its own clients. Any number of proxies can therefore serve one
cluster. Start with `proxy.py`, which creates all parts. `call.py` is the interface of an rpc, `statuses.py` converts
errors to statuses, and `brokers.py` has the connections to brokers. `http2/` is the HTTP/2 server. `v2/` has the
generated protobuf messages.
"""
