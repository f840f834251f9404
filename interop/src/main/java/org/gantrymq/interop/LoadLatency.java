package org.gantrymq.interop;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.ResponseCode;

/**
 * {@code LoadLatency NAMESRV TOPIC RATE SIZE WARM_UP_S SECONDS}: how long messages take from a producer to a consumer in this JVM.
 *
 * <p>RATE messages of SIZE bytes (16 at least) a second, by a clock: each carries the time at which it was to be sent, and a message
 * that is sent late, because something held up the producer, counts from that time. WARM_UP_S seconds come first; then READY is
 * printed and a line on standard input awaited; then SECONDS, and the line {@code DONE p50 p99 p99.9} in milliseconds.
 */
public final class LoadLatency {
    private static final int CONSUMER_THREADS = 20;

    private final DefaultMQProducer producer = new DefaultMQProducer("load_latency");
    private final DefaultMQPushConsumer consumer;
    private final String topic;
    private final int rate;
    private final int size;
    private final AtomicReference<Run> run = new AtomicReference<>();

    private LoadLatency(String[] args) throws Exception {
        topic = args[1];
        rate = Integer.parseInt(args[2]);
        size = Math.max(16, Integer.parseInt(args[3]));
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(30_000);
        consumer = new DefaultMQPushConsumer("load_" + topic);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeThreadMin(CONSUMER_THREADS);
        consumer.setConsumeThreadMax(CONSUMER_THREADS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                ByteBuffer body = ByteBuffer.wrap(message.getBody());
                run.get().received(body.getInt(), now - body.getLong());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
    }

    public static void main(String[] args) throws Exception {
        LoadLatency load = new LoadLatency(args);
        load.producer.start();
        load.consumer.start();
        load.send(Integer.parseInt(args[4]));
        System.out.println("READY");
        System.in.read();
        long[] latencies = load.send(Integer.parseInt(args[5]));
        System.out.printf("DONE %.3f %.3f %.3f%n", quantile(latencies, 0.5), quantile(latencies, 0.99), quantile(latencies, 0.999));
        Runtime.getRuntime().halt(0);
    }

    /** Sends for so long; the latencies in order, once all messages have come. */
    private long[] send(int seconds) throws Exception {
        Run sent = new Run(rate * seconds);
        run.set(sent);
        long began = System.nanoTime();
        for (int i = 0; i < sent.latencies.length; i++) {
            long due = began + i * 1_000_000_000L / rate;
            while (System.nanoTime() < due) {
                LockSupport.parkNanos(due - System.nanoTime());
            }
            byte[] body = ByteBuffer.allocate(size).putInt(i).putLong(due).array();
            sendOne(new Message(topic, body));
        }
        sent.complete.await();
        Arrays.sort(sent.latencies);
        return sent.latencies;
    }

    /** Until a broker takes it: a busy one refuses at once, and the time runs on. */
    private void sendOne(Message message) throws Exception {
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
            }

            @Override
            public void onException(Throwable e) {
                try {
                    if (!(e instanceof MQBrokerException) || ((MQBrokerException) e).getResponseCode() != ResponseCode.SYSTEM_BUSY) {
                        throw e;
                    }
                    sendOne(message);
                } catch (Throwable failure) {
                    failure.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            }
        });
    }

    private static double quantile(long[] sorted, double share) {
        return sorted[(int) Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)] / 1e6;
    }

    /** The latencies of numbered messages; what comes twice counts once. */
    private static final class Run {
        final long[] latencies;
        final CountDownLatch complete = new CountDownLatch(1);
        private int missing;

        Run(int count) {
            latencies = new long[count];
            missing = count;
        }

        synchronized void received(int number, long latency) {
            if (latencies[number] == 0) {
                latencies[number] = latency;
                if (--missing == 0) {
                    complete.countDown();
                }
            }
        }
    }
}
