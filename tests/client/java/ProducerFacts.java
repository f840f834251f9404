import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.impl.producer.TopicPublishInfo;
import org.apache.rocketmq.client.latency.MQFaultStrategy;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceType;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageType;
import org.apache.rocketmq.remoting.protocol.NamespaceUtil;

/**
 * Writes what Apache's classes say. Run by
 * {@code java -cp 'JARS/*' ProducerFacts.java producer_facts.json}, with the jars of RocketMQ 5.5.0.
 */
public final class ProducerFacts {
    private static final List<String> BROKERS = List.of("a", "b", "c");

    public static void main(String[] args) throws Exception {
        TreeMap<String, Object> facts = new TreeMap<>();
        facts.put("not_available_duration", durations());
        facts.put("faults", faults());
        facts.put("traces", traces());
        facts.put("namespaces", namespaces());
        Files.writeString(Path.of(args[0]), JSON.toJSONString(facts, JSONWriter.Feature.PrettyFormat) + "\n");
        System.exit(0);
    }

    private static Object durations() throws Exception {
        Method method = MQFaultStrategy.class.getDeclaredMethod("computeNotAvailableDuration", long.class);
        method.setAccessible(true);
        MQFaultStrategy strategy = strategy();
        List<Object> pairs = new ArrayList<>();
        for (long border : new long[] {0, 50, 100, 550, 1800, 3000, 5000, 10000, 15000, 1000000}) {
            for (long latency = Math.max(0, border - 1); latency <= border + 1; latency++) {
                pairs.add(List.of(latency, method.invoke(strategy, latency)));
            }
        }
        return pairs;
    }

    private static MQFaultStrategy strategy() {
        ClientConfig config = new ClientConfig();
        config.setSendLatencyEnable(true);
        return new MQFaultStrategy(config, null, null);
    }

    /** After each update: which brokers are available, which reachable, and to which a message may go after each broker. */
    private static Object faults() {
        MQFaultStrategy strategy = strategy();
        TopicPublishInfo info = new TopicPublishInfo();
        for (String broker : BROKERS) {
            for (int i = 0; i < 2; i++) {
                info.getMessageQueueList().add(new MessageQueue("topic", broker, i));
            }
        }
        Object[][] updates = {
            {"a", 10L, false, true}, {"b", 600L, false, true}, {"c", 549L, false, true}, {"a", 3000L, false, true},
            {"c", 20L, true, false}, {"a", 1L, false, true}, {"b", 5L, true, false}, {"c", 3L, false, true},
        };
        List<Object> steps = new ArrayList<>();
        for (Object[] update : updates) {
            strategy.updateFaultItem((String) update[0], (Long) update[1], (Boolean) update[2], (Boolean) update[3]);
            TreeMap<String, Object> step = new TreeMap<>();
            step.put("update", List.of(update));
            TreeMap<String, Boolean> available = new TreeMap<>();
            TreeMap<String, Boolean> reachable = new TreeMap<>();
            TreeMap<String, Set<String>> selected = new TreeMap<>();
            for (String broker : BROKERS) {
                MessageQueue queue = new MessageQueue("topic", broker, 0);
                available.put(broker, strategy.getAvailableFilter().filter(queue));
                reachable.put(broker, strategy.getReachableFilter().filter(queue));
            }
            for (String last : List.of("", "a", "b", "c")) {
                Set<String> brokers = new TreeSet<>();
                for (int i = 0; i < 300; i++) {
                    brokers.add(strategy.selectOneMessageQueue(info, last.isEmpty() ? null : last, !last.isEmpty()).getBrokerName());
                }
                selected.put(last, brokers);
            }
            step.put("available", available);
            step.put("reachable", reachable);
            step.put("selected", selected);
            steps.add(step);
        }
        return steps;
    }

    private static Object traces() {
        TreeMap<String, Object> traces = new TreeMap<>();
        for (TraceType type : TraceType.values()) {
            TraceContext context = new TraceContext();
            context.setTraceType(type);
            context.setTimeStamp(1700000000123L);
            context.setRegionId("DefaultRegion");
            context.setGroupName("group");
            context.setCostTime(12);
            context.setSuccess(type != TraceType.SubAfter);
            context.setRequestId("REQUEST");
            context.setContextCode(2);
            context.setAccessChannel(AccessChannel.LOCAL);
            context.setTraceBeans(new ArrayList<>());
            int beans = type == TraceType.SubBefore || type == TraceType.SubAfter ? 2 : 1;
            for (int i = 0; i < beans; i++) {
                TraceBean bean = new TraceBean();
                bean.setTopic("topic");
                bean.setMsgId("ID" + i);
                bean.setOffsetMsgId("OFFSET");
                bean.setTags("tag");
                bean.setKeys("k1 k2");
                bean.setStoreHost("127.0.0.1:10911");
                bean.setBodyLength(128);
                bean.setRetryTimes(i);
                bean.setMsgType(type == TraceType.EndTransaction ? MessageType.Trans_msg_Commit : MessageType.Delay_Msg);
                bean.setTransactionId("TX");
                bean.setTransactionState(LocalTransactionState.ROLLBACK_MESSAGE);
                bean.setFromTransactionCheck(true);
                context.getTraceBeans().add(bean);
            }
            traces.put(type.name(), List.of(TraceDataEncoder.encoderFromContextBean(context).getTransData(),
                new TreeSet<>(TraceDataEncoder.encoderFromContextBean(context).getTransKey())));
        }
        return traces;
    }

    private static Object namespaces() {
        List<Object> rows = new ArrayList<>();
        String[] names = {"topic", "%RETRY%group", "%DLQ%group", "ns%topic", "%RETRY%ns%group", "other%topic",
            "TBW102", "rmq_sys_x", "CID_RMQ_SYS_x", "nsx%topic", "ns%ns%topic", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC"};
        for (String namespace : new String[] {"", "ns"}) {
            for (String name : names) {
                rows.add(List.of(namespace, name, NamespaceUtil.wrapNamespace(namespace, name),
                    NamespaceUtil.withoutNamespace(name, namespace)));
            }
        }
        return rows;
    }
}
