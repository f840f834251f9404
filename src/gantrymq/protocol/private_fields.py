"""Header fields of GantryMQ, which Apache's programs ignore. `row_ids.py` has the fields of exactly-once writes."""

#: Field of a send request: the client's timeout, in ms. Without it a broker assumes 3000, the default of
#: `DefaultMQProducer.sendMsgTimeout`. Clients omit it for 3000 and round other values, because the native code caches
#: one route for each distinct header.
TIMEOUT_FIELD = "gantryTimeoutMs"
#: Field of a send response with a status other than SEND_OK: "true" if the in-sync set has not confirmed the message. A
#: new master may then lack it. Only brokers with a controller send this field.
UNCONFIRMED_FIELD = "gantryUnconfirmed"
#: Field of the response to a refused request: the `RefusalReason`. Absent if no program reacts to the reason.
REASON_FIELD = "gantryReason"
#: Field of the response to a request above a rate limit: the time after which the client may repeat the request, in ms.
RETRY_AFTER_FIELD = "gantryRetryAfterMs"
#: Field of the response to a pull: the end of the commit log at the last deletion of a topic with this name. It grows
#: with each deletion, so a consumer detects that the topic was created again. Absent if no such topic was deleted.
TOPIC_BEGIN_FIELD = "gantryTopicBegin"
#: Field of the response to a pull: an id of the broker's start. A broker sends it only for some time after a start that
#: followed a crash. A consumer that pulled before the crash detects that the id has changed.
RECOVERY_FIELD = "gantryRecovery"
#: Another field of this response: the end of the queue at that start. Since the crash, later offsets belong to other
#: messages.
RECOVERED_END_FIELD = "gantryRecoveredEnd"
#: Field of the NameServer's response to GET_ROUTEINFO_BY_TOPIC: the time since the NameServer's start, in ms.
UPTIME_FIELD = "gantryUptimeMs"
#: Another field of this response, even if the topic has no route: the awaited brokers of the topic, separated by `;`.
#: These brokers were registered before the NameServer's restart, and have not registered again. Absent if there are
#: none.
AWAITED_BROKERS_FIELD = "gantryAwaitedBrokers"
