"""HTTP/2 as a gRPC server needs it: frames in, streams out (RFC 9113, RFC 7541).

Open `connection.py` first: one connection, which knows nothing of gRPC. `frame_reader.py` has the rules for what a
client sends, `limits.py` what it may take. `hpack.py` and `huffman.py` read header blocks; those that are sent are
constant and need no encoder. There is no push, no priority, no client. docs/decisions/http2.md says why it isn't a
library.
"""
