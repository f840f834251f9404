"""The proxy: RocketMQ's gRPC protocol for present clients, on top of brokers that speak remoting.

It keeps nothing but what its clients told it; any number of proxies serve one cluster. `proxy.py` puts the parts
together, `call.py` is what each of them sees of an rpc, `statuses.py` how an error becomes a status, `brokers.py` the
way to the brokers. `http2/` has the server (bytes in, calls out), `v2/` the messages, generated. Nothing here stores
a message or decides what a broker decides.
"""
