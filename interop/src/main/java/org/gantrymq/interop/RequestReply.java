package org.gantrymq.interop;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * {@code RequestReply NAMESRV TOPIC ROLE COUNT}: requests between clients.
 *
 * <p>ROLE is replier: answers every message of the topic with "re: " and its body, until its input ends; or asker: asks COUNT
 * questions, half of them with a callback, and prints the answers, one a line.
 */
public final class RequestReply {
    private static final long TIMEOUT_MS = 20_000;

    private RequestReply() {
    }

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop_" + args[2]);
        producer.setNamesrvAddr(args[0]);
        producer.start();
        if (args[2].equals("replier")) {
            reply(producer, args[0], args[1]);
        } else {
            ask(producer, args[1], Integer.parseInt(args[3]));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void reply(DefaultMQProducer producer, String nameServer, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("interop_repliers");
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String answer = "re: " + new String(message.getBody(), StandardCharsets.UTF_8);
                try {
                    producer.send(MessageUtil.createReplyMessage(message, answer.getBytes(StandardCharsets.UTF_8)), 3000);
                } catch (Exception e) {
                    e.printStackTrace();
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (System.in.read() >= 0) {
            // Until the input ends.
        }
        consumer.shutdown();
    }

    private static void ask(DefaultMQProducer producer, String topic, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            Message question = new Message(topic, ("question " + i).getBytes(StandardCharsets.UTF_8));
            Message answer;
            if (i % 2 == 0) {
                answer = producer.request(question, TIMEOUT_MS);
            } else {
                CompletableFuture<Message> future = new CompletableFuture<>();
                producer.request(question, new RequestCallback() {
                    @Override
                    public void onSuccess(Message message) {
                        // Java's client calls it with null once the question is sent, and again with the answer.
                        if (message != null) {
                            future.complete(message);
                        }
                    }

                    @Override
                    public void onException(Throwable e) {
                        future.completeExceptionally(e);
                    }
                }, TIMEOUT_MS);
                answer = future.get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
            }
            Map<String, Object> fields = new TreeMap<>();
            fields.put("answer", new String(answer.getBody(), StandardCharsets.UTF_8));
            JsonLines.print(fields);
        }
    }
}
