"""Tiered storage: a copy of the broker's commit log in an object store or a directory, with a retention of its own.

- `objects` writes and reads the objects: files of a directory, or objects in S3.
- `segment` is the format of a segment: a file of the log, the units of its queues, its keys, and a manifest.
- `catalog` has the segments of a tier, and finds the one with a message.
- `uploader` copies a segment into the tier and deletes expired ones. `reader` reads messages.
- `catalog_loader` reads the manifests, and selects the segments that belong to the log of the broker.
- `pool` has the threads in which the objects are read.

`broker/tiered_storage.py` runs the jobs of a broker. Start with `segment.py`.
"""
