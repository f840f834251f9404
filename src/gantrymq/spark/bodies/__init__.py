"""Decodes and encodes message bodies as the column `value` (option bodyFormat). Sends no requests to brokers.

- Open `body_format.py` first: it has the options and the type of the column.
- `decoding.py` decodes many bodies into an Arrow array, and reports invalid bodies. `encoding.py` encodes bodies.
- `json_bodies.py`, `avro_bodies.py` and the two protobuf modules implement one format each.
- `registry_options.py` has the options of a schema registry. `registered.py` builds decoders from its schemas. The
  client of the registry is in `gantrymq.codecs.registry`.
"""
