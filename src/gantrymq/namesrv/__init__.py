"""The NameServer: brokers register their topics, and clients query the route of a topic.

- Start with `route_table`: the state, without I/O or a clock.
- `handlers` answer requests. `server` accepts connections, removes silent brokers, and starts and stops all parts.
- `kv_config` and `known_brokers` store data in files. `metrics` are for Prometheus.
"""
