package org.gantrymq.interop;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * {@code LoadConsumer NAMESRV TOPIC GROUP THREADS COUNT [pop]}: reads COUNT messages from the topic's first on, twice.
 *
 * <p>A push consumer set up as Apache's benchmark consumer, which itself never ends and prints averages of ten seconds. The
 * first pass warms the JVM; then READY is printed and a line on standard input awaited; then the second pass, as another
 * group, and the line {@code DONE seconds}, counted from its first message. With "pop" the rebalance is left to the broker, which
 * must have been told that both groups pop.
 */
public final class LoadConsumer {
    private LoadConsumer() {
    }

    public static void main(String[] args) throws Exception {
        read(args, args[2] + "_warm_up", "WARM").shutdown();
        System.out.println("READY");
        System.in.read();
        read(args, args[2], "DONE");
        Runtime.getRuntime().halt(0);
    }

    private static DefaultMQPushConsumer read(String[] args, String group, String label) throws Exception {
        long count = Long.parseLong(args[4]);
        AtomicLong received = new AtomicLong();
        AtomicLong began = new AtomicLong();
        CountDownLatch complete = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(args[0]);
        consumer.setInstanceName(group);
        consumer.setConsumeThreadMin(Integer.parseInt(args[3]));
        consumer.setConsumeThreadMax(Integer.parseInt(args[3]));
        if (args.length > 5) {
            consumer.setClientRebalance(false);
        }
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            began.compareAndSet(0, System.nanoTime());
            if (received.addAndGet(messages.size()) == count) {
                complete.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        complete.await();
        System.out.printf("%s %.3f%n", label, (System.nanoTime() - began.get()) / 1e9);
        return consumer;
    }
}
