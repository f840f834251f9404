package org.gantrymq.interop.grpc;

import com.alibaba.fastjson2.JSONObject;
import java.util.Base64;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * {@code GrpcProduce ENDPOINTS TOPIC}: sends the messages on standard input, one a line, and prints the receipts.
 *
 * <p>A line has {@code body} and may have {@code tag, keys, properties, message_group, lite_topic, priority, delay_ms} and
 * {@code transaction}: commit, rollback, or orphan, which is committed when the broker asks; {@code recall}: it is taken back at once; {@code again_s}: a send that
 * fails is tried again for so long.
 */
public final class GrpcProduce {
    private static final long ASKED_WITHIN_S = 60;

    private GrpcProduce() {
    }

    public static void main(String[] args) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        var lines = Lines.readInput();
        Set<String> orphans = lines.stream()
            .filter(line -> "orphan".equals(line.getString("transaction")))
            .map(line -> line.getString("body"))
            .collect(Collectors.toSet());
        CountDownLatch asked = new CountDownLatch(orphans.size());
        Producer producer = provider.newProducerBuilder()
            .setClientConfiguration(Lines.configuration(args[0]))
            .setTopics(args[1])
            .setTransactionChecker(message -> {
                byte[] body = new byte[message.getBody().remaining()];
                message.getBody().duplicate().get(body);
                if (!orphans.contains(Base64.getEncoder().encodeToString(body))) {
                    // Its end is on its way.
                    return TransactionResolution.UNKNOWN;
                }
                asked.countDown();
                return TransactionResolution.COMMIT;
            })
            .build();
        for (JSONObject line : lines) {
            Message message = message(provider, args[1], line);
            String end = line.getString("transaction");
            SendReceipt receipt;
            if (end == null) {
                receipt = send(producer, message, line.getLongValue("again_s"));
                if (line.getBooleanValue("recall")) {
                    producer.recallMessage(args[1], receipt.getRecallHandle());
                }
            } else {
                Transaction transaction = producer.beginTransaction();
                receipt = producer.send(message, transaction);
                if (end.equals("commit")) {
                    transaction.commit();
                } else if (end.equals("rollback")) {
                    transaction.rollback();
                }
            }
            Map<String, Object> json = new TreeMap<>();
            json.put("message_id", receipt.getMessageId().toString());
            Lines.print(json);
        }
        boolean complete = asked.await(ASKED_WITHIN_S, TimeUnit.SECONDS);
        producer.close();
        Runtime.getRuntime().halt(complete ? 0 : 1);
    }

    private static SendReceipt send(Producer producer, Message message, long againS) throws Exception {
        if (againS == 0) {
            return producer.send(message);
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(againS);
        while (true) {
            try {
                // Without a limit of its own a send that is under way when the proxy is killed never ends, whoever's proxy it is.
                return producer.sendAsync(message).get(5, TimeUnit.SECONDS);
            } catch (ExecutionException | TimeoutException e) {
                if (System.nanoTime() > deadline) {
                    throw e;
                }
                Thread.sleep(50);
            }
        }
    }

    private static Message message(ClientServiceProvider provider, String topic, JSONObject line) {
        MessageBuilder builder = provider.newMessageBuilder()
            .setTopic(topic)
            .setBody(Base64.getDecoder().decode(line.getString("body")));
        if (line.containsKey("tag")) {
            builder.setTag(line.getString("tag"));
        }
        if (line.containsKey("keys")) {
            builder.setKeys(line.getJSONArray("keys").toArray(String.class));
        }
        if (line.containsKey("message_group")) {
            builder.setMessageGroup(line.getString("message_group"));
        }
        if (line.containsKey("lite_topic")) {
            builder.setLiteTopic(line.getString("lite_topic"));
        }
        if (line.containsKey("priority")) {
            builder.setPriority(line.getIntValue("priority"));
        }
        if (line.containsKey("delay_ms")) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + line.getLongValue("delay_ms"));
        }
        if (line.containsKey("properties")) {
            line.getJSONObject("properties").forEach((name, value) -> builder.addProperty(name, value.toString()));
        }
        return builder.build();
    }
}
