"""Lite topics: millions of small topics under a parent topic, for clients that subscribe to some of them.

`service.py` is the entry point. It creates the parts and describes their roles.
"""

from __future__ import annotations

from gantrymq.broker.lite.service import LiteTopics

__all__ = ["LiteTopics"]
