"""The NameServer: brokers register their topics here, clients ask where a topic is.

`route_table` is the state, plain and told the time; `handlers` answer the requests with it; `server` listens, drops the
brokers that fell silent and owns the rest's life. `kv_config` and `known_brokers` write its files; `metrics` is
what Prometheus is told. Open `route_table.py` first. What a broker does with the topics is not known here.
"""
