"""Access control: the signature of a call (`signature.py`), the rights that a request needs (`needs.py`), the decision
(`access.py`).

The brokers store users and policies, which commands such as `gantry admin createUser` change. The proxy caches users
and policies for some seconds.
"""
