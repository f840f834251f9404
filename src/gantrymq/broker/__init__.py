"""The broker: takes messages from producers, keeps them in the store, hands them to consumers.

`broker` wires the parts and lives; `send`, `pull` and `long_polling` are the hot path; `topics`, `subscription_groups`,
`consumer_groups` and `consumer_offsets` are the tables; `registration` tells the NameServers. `pop/`, `timer/` and
`transaction/` are what their names say, `admin/` answers administrators. Each module that answers requests has a
`handlers()` table by request code. Files and records are `store`'s and `protocol`'s business.
Open `broker.py` first.
"""
