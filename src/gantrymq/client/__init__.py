"""The clients: producer; push, lite pull and simple consumer; asyncio, with a synchronous face in `gantrymq.sync`.

`producing/`, `consuming/` and `popping/` are the three kinds of client; each `__init__` says what to open first. Here
is what they share: requests to servers in `broker_api.py`, where topics are in `routes.py`, what a client tells its
brokers in `client_instance.py`. `admin/` is for administrators, `doctor/` finds what is broken.
"""
