"""HTTP/2 as a gRPC server needs it: frames in, streams out (RFC 9113, RFC 7541).

`connection.py` first: the protocol of one connection, which knows nothing of gRPC. `hpack.py` and `huffman.py` read
header blocks; those that are sent are constant and need no encoder. There is no push, no priority, no client.
"""
