package org.gantrymq.interop;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * {@code AclClient NAMESRV ACCESS_KEY SECRET_KEY TOPIC GROUP COUNT}: signs all it does, sends COUNT messages and, if
 * that went well, receives them.
 *
 * <p>Prints a line for each message sent, {"sent": status}, and received, {"body": text}; {"code", "remark"} of a
 * broker's refusal ends it.
 */
public final class AclClient {
    private static final int TIMEOUT_MS = 10_000;
    private static final long RECEIVE_MS = 40_000;

    private AclClient() {
    }

    public static void main(String[] args) {
        try {
            run(args);
        } catch (Throwable e) {
            // A producer says what a broker said as the cause of its own error.
            if (e.getCause() instanceof MQBrokerException) {
                MQBrokerException refusal = (MQBrokerException) e.getCause();
                JsonLines.print(Map.of("code", refusal.getResponseCode(), "remark", refusal.getErrorMessage()));
            } else {
                e.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(String[] args) throws Exception {
        RPCHook hook = new AclClientRPCHook(new SessionCredentials(args[1], args[2]));
        int count = Integer.parseInt(args[5]);
        DefaultMQProducer producer = new DefaultMQProducer("acl_producer", hook);
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        for (int i = 0; i < count; i++) {
            Message message = new Message(args[3], ("body " + i).getBytes(StandardCharsets.UTF_8));
            JsonLines.print(Map.of("sent", producer.send(message).getSendStatus().name()));
        }
        receive(args[0], hook, args[3], args[4], count);
    }

    private static void receive(String namesrv, RPCHook hook, String topic, String group, int count) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group, hook);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        long deadline = System.currentTimeMillis() + RECEIVE_MS;
        for (int received = 0; received < count && System.currentTimeMillis() < deadline; ) {
            List<MessageExt> messages = consumer.poll(500);
            for (MessageExt message : messages) {
                JsonLines.print(Map.of("body", new String(message.getBody(), StandardCharsets.UTF_8)));
            }
            received += messages.size();
        }
    }
}
