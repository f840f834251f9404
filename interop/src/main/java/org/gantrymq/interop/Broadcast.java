package org.gantrymq.interop;

import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * {@code Broadcast NAMESRV GROUP TOPIC COUNT TIMEOUT_S REFUSED}: two broadcasting push consumers of one group in one JVM.
 *
 * <p>Prints what each receives, with its name in {@code consumer}. The message whose body is REFUSED is answered with
 * RECONSUME_LATER. Ends when both have COUNT messages, or after TIMEOUT_S with exit status 1.
 */
public final class Broadcast {
    private Broadcast() {
    }

    public static void main(String[] args) throws Exception {
        CountDownLatch missing = new CountDownLatch(2 * Integer.parseInt(args[3]));
        DefaultMQPushConsumer first = start(args, "first", missing);
        DefaultMQPushConsumer second = start(args, "second", missing);
        boolean complete = missing.await(Long.parseLong(args[4]), TimeUnit.SECONDS);
        first.shutdown();
        second.shutdown();
        Runtime.getRuntime().halt(complete ? 0 : 1);
    }

    private static DefaultMQPushConsumer start(String[] args, String name, CountDownLatch missing) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.setNamesrvAddr(args[0]);
        // A file of offsets is named by it: it must be the same in the next run.
        consumer.setInstanceName(name);
        consumer.setMessageModel(MessageModel.BROADCASTING);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(2000);
        consumer.setAwaitTerminationMillisWhenShutdown(5000);
        consumer.subscribe(args[2], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            Map<String, Object> json = new TreeMap<>(JsonLines.received(message));
            json.put("consumer", name);
            JsonLines.print(json);
            missing.countDown();
            return new String(message.getBody()).equals(args[5])
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }
}
