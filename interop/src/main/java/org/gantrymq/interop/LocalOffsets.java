package org.gantrymq.interop;

import java.util.Collections;
import java.util.Map;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.store.LocalFileOffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * {@code LocalOffsets CLIENT_ID GROUP TOPIC BROKER QUEUE_ID OFFSET}: prints the queue's offset that is stored on this
 * machine, and stores OFFSET in its place.
 */
public final class LocalOffsets {
    private LocalOffsets() {
    }

    public static void main(String[] args) throws Exception {
        LocalFileOffsetStore store =
            new LocalFileOffsetStore(new MQClientInstance(new ClientConfig(), 0, args[0]), args[1]);
        store.load();
        MessageQueue queue = new MessageQueue(args[2], args[3], Integer.parseInt(args[4]));
        JsonLines.print(Map.of("offset", store.readOffset(queue, ReadOffsetType.READ_FROM_STORE)));
        store.updateOffset(queue, Long.parseLong(args[5]), false);
        store.persistAll(Collections.singleton(queue));
        Runtime.getRuntime().halt(0);
    }
}
