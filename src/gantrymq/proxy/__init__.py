"""The proxy: serves RocketMQ's gRPC protocol and forwards the requests to brokers over the remoting protocol.

It stores no messages, and keeps only the state of its own clients, so any number of proxies can serve one cluster.
Start with `proxy.py`: it creates all parts. `call.py` is the interface of an rpc, `statuses.py` converts errors to
statuses, and `brokers.py` has the connections to brokers. `http2/` is the HTTP/2 server. `v2/` has the generated
protobuf messages.
"""
