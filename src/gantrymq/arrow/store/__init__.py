"""Reads the files of a broker, which need not be running. `planning.py` plans a read, `rows.py` decodes a range."""
