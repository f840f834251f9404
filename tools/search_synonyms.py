"""Words of Kafka's users for topics of the documentation. The site's search finds the pages by these words."""

from __future__ import annotations

#: Page -> words that its text does not contain, or not often enough to be found. The same in both languages.
SYNONYMS = {
    "broker.md": "SASL SCRAM quota throttling compression.type message.max.bytes log.flush.interval.messages",
    "cli.md": "kafka-topics kafka-console-producer kafka-console-consumer kafka-consumer-groups kcat kafkacat",
    "client.md": "bootstrap.servers partitioner aiokafka kafka-python confluent-kafka auto.offset.reset "
    "enable.auto.commit max.poll.interval.ms linger.ms batch.size poll loop",
    "concepts.md": "partition offset broker record key header bootstrap.servers KRaft ISR consumer lag",
    "console.md": "Kafka UI AKHQ Kafdrop Burrow consumer lag",
    "controller.md": "KRaft ZooKeeper leader election controller quorum",
    "guarantees.md": "delivery semantics at-least-once exactly-once idempotent producer enable.idempotence",
    "integrations.md": "schema registry serializer deserializer faust",
    "migration.md": "MirrorMaker aiokafka kafka-python confluent-kafka",
    "proxy.md": "REST proxy gateway",
    "replication.md": "acks=all min.insync.replicas ISR in-sync replicas leader follower replication.factor "
    "unclean.leader.election.enable",
    "retries.md": "DLQ DLT dead letter topic retry topic backoff redelivery nack",
    "store.md": "retention.ms retention.bytes log.dirs log segment cleanup.policy",
    "tutorial/first-test.md": "Testcontainers EmbeddedKafka mock broker",
}
