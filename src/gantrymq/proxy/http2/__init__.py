"""The server side of HTTP/2 for gRPC (RFC 9113, RFC 7541).

Start with `connection.py`, which is one connection and independent of gRPC. `frame_reader.py` processes the frames of
clients, and `limits.py` has the limits. `hpack.py` and `huffman.py` decode header blocks. The header blocks that the
proxy sends are constants and need no encoder. Push, priorities and the client side are not implemented.
docs/decisions/http2.md explains why the proxy does not use a library.
"""
