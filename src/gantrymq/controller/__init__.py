"""The controller: assigns broker ids, tracks the sync-state set of each broker set, and elects masters.

- Start with `replicas`: all decisions, without I/O, on the values of `broker_set` and `live_brokers`. `election`
  selects a master.
- A change takes effect after `state_store` has stored it (`sqlite_store`, `etcd_store`). The store also decides which
  controller leads (`leadership`).
- `changes` applies changes in order. `elections` replaces failed masters. `role_changes` notifies brokers.
- `handlers`, `heartbeats` and `config_requests` answer requests. `server` starts and stops all parts.
"""
