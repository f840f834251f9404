"""RocketMQ in Python: NameServer, broker, clients, administration and a Spark data source."""

from importlib.metadata import version

__version__ = version("gantrymq")
