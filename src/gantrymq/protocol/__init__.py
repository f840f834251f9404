"""RocketMQ's formats, without I/O: bytes in, values out, and back.

Frames and commands: `command`, `frame_reader`. What ext fields hold: `headers/`; what bodies hold: `bodies/`, all JSON
through `fastjson`; each module there is named for what its requests are about.
Messages: `message` (what users see) over `record` (what files hold).
No sockets, no files, no clock but for ids and versions; it imports nothing of this package but `errors`.
Open `command.py` first.
"""
