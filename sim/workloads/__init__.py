"""Additional workloads of a seed, each with programs of its own.

The standard producers and consumers are in clients.py. A workload is a subclass of `Workload` (base.py). Its name is
in `EXTRAS` and in `plan.FEATURE_EXTRAS`. plan.py selects some of them for a seed.
"""

from sim.workloads.base import Workload
from sim.workloads.broadcasts import Broadcasts
from sim.workloads.comings import Comings
from sim.workloads.compaction import Compaction
from sim.workloads.configurations import Configurations
from sim.workloads.dead_letter_queue import DeadLetters
from sim.workloads.deduplication import Deduplication
from sim.workloads.endings import Endings
from sim.workloads.filters import Filters
from sim.workloads.lite_topics import LiteTopics
from sim.workloads.offsets import Offsets
from sim.workloads.permissions import Permissions
from sim.workloads.pop_resets import PopResets
from sim.workloads.priorities import Priorities
from sim.workloads.proxies import Proxies
from sim.workloads.rate_limits import RateLimits
from sim.workloads.recalls import Recalls
from sim.workloads.recreations import Recreations
from sim.workloads.requests import Requests
from sim.workloads.retention import Retention
from sim.workloads.slow_pops import SlowPops
from sim.workloads.topic_retention import TopicRetention
from sim.workloads.topics import Topics
from sim.workloads.writers import Writers

EXTRAS: dict[str, type[Workload]] = {
    "broadcasts": Broadcasts,
    "comings": Comings,
    "configurations": Configurations,
    "dead-letters": DeadLetters,
    "lite-topics": LiteTopics,
    "offsets": Offsets,
    "recalls": Recalls,
    "requests": Requests,
    "retention": Retention,
    "slow-pops": SlowPops,
    "topics": Topics,
    "endings": Endings,
    "pop-resets": PopResets,
    "recreations": Recreations,
    "compaction": Compaction,
    "deduplication": Deduplication,
    "filters": Filters,
    "permissions": Permissions,
    "priorities": Priorities,
    "proxies": Proxies,
    "rate-limits": RateLimits,
    "topic-retention": TopicRetention,
    "writers": Writers,
}
