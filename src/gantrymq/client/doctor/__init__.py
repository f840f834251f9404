"""What is wrong with a cluster, in plain words: the library behind `gantry doctor`.

`observation` asks every NameServer and broker and writes down what they said; `checks` and `topic_checks` are plain
functions from that to `finding`s; `one_group` and `one_group_checks` are the same for a single consumer group.
`diagnosis` is the one call that does both. Open `diagnosis.py` first.
"""
