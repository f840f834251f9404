package org.gantrymq.interop.grpc;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Messages as lines of JSON, bodies in Base64: what the Python tests write and read. */
final class Lines {
    private Lines() {
    }

    static ClientConfiguration configuration(String endpoints) {
        return ClientConfiguration.newBuilder()
            .setEndpoints(endpoints)
            .enableSsl(Boolean.getBoolean("gantry.ssl"))
            .build();
    }

    /** The objects on standard input, one a line, to its end. */
    static List<JSONObject> readInput() throws IOException {
        List<JSONObject> objects = new ArrayList<>();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            objects.add(JSON.parseObject(line));
        }
        return objects;
    }

    static Map<String, Object> received(MessageView message) {
        byte[] body = new byte[message.getBody().remaining()];
        message.getBody().duplicate().get(body);
        Map<String, Object> json = new TreeMap<>();
        json.put("topic", message.getTopic());
        json.put("message_id", message.getMessageId().toString());
        json.put("body", Base64.getEncoder().encodeToString(body));
        json.put("tag", message.getTag().orElse(null));
        json.put("keys", message.getKeys());
        json.put("message_group", message.getMessageGroup().orElse(null));
        json.put("lite_topic", message.getLiteTopic().orElse(null));
        json.put("priority", message.getPriority().orElse(null));
        json.put("delivery_timestamp", message.getDeliveryTimestamp().orElse(null));
        json.put("delivery_attempt", message.getDeliveryAttempt());
        json.put("born_host", message.getBornHost());
        json.put("born_timestamp", message.getBornTimestamp());
        json.put("properties", message.getProperties());
        return json;
    }

    /** Prints {@code json} as one line; lines of several threads do not mix. */
    static synchronized void print(Map<String, Object> json) {
        System.out.println(JSON.toJSONString(json));
        System.out.flush();
    }
}
