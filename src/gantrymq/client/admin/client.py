"""AdminClient: everything that an operator asks of a cluster, as one object.

    async with AdminClient("127.0.0.1:9876") as admin:
        await admin.create_topic(TopicConfig("greetings", 8, 8), cluster="DefaultCluster")

Its parts are modules beside this one: `base` (connections, clusters, routes), `namesrv`, `topics`, `groups`, `offsets`,
`messages`, `dead_letters`, `given_up`, `brokers`, `replication`, `controllers`, `auth`.
Source: tools/admin/DefaultMQAdminExt.
"""

from __future__ import annotations

from gantrymq.client.admin.auth import AdminAuth
from gantrymq.client.admin.brokers import AdminBrokers
from gantrymq.client.admin.controllers import AdminControllers
from gantrymq.client.admin.dead_letters import AdminDeadLetters
from gantrymq.client.admin.given_up import AdminGivenUp
from gantrymq.client.admin.replication import AdminReplication


class AdminClient(AdminDeadLetters, AdminGivenUp, AdminBrokers, AdminReplication, AdminControllers, AdminAuth):
    """Requests to NameServers and brokers. Needs no start; `close` it, or use it inside `async with`.

    `name_servers` is a list of HOST:PORT, or one string with `;` between them; what is asked of one broker by its
    address needs none. `hooks` see every request (see `remoting.connection`), `timeout_ms` bounds each; with an
    `ssl_context` the connections are encrypted.
    Every method raises a RemotingError when the network fails and BrokerError for a server's refusal; one that changes
    several servers raises PartialFailure, which names those that did it and those that failed.
    """
