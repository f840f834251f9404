package org.gantrymq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * {@code Produce NAMESRV GROUP TOPIC MODE}: sends the messages on standard input, prints a line for each result.
 *
 * <p>MODE is sync, async, oneway (no result lines), batch (all in one request) or batches (ten a request). "queue_id" in a message picks its queue
 * (sync only).
 */
public final class Produce {
    private static final int SEND_TIMEOUT_MS = 10_000;
    private static final int BATCH_SIZE = 10;

    private Produce() {
    }

    public static void main(String[] args) {
        try {
            run(args);
        } catch (Throwable e) {
            e.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void run(String[] args) throws Exception {
        String mode = args[3];
        DefaultMQProducer producer = new DefaultMQProducer(args[1]);
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.start();
        send(producer, args[2], mode, JsonLines.readInput());
        if (mode.equals("oneway")) {
            // An orderly shutdown may last 3 s; only what was sent one-way needs it.
            producer.shutdown();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void send(DefaultMQProducer producer, String topic, String mode, List<JSONObject> inputs)
        throws Exception {
        List<Message> messages = new ArrayList<>();
        for (JSONObject input : inputs) {
            messages.add(JsonLines.message(topic, input));
        }
        switch (mode) {
            case "sync":
                for (int i = 0; i < messages.size(); i++) {
                    Integer queueId = inputs.get(i).getInteger("queue_id");
                    Message message = messages.get(i);
                    print(queueId == null
                        ? producer.send(message)
                        : producer.send(message, (queues, m, id) -> queues.get((Integer) id), queueId));
                }
                break;
            case "async":
                sendAsync(producer, messages);
                break;
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                break;
            case "batch":
                print(producer.send(messages));
                break;
            case "batches":
                for (int i = 0; i < messages.size(); i += BATCH_SIZE) {
                    print(producer.send(messages.subList(i, Math.min(i + BATCH_SIZE, messages.size()))));
                }
                break;
            default:
                throw new IllegalArgumentException("mode " + mode);
        }
    }

    private static void sendAsync(DefaultMQProducer producer, List<Message> messages) throws Exception {
        CountDownLatch answered = new CountDownLatch(messages.size());
        for (Message message : messages) {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    print(result);
                    answered.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    JsonLines.print(Map.of("error", e.toString()));
                    answered.countDown();
                }
            });
        }
        if (!answered.await(SEND_TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(answered.getCount() + " sends without an answer");
        }
    }

    private static void print(SendResult result) {
        Map<String, Object> json = new TreeMap<>();
        json.put("status", result.getSendStatus().name());
        json.put("msg_id", result.getMsgId());
        json.put("offset_msg_id", result.getOffsetMsgId());
        json.put("broker", result.getMessageQueue().getBrokerName());
        json.put("queue_id", result.getMessageQueue().getQueueId());
        json.put("queue_offset", result.getQueueOffset());
        JsonLines.print(json);
    }
}
