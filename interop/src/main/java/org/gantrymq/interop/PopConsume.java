package org.gantrymq.interop;

import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * {@code PopConsume NAMESRV GROUP TOPIC COUNT TIMEOUT_S [orderly]}: a push consumer that leaves the rebalance to the broker, so that it pops
 * where the broker says so. Prints every delivery, one a line.
 *
 * <p>A message whose tag is "refuse" is refused the first time, one whose tag is "poison" always; with the tag "hang" the listener
 * never returns. With "orderly" its listener is an orderly one, which refuses nothing. Ends after COUNT deliveries, or after TIMEOUT_S with exit status 1.
 */
public final class PopConsume {
    private static final int INTERVAL_MS = 2000;
    /** The least that the client allows is 5 s. */
    private static final int INVISIBLE_MS = 6000;

    private PopConsume() {
    }

    public static void main(String[] args) throws Exception {
        CountDownLatch missing = new CountDownLatch(Integer.parseInt(args[3]));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setPollNameServerInterval(INTERVAL_MS);
        consumer.setHeartbeatBrokerInterval(INTERVAL_MS);
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(INVISIBLE_MS);
        consumer.subscribe(args[2], "*");
        if (args.length > 5) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    JsonLines.print(JsonLines.received(message));
                    missing.countDown();
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> consume(messages, missing));
        }
        consumer.start();
        boolean complete = missing.await(Integer.parseInt(args[4]), TimeUnit.SECONDS);
        // The acknowledgements of the last messages are still on their way.
        Thread.sleep(500);
        consumer.shutdown();
        Runtime.getRuntime().halt(complete ? 0 : 1);
    }

    private static ConsumeConcurrentlyStatus consume(List<MessageExt> messages, CountDownLatch missing) {
        boolean refuse = false;
        for (MessageExt message : messages) {
            JsonLines.print(JsonLines.received(message));
            missing.countDown();
            if ("hang".equals(message.getTags())) {
                sleepForever();
            }
            refuse |= "poison".equals(message.getTags())
                || "refuse".equals(message.getTags()) && message.getReconsumeTimes() == 0;
        }
        return refuse ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    private static void sleepForever() {
        try {
            Thread.sleep(Long.MAX_VALUE);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
