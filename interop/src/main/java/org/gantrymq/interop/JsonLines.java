package org.gantrymq.interop;

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
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages as lines of JSON, bodies in Base64: what the Python tests write and read. */
final class JsonLines {
    private JsonLines() {
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

    /** A message from {@code body, tags, keys, flag, delay_level, properties}; only the body is required. */
    static Message message(String topic, JSONObject json) {
        Message message = new Message(topic, Base64.getDecoder().decode(json.getString("body")));
        message.setFlag(json.getIntValue("flag"));
        if (json.containsKey("tags")) {
            message.setTags(json.getString("tags"));
        }
        if (json.containsKey("keys")) {
            message.setKeys(json.getString("keys"));
        }
        if (json.containsKey("delay_level")) {
            message.setDelayTimeLevel(json.getIntValue("delay_level"));
        }
        if (json.containsKey("properties")) {
            json.getJSONObject("properties").forEach((k, v) -> message.putUserProperty(k, v.toString()));
        }
        return message;
    }

    static Map<String, Object> received(MessageExt message) {
        Map<String, Object> json = new TreeMap<>();
        json.put("topic", message.getTopic());
        json.put("queue_id", message.getQueueId());
        json.put("queue_offset", message.getQueueOffset());
        json.put("msg_id", message.getMsgId());
        json.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        json.put("flag", message.getFlag());
        json.put("sys_flag", message.getSysFlag());
        json.put("reconsume_times", message.getReconsumeTimes());
        json.put("born_timestamp", message.getBornTimestamp());
        json.put("store_timestamp", message.getStoreTimestamp());
        json.put("tags", message.getTags());
        json.put("keys", message.getKeys());
        json.put("properties", message.getProperties());
        return json;
    }

    /** Prints {@code json} as one line; lines of several threads do not mix. */
    static synchronized void print(Map<String, Object> json) {
        System.out.println(JSON.toJSONString(json));
        System.out.flush();
    }
}
