"""RocketMQ's wire and storage formats, without I/O: encodes values to bytes and decodes them.

- Start with `command`: a request or response. `frame_reader` splits a byte stream into commands.
- `headers/` has the ext fields of each request, `bodies/` the JSON bodies (through `fastjson`), both grouped by
  subject.
- `message` has the public message classes. `record` is the form of a message in files.

The package uses no sockets or files, and needs a clock only for ids and versions.
"""
