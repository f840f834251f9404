"""AdminClient: all requests of an operator to a cluster (`DefaultMQAdminExt`).

    async with AdminClient("127.0.0.1:9876") as admin:
        await admin.create_topic(TopicConfig("greetings", 8, 8), cluster="DefaultCluster")

Its base classes are in the other modules of this package: `base` (connections, clusters, routes), `namesrv`, `topics`,
`groups`, `offsets`, `messages`, `dead_letter_messages`, `given_up`, `brokers`, `controllers`, `auth`, `lite`.
"""

from __future__ import annotations

from gantrymq.client.admin.auth import AdminAuth
from gantrymq.client.admin.brokers import AdminBrokers
from gantrymq.client.admin.controllers import AdminControllers
from gantrymq.client.admin.dead_letter_messages import AdminDeadLetterMessages
from gantrymq.client.admin.given_up import AdminGivenUp
from gantrymq.client.admin.lite import AdminLite


class AdminClient(AdminDeadLetterMessages, AdminGivenUp, AdminBrokers, AdminControllers, AdminAuth, AdminLite):
    """Sends requests to NameServers and brokers. Needs no start. Use it with `async with`, or call `close`.

    Example:
        async with AdminClient("127.0.0.1:9876") as admin:
            await admin.create_topic(TopicConfig("greetings", 8, 8), cluster="DefaultCluster")

    Every method raises a RemotingError if the network fails, and a BrokerError if a server rejects the request. A
    method that changes several servers raises PartialFailure, which lists the successful and the failed servers.
    """
