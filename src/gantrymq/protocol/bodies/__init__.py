"""What the bodies of requests and answers hold: JSON, read and written by `protocol/fastjson.py`."""
