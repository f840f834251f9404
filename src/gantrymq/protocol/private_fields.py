"""Header fields that only GantryMQ's programs write. Apache's clients and servers ignore them.

The fields of exactly-once writes are in `row_ids.py`.
"""

#: In a send request: how long the client waits for the response, in ms. Without it a broker assumes 3000, the default
#: of `DefaultMQProducer.sendMsgTimeout`. Clients omit it for 3000, and round other values, because the native code
#: caches one route for each distinct header.
TIMEOUT_FIELD = "gantryTimeoutMs"
#: In a send response with another status than SEND_OK: "true" if the broker has a controller and the in-sync set has
#: not confirmed the message. A new master may not have it.
UNCONFIRMED_FIELD = "gantryUnconfirmed"
#: In the response to a pull: where the commit log ended when a topic of this name was deleted last. It grows with each
#: deletion, so a consumer sees that the topic was created again. Absent if none was deleted.
TOPIC_BEGIN_FIELD = "gantryTopicBegin"
#: In the NameServer's response to GET_ROUTEINFO_BY_TOPIC: for how long it has been running, in ms.
UPTIME_FIELD = "gantryUptimeMs"
#: In the same response, also when the topic has no route: the brokers of the topic that the NameServer had when it was
#: stopped and that haven't registered since its start, with `;` between them. Omitted for none.
AWAITED_BROKERS_FIELD = "gantryAwaitedBrokers"
