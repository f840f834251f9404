"""The server side of HTTP/2 for gRPC (RFC 9113, RFC 7541).

Start with `connection.py`: one connection, independent of gRPC. `frame_reader.py` processes the frames of clients, and
`limits.py` has the limits. `hpack.py` and `huffman.py` decode header blocks. Sent header blocks are constants and need
no encoder. Push, priorities and the client side are not implemented. docs/decisions/http2.md explains why the proxy
does not use a library.
"""
