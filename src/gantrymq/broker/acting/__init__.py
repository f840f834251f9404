"""Acting masters (`enableSlaveActingMaster`): a slave does the work of its master while the master is down.

The slave with the lowest id delivers delayed and popped messages, and has other brokers check open transactions. The
slave's log stays a copy of the master's, so brokers with other names store these messages. Start with
`acting_master.py`. `members` queries the NameServers, `escaped_message` converts a message, `escape_bridge` sends it to
another broker. When the master is back, `pre_online` takes over the progress of the slave.
"""

from __future__ import annotations

from gantrymq.broker.acting.acting_master import ActingMaster
from gantrymq.broker.acting.escape_bridge import EscapeBridge
from gantrymq.broker.acting.ha_info import HaInfo
from gantrymq.broker.acting.pre_online import PreOnline

__all__ = ["ActingMaster", "EscapeBridge", "HaInfo", "PreOnline"]
