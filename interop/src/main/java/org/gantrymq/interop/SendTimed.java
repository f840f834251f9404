package org.gantrymq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * {@code SendTimed NAMESRV TOPIC}: sends the messages on standard input, prints a line for each.
 *
 * <p>"deliver_ms", "delay_ms" or "delay_s" in a message says when it is to come; "recall" true takes it back at once.
 */
public final class SendTimed {
    private SendTimed() {
    }

    public static void main(String[] args) {
        try {
            run(args[0], args[1]);
        } catch (Throwable e) {
            e.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void run(String namesrv, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop_timed");
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        for (JSONObject input : JsonLines.readInput()) {
            Message message = JsonLines.message(topic, input);
            if (input.containsKey("deliver_ms")) {
                message.setDeliverTimeMs(input.getLongValue("deliver_ms"));
            } else if (input.containsKey("delay_ms")) {
                message.setDelayTimeMs(input.getLongValue("delay_ms"));
            } else {
                message.setDelayTimeSec(input.getLongValue("delay_s"));
            }
            JsonLines.print(send(producer, topic, message, input.getBooleanValue("recall")));
        }
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> send(DefaultMQProducer producer, String topic, Message message, boolean recall) {
        Map<String, Object> json = new TreeMap<>();
        try {
            SendResult result = producer.send(message);
            json.put("status", result.getSendStatus().name());
            json.put("msg_id", result.getMsgId());
            json.put("recall_handle", result.getRecallHandle());
            if (recall) {
                json.put("recalled", producer.recallMessage(topic, result.getRecallHandle()));
            }
        } catch (Exception e) {
            json.put("error", e.toString());
        }
        return json;
    }
}
