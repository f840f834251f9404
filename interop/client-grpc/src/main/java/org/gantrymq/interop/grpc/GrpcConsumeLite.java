package org.gantrymq.interop.grpc;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;

/**
 * {@code GrpcConsumeLite ENDPOINTS GROUP TOPIC LITE_TOPICS MODE COUNT TIMEOUT_S}: subscribes to lite topics, separated by commas,
 * from their first messages, and prints the messages that come, one a line.
 *
 * <p>Ends after COUNT messages, or after TIMEOUT_S with exit status 1. MODE is push, or retry (every message is refused the first time).
 */
public final class GrpcConsumeLite {
    private GrpcConsumeLite() {
    }

    public static void main(String[] args) throws Exception {
        CountDownLatch missing = new CountDownLatch(Integer.parseInt(args[5]));
        LitePushConsumer consumer = ClientServiceProvider.loadService().newLitePushConsumerBuilder()
            .setClientConfiguration(Lines.configuration(args[0]))
            .setConsumerGroup(args[1])
            .bindTopic(args[2])
            .setMessageListener(message -> {
                Lines.print(Lines.received(message));
                missing.countDown();
                boolean fails = args[4].equals("retry") && message.getDeliveryAttempt() == 1;
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build();
        for (String liteTopic : args[3].split(",")) {
            consumer.subscribeLite(liteTopic, OffsetOption.MIN_OFFSET);
        }
        boolean complete = missing.await(Integer.parseInt(args[6]), TimeUnit.SECONDS);
        consumer.close();
        Runtime.getRuntime().halt(complete ? 0 : 1);
    }
}
