package org.gantrymq.interop;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Receives by an SQL92 expression: {@code NAMESRV GROUP TOPIC EXPRESSION COUNT SECONDS}. Prints what comes, a message a
 * line, until there are COUNT and for half a second more; or {@code "refused"}, what the broker says of the expression.
 */
public final class SqlConsume {
    private SqlConsume() {
    }

    public static void main(String[] args) throws Exception {
        CountDownLatch missing = new CountDownLatch(Integer.parseInt(args[4]));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[2], MessageSelector.bySql(args[3]));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                JsonLines.print(JsonLines.received(message));
                missing.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        try {
            consumer.start();
        } catch (MQClientException e) {
            JsonLines.print(java.util.Map.of("refused", e.getMessage()));
            return;
        }
        boolean complete = missing.await(Long.parseLong(args[5]), TimeUnit.SECONDS);
        Thread.sleep(500);
        consumer.shutdown();
        System.exit(complete ? 0 : 1);
    }
}
