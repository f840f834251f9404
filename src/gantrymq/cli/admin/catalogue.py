"""The commands of `gantry admin`: {module: {command: first sentence of its help}}.

With this table, the list of commands needs no imports, and a command imports only its module. `unsupported` has the
commands that do not exist here.
"""

from __future__ import annotations

BY_MODULE = {
    "topics": {
        "updateTopic": "Update or create topic.",
        "updateTopicList": "Create or update topics in batch.",
        "deleteTopic": "Delete topic from broker and NameServer.",
        "updateTopicPerm": "Update topic perm.",
        "topicRoute": "Examine topic route info.",
        "topicStatus": "Examine topic status info.",
        "topicClusterList": "Get cluster info for topic.",
        "topicList": "List all topics of the NameServers.",
        "updateOrderConf": "Create or update or delete order conf.",
        "allocateMQ": "Allocate MQ: which consumer would have which queues.",
    },
    "lite": {
        "getBrokerLiteInfo": "Get broker lite info.",
        "getParentTopicInfo": "Get parent topic info.",
        "getLiteTopicInfo": "Get lite topic info.",
        "getLiteGroupInfo": "Get lite group info.",
        "getLiteClientInfo": "Get lite client info.",
        "triggerLiteDispatch": "Trigger Lite Dispatch.",
    },
    "brokers": {
        "clusterList": "List cluster infos.",
        "brokerStatus": "Fetch broker runtime status data.",
        "getBrokerConfig": "Get broker config by cluster or special broker.",
        "updateBrokerConfig": "Update broker's config.",
        "addBroker": "Add a broker to specified container.",
        "removeBroker": "Remove a broker from specified container.",
        "cleanExpiredCQ": "Clean expired ConsumeQueue on broker.",
        "deleteExpiredCommitLog": "Delete expired CommitLog files.",
        "cleanUnusedTopic": "Clean unused topic on broker.",
        "brokerConsumeStats": "Fetch broker consume stats data.",
        "producer": "Query producer's instances, connection, status, etc.",
        "queryCq": "Query the index of a queue.",
    },
    "groups": {
        "updateSubGroup": "Update or create subscription group.",
        "updateSubGroupList": "Update or create subscription groups in batch.",
        "deleteSubGroup": "Delete subscription group from broker.",
        "setConsumeMode": "Set consume message mode: pull, pop.",
        "getConsumerConfig": "Get consumer config by subscription group name.",
    },
    "consumers": {
        "consumerProgress": "Query consumer's progress, speed.",
        "consumerStatus": "Query consumer's internal data structure.",
        "consumerConnection": "Query consumer's socket connection, client version and subscription.",
        "producerConnection": "Query producer's socket connection and client version.",
    },
    "offsets": {
        "resetOffsetByTime": "Reset consumer offset by timestamp (without client restart).",
        "skipAccumulatedMessage": "Skip all messages that are accumulated (not consumed) currently.",
        "cloneGroupOffset": "Clone offset from other group.",
    },
    "messages": {
        "queryMsgById": "Query Message by Id.",
        "queryMsgByUniqueKey": "Query Message by Unique key.",
        "queryMsgByKey": "Query Message by Key.",
        "queryMsgByOffset": "Query Message by offset.",
        "queryMsgTraceById": "Query a message trace.",
        "printMsg": "Print Message Detail.",
        "printMsgByQueue": "Print Message Detail by queueId.",
        "consumeMessage": "Read messages, without committing an offset.",
        "dumpCompactionLog": "Parse compaction log to message.",
    },
    "dead_letter_messages": {
        "resendDlq": "Resend the dead-letter messages of a group.",
    },
    "given_up": {
        "givenUpTransactions": "List the transactions that brokers have given up; with --commit or --drop, end them.",
    },
    "send_message": {
        "sendMessage": "Send a message.",
        "sendMsgStatus": "Send messages to a broker's own topic, and print the time of each send.",
        "checkMsgSendRT": "Check message send response time.",
        "clusterRT": "List all clusters' message send response time.",
    },
    "namesrv": {
        "updateKvConfig": "Create or update KV config.",
        "deleteKvConfig": "Delete KV config.",
        "wipeWritePerm": "Wipe write perm of broker in all name servers of -n.",
        "addWritePerm": "Add write perm of broker in all name servers of -n.",
        "getNamesrvConfig": "Get configs of name server.",
        "updateNamesrvConfig": "Update configs of name server.",
    },
    "ha": {
        "haStatus": "Fetch ha runtime status data.",
        "resetMasterFlushOffset": "Reset master flush offset in slave.",
    },
    "controllers": {
        "getSyncStateSet": "Fetch syncStateSet for target brokers.",
        "getBrokerEpoch": "Fetch broker epoch entries.",
        "getControllerMetaData": "Get controller cluster's metadata.",
        "getControllerConfig": "Get controller config.",
        "updateControllerConfig": "Update controller config.",
        "electMaster": "Re-elect the specified broker as master.",
        "cleanBrokerMetadata": "Clean metadata of broker on controller.",
    },
    "stats": {
        "statsAll": "Topic and Consumer tps stats.",
    },
    "exports": {
        "exportConfigs": "Export configs.",
        "exportMetadata": "Export metadata.",
        "exportMetrics": "Export metrics.",
    },
    "auth": {
        "createUser": "Create user to cluster.",
        "updateUser": "Update user to cluster.",
        "deleteUser": "Delete user from cluster.",
        "getUser": "Get user from cluster.",
        "listUser": "List user from cluster.",
        "copyUser": "Copy user to cluster.",
        "createAcl": "Create acl to cluster.",
        "updateAcl": "Update acl to cluster.",
        "deleteAcl": "Delete acl from cluster.",
        "getAcl": "Get acl from cluster.",
        "listAcl": "List acl from cluster.",
        "copyAcl": "Copy acl to cluster.",
    },
}
