"""Decodes and encodes message bodies as the column `value` (option bodyFormat). Sends no requests to brokers.

- Open `body_format.py` first: it has the options and the type of the column.
- `decoding.py` decodes many bodies into an Arrow array, and reports invalid bodies. `encoding.py` encodes bodies.
- `json_bodies.py`, `avro_bodies.py` and the two protobuf modules implement one format each.
- `registry.py` is the client of a schema registry. `registry_options.py` has its options, `registry_http.py` its
  connections. `registered.py` builds schemas and decoders from its responses. `confluent.py` has the prefix of bodies
  from Confluent's serializers.
"""
