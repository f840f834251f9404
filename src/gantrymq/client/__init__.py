"""Clients: producer; push, lite pull and simple consumer. All use asyncio; `gantrymq.sync` has blocking versions.

`producing/`, `consuming/` and `popping/` contain the kinds of client; each `__init__` names the module to read first.
All of them use these modules: requests to servers (`broker_api.py`), routes of topics (`routes.py`), and connections
and heartbeats (`client_instance.py`). `admin/` has the admin client, `doctor/` the checks of a cluster.
"""
