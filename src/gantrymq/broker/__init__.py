"""The broker: stores messages from producers and delivers them to consumers.

Read `broker.py` first: it starts and stops a broker. `features.py` builds the features. Each `Feature` has a table of
request handlers by request code.

- `send`, `pull` and `pop` handle the requests of clients. `append` writes messages to the store.
- `delay` and `transaction` handle messages that are delivered later.
- `tables` stores topics, groups and offsets. `consumers` handles the requests of consumer groups.
- `replication`, `slave`, `acting` and `controller` implement replication and role changes.
- `admin` handles the requests of administrators. `registration` registers the broker with the NameServers.

File and record formats are in `gantrymq.store` and `gantrymq.protocol`.
"""
