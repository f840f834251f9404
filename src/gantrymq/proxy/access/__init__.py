"""Access control: who calls (`signature.py`), what a request needs (`needs.py`), whether it has it (`access.py`).

Users and policies are the brokers', asked of them and remembered for some seconds: `gantry admin createUser` and its
like change them.
"""
