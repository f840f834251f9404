"""Access control: the signature of a call (`signature.py`), the rights that a request needs (`needs.py`), the decision
(`access.py`).

The brokers store users and policies; commands such as `gantry admin createUser` change them. The proxy caches them for
some seconds.
"""
