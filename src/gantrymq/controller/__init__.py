"""The controller: gives brokers of one name their ids, knows which of them have what is acknowledged, elects masters.

`replicas` is what it decides, plain, over the values of `broker_set` and what `live_brokers` knows of heartbeats;
`election` is the policy. A change holds when the `state_store` has it (`sqlite_store`, `etcd_store`), which also says
who leads (`leadership`); `changes` makes them in order, `elections` elects where a master is gone, `role_changes` tells
the brokers. `handlers` answer requests, `server` owns the rest's life. Open `replicas.py` first.
"""
