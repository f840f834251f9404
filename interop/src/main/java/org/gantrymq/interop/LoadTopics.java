package org.gantrymq.interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * {@code LoadTopics NAMESRV PREFIX TOPICS THREADS SIZE BATCH WARM_UP COUNT}: sends to the topics PREFIX0, PREFIX1 ... in turn.
 *
 * <p>Each request has BATCH messages of SIZE bytes; the threads wait for each answer. First WARM_UP messages; then READY is
 * printed and a line on standard input awaited; then COUNT messages, and the line {@code DONE seconds p99}, the time in ms that
 * 99 of 100 requests took at most.
 */
public final class LoadTopics {
    private LoadTopics() {
    }

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("load_topics");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        send(producer, args, Integer.parseInt(args[6]));
        System.out.println("READY");
        System.in.read();
        System.out.println("DONE " + send(producer, args, Integer.parseInt(args[7])));
        Runtime.getRuntime().halt(0);
    }

    private static String send(DefaultMQProducer producer, String[] args, int count) throws Exception {
        int topics = Integer.parseInt(args[2]);
        int batch = Integer.parseInt(args[5]);
        byte[] body = "x".repeat(Integer.parseInt(args[4])).getBytes();
        long[] took = new long[(count + batch - 1) / batch];
        AtomicLong requests = new AtomicLong();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        List<Thread> threads = new ArrayList<>();
        long began = System.nanoTime();
        for (int i = 0; i < Integer.parseInt(args[3]); i++) {
            Thread thread = new Thread(() -> {
                try {
                    long request;
                    while (failure.get() == null && (request = requests.getAndIncrement()) * batch < count) {
                        long sent = System.nanoTime();
                        sendOne(producer, args[1] + request % topics, body, (int) Math.min(batch, count - request * batch));
                        took[(int) request] = System.nanoTime() - sent;
                    }
                } catch (Throwable e) {
                    failure.compareAndSet(null, e);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            failure.get().printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        Arrays.sort(took);
        return String.format(Locale.ROOT, "%.3f %.3f", seconds, took[(took.length - 1) * 99 / 100] / 1e6);
    }

    private static void sendOne(DefaultMQProducer producer, String topic, byte[] body, int batch) throws Exception {
        SendStatus status;
        if (batch == 1) {
            status = producer.send(new Message(topic, body)).getSendStatus();
        } else {
            List<Message> messages = new ArrayList<>(batch);
            for (int i = 0; i < batch; i++) {
                messages.add(new Message(topic, body));
            }
            status = producer.send(messages).getSendStatus();
        }
        if (status != SendStatus.SEND_OK) {
            throw new IllegalStateException("answered " + status);
        }
    }
}
