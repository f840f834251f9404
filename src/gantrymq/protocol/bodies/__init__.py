"""The JSON bodies of requests and responses, encoded and decoded by `protocol/fastjson.py`."""
