package org.gantrymq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * {@code TransactionProducer NAMESRV GROUP TOPIC CHECKS SECONDS}: sends the messages on standard input in transactions of
 * their own, then answers the broker's checks until it has answered CHECKS, or the time is up (exit status 2).
 *
 * <p>The user property "local" of a message is the state after the local transaction, "check" the answer to each check:
 * COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW. Prints a line for each send and each check.
 */
public final class TransactionProducer {
    private TransactionProducer() {
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
        CountDownLatch checks = new CountDownLatch(Integer.parseInt(args[3]));
        TransactionMQProducer producer = new TransactionMQProducer(args[1]);
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(new Listener(checks));
        producer.start();
        for (JSONObject input : JsonLines.readInput()) {
            print(producer.sendMessageInTransaction(JsonLines.message(args[2], input), null));
        }
        if (!checks.await(Integer.parseInt(args[4]), TimeUnit.SECONDS)) {
            System.err.println(checks.getCount() + " checks did not come");
            Runtime.getRuntime().halt(2);
        }
        // An orderly shutdown sends what is still on its way one-way.
        producer.shutdown();
        Runtime.getRuntime().halt(0);
    }

    private static void print(TransactionSendResult result) {
        Map<String, Object> json = new TreeMap<>();
        json.put("status", result.getSendStatus().name());
        json.put("msg_id", result.getMsgId());
        json.put("transaction_id", result.getTransactionId());
        json.put("queue_id", result.getMessageQueue().getQueueId());
        json.put("state", result.getLocalTransactionState().name());
        JsonLines.print(json);
    }

    private static final class Listener implements TransactionListener {
        private final CountDownLatch checks;

        Listener(CountDownLatch checks) {
            this.checks = checks;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.valueOf(message.getUserProperty("local"));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            Map<String, Object> json = new TreeMap<>(Map.of("checked", JsonLines.received(message)));
            json.put("transaction_id", message.getTransactionId());
            JsonLines.print(json);
            checks.countDown();
            return LocalTransactionState.valueOf(message.getUserProperty("check"));
        }
    }
}
