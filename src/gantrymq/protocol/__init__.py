"""RocketMQ's formats, without I/O: bytes in, values out, and back.

Frames and commands: `command`, `frame_reader`. What ext fields hold: the `*_headers` modules, each named for what its
requests are about. What bodies hold: `route`, `topic_config`, `heartbeat`, `batch`, all JSON through `fastjson`.
Messages: `message` (what users see) over `record` (what files hold).
No sockets, no files, no clock but for ids and versions; it imports nothing of this package but `errors`.
Open `command.py` first.
"""
