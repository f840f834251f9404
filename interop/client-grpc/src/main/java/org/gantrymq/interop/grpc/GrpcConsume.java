package org.gantrymq.interop.grpc;

import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/**
 * {@code GrpcConsume ENDPOINTS GROUP TOPIC EXPRESSION MODE COUNT TIMEOUT_S}: prints the messages that come, one a line.
 *
 * <p>Ends after COUNT messages, or after TIMEOUT_S with exit status 1. MODE is push (COUNT is of different bodies), retry (every message is refused the first
 * time, so COUNT is of deliveries), fail (always), simple (acknowledged) or again (given a second more the first time). An EXPRESSION with a
 * blank in it is SQL92, unless it has {@code ||}.
 */
public final class GrpcConsume {
    private GrpcConsume() {
    }

    public static void main(String[] args) throws Exception {
        CountDownLatch missing = new CountDownLatch(Integer.parseInt(args[5]));
        long timeoutMs = 1000L * Integer.parseInt(args[6]);
        boolean isPush = args[4].equals("push") || args[4].equals("retry") || args[4].equals("fail");
        boolean complete = isPush ? push(args, missing, timeoutMs) : simple(args, missing, timeoutMs);
        Runtime.getRuntime().halt(complete ? 0 : 1);
    }

    private static Map<String, FilterExpression> subscription(String[] args) {
        boolean isSql = args[3].contains(" ") && !args[3].contains("||");
        FilterExpressionType type = isSql ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return Map.of(args[2], new FilterExpression(args[3], type));
    }

    private static boolean push(String[] args, CountDownLatch missing, long timeoutMs) throws Exception {
        String mode = args[4];
        Set<Object> bodies = ConcurrentHashMap.newKeySet();
        PushConsumer consumer = ClientServiceProvider.loadService().newPushConsumerBuilder()
            .setClientConfiguration(Lines.configuration(args[0]))
            .setConsumerGroup(args[1])
            .setSubscriptionExpressions(subscription(args))
            .setMessageListener(message -> {
                Map<String, Object> received = Lines.received(message);
                Lines.print(received);
                if (bodies.add(received.get("body")) || !mode.equals("push")) {
                    missing.countDown();
                }
                boolean fails = mode.equals("fail") || mode.equals("retry") && message.getDeliveryAttempt() == 1;
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build();
        boolean complete = missing.await(timeoutMs, TimeUnit.MILLISECONDS);
        consumer.close();
        return complete;
    }

    private static boolean simple(String[] args, CountDownLatch missing, long timeoutMs) throws Exception {
        SimpleConsumer consumer = ClientServiceProvider.loadService().newSimpleConsumerBuilder()
            .setClientConfiguration(Lines.configuration(args[0]))
            .setConsumerGroup(args[1])
            .setSubscriptionExpressions(subscription(args))
            .setAwaitDuration(Duration.ofSeconds(5))
            .build();
        long deadline = System.currentTimeMillis() + timeoutMs;
        while (missing.getCount() > 0 && System.currentTimeMillis() < deadline) {
            for (MessageView message : consumer.receive(32, Duration.ofSeconds(20))) {
                Lines.print(Lines.received(message));
                missing.countDown();
                settle(consumer, message, args[4]);
            }
        }
        consumer.close();
        return missing.getCount() == 0;
    }

    private static void settle(SimpleConsumer consumer, MessageView message, String mode) throws ClientException {
        if (mode.equals("again") && message.getDeliveryAttempt() == 1) {
            consumer.changeInvisibleDuration(message, Duration.ofSeconds(1));
        } else {
            consumer.ack(message);
        }
    }
}
