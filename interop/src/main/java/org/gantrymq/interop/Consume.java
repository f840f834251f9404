package org.gantrymq.interop;

import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * {@code Consume NAMESRV GROUP TOPIC EXPRESSION MODE COUNT TIMEOUT_S}: prints the topic's messages from the first on, one a line.
 *
 * <p>Ends after COUNT messages, or after TIMEOUT_S with exit status 1. MODE is concurrently, orderly, retry (every message is
 * refused the first time, so COUNT is of deliveries) or pull (DefaultLitePullConsumer).
 */
public final class Consume {
    /** Java's are 30 s: a start that meets a busy machine would wait for the next turn. */
    private static final int INTERVAL_MS = 2000;

    private Consume() {
    }

    public static void main(String[] args) throws Exception {
        String mode = args[4];
        CountDownLatch missing = new CountDownLatch(Integer.parseInt(args[5]));
        long timeoutMs = 1000L * Integer.parseInt(args[6]);
        boolean complete = mode.equals("pull")
            ? pull(args, missing, timeoutMs)
            : push(args, mode, missing, timeoutMs);
        Runtime.getRuntime().halt(complete ? 0 : 1);
    }

    private static boolean push(String[] args, String mode, CountDownLatch missing, long timeoutMs) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        configure(consumer, args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[2], args[3]);
        if (mode.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                print(messages, missing);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            boolean refuseFirst = mode.equals("retry");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                print(messages, missing);
                return refuseFirst && messages.get(0).getReconsumeTimes() == 0
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        // Without it the offset of the message handled last may not be committed.
        consumer.setAwaitTerminationMillisWhenShutdown(5000);
        consumer.start();
        boolean complete = missing.await(timeoutMs, TimeUnit.MILLISECONDS);
        consumer.shutdown();
        return complete;
    }

    private static boolean pull(String[] args, CountDownLatch missing, long timeoutMs) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args[1]);
        configure(consumer, args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[2], args[3]);
        consumer.start();
        long deadline = System.currentTimeMillis() + timeoutMs;
        while (missing.getCount() > 0 && System.currentTimeMillis() < deadline) {
            print(consumer.poll(500), missing);
        }
        consumer.commitSync();
        consumer.shutdown();
        return missing.getCount() == 0;
    }

    private static void configure(ClientConfig config, String namesrvAddr) {
        config.setNamesrvAddr(namesrvAddr);
        config.setPollNameServerInterval(INTERVAL_MS);
        config.setHeartbeatBrokerInterval(INTERVAL_MS);
        config.setPersistConsumerOffsetInterval(INTERVAL_MS);
    }

    private static void print(List<MessageExt> messages, CountDownLatch missing) {
        for (MessageExt message : messages) {
            JsonLines.print(JsonLines.received(message));
            missing.countDown();
        }
    }
}
