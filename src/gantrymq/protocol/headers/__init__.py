"""What the ext fields of requests and answers hold. Open `header.py` first; the rest is named for what it is about."""
