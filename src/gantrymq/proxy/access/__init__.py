"""Access control: the signature of a call (`signature.py`), the rights that a request needs (`needs.py`), the decision
(`access.py`).

Users and policies are stored by the brokers. The proxy requests them and caches them for some seconds. Commands such as
`gantry admin createUser` change them.
"""
