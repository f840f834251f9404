"""Diagnosis of a cluster in plain words: the library behind `gantry doctor`.

`observation` sends requests to every NameServer and broker and stores the responses. `checks`, `topic_checks` and
others are functions without I/O that derive `finding`s from them. `one_group` (requests) and `one_group_checks` are for
a single consumer group. `diagnosis` runs both steps; read it first.
"""
