"""The ext fields of requests and responses, as typed headers, grouped by subject. Start with `header.py`."""
