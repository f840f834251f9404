"""Bodies as a column `value`, both ways: what the option bodyFormat means. Nothing here asks a broker.

`body_format.py` has the options and the column's type; open it first. `decoding.py` makes an Arrow array of many bodies
and tells which ones can't be read, `encoding.py` is the way back; `json_bodies.py`, `avro_bodies.py` and the two of
protobuf are one format each. `registry.py` asks a schema registry, `registered.py` makes schemas and decoders of what
it says, and `confluent.py` has what stands before such bodies.
"""
