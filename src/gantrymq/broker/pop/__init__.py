"""POP: messages handed out one by one for a time, acknowledged, or brought back. `service.py` first."""
