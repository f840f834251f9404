// Prints the names that Apache RocketMQ's jars define, as JSON: tools/missing_features.py runs it.

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Pattern;

import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.attribute.EnumAttribute;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

public class JavaFeatures {
    private static final String PACKAGE = "org.apache.rocketmq.";
    /** Configuration classes by the server that reads them. */
    private static final String[] CONFIGS = {
        "common.BrokerConfig", "store.config.MessageStoreConfig", "remoting.netty.NettyServerConfig",
        "remoting.netty.NettyClientConfig", "auth.config.AuthConfig", "common.namesrv.NamesrvConfig",
        "common.ControllerConfig", "proxy.config.ProxyConfig", "tieredstore.MessageStoreConfig"};
    private static final String[] METRICS = {
        "broker.metrics.BrokerMetricsConstant", "broker.metrics.PopMetricsConstant",
        "store.metrics.DefaultStoreMetricsConstant", "remoting.metrics.RemotingMetricsConstant",
        "proxy.metrics.ProxyMetricsConstant", "controller.metrics.ControllerMetricsConstant",
        "tieredstore.metrics.TieredStoreMetricsConstant"};

    private static final Map<String, Map<String, String>> found = new TreeMap<>();

    public static void main(String[] args) throws Exception {
        constants("request codes", "remoting.protocol.RequestCode", ".*");
        constants("response codes", "remoting.protocol.RemotingSysResponseCode", ".*");
        constants("response codes", "remoting.protocol.ResponseCode", ".*");
        constants("message properties", "common.message.MessageConst", "PROPERTY_.*|TIMER_ENGINE_TYPE|DUP_INFO|MQ_.*");
        constants("configuration keys: TlsSystemConfig", "remoting.netty.TlsSystemConfig", "TLS_.*");
        for (String name : METRICS) {
            constants("metrics", name, "(GAUGE|COUNTER|HISTOGRAM)_.*");
        }
        for (String name : CONFIGS) {
            keys(name);
        }
        attributes("topic", "common.TopicAttributes");
        attributes("group", "common.SubscriptionGroupAttributes");
        MQAdminStartup.initCommand();
        Field commands = MQAdminStartup.class.getDeclaredField("SUB_COMMANDS");
        commands.setAccessible(true);
        for (Object command : (List<?>) commands.get(null)) {
            put("commands of mqadmin", ((SubCommand) command).commandName(), "");
        }
        put("version", MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION), "");
        System.out.println(json(found));
    }

    /** Adds the constants of a class: the values of strings, and the names of numbers with their values. */
    private static void constants(String kind, String className, String pattern) throws Exception {
        for (Field field : Class.forName(PACKAGE + className).getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && Pattern.matches(pattern, field.getName())) {
                field.setAccessible(true);
                Object value = field.get(null);
                if (value instanceof Integer) {
                    put(kind, field.getName(), value.toString());
                } else if (value instanceof String && Modifier.isFinal(field.getModifiers())) {
                    put(kind, (String) value, "");
                }
            }
        }
    }

    /** Adds the keys of a configuration class: its setters. Only defaults of booleans are equal on all machines. */
    private static void keys(String className) throws Exception {
        Class<?> config = Class.forName(PACKAGE + className);
        Object defaults = config.getDeclaredConstructor().newInstance();
        String kind = "configuration keys: " + (className.startsWith("tiered") ? "tiered " : "") + config.getSimpleName();
        for (Method method : config.getMethods()) {
            String name = method.getName();
            if (!name.startsWith("set") || method.getParameterCount() != 1) {
                continue;
            }
            String key = name.substring(3, 4).toLowerCase() + name.substring(4);
            String value = "";
            if (method.getParameterTypes()[0] == boolean.class) {
                for (String getter : new String[] {"is" + name.substring(3), "get" + name.substring(3), key}) {
                    try {
                        value = config.getMethod(getter).invoke(defaults).toString();
                    } catch (NoSuchMethodException e) {
                        continue;
                    }
                }
            }
            put(kind, key, value);
        }
    }

    private static void attributes(String owner, String className) throws Exception {
        Object all = Class.forName(PACKAGE + className).getField("ALL").get(null);
        for (Map.Entry<?, ?> entry : ((Map<?, ?>) all).entrySet()) {
            String name = owner + " " + entry.getKey();
            put("attributes", name, "");
            if (entry.getValue() instanceof EnumAttribute) {
                Field values = EnumAttribute.class.getDeclaredField("universe");
                values.setAccessible(true);
                for (Object value : (Iterable<?>) values.get(entry.getValue())) {
                    put("attributes", name + "=" + value, "");
                }
            }
        }
    }

    private static void put(String kind, String name, String value) {
        found.computeIfAbsent(kind, k -> new TreeMap<>()).put(name, value);
    }

    private static String json(Map<String, Map<String, String>> kinds) {
        StringBuilder text = new StringBuilder("{");
        for (String kind : new TreeSet<>(kinds.keySet())) {
            text.append(text.length() > 1 ? "," : "").append(quoted(kind)).append(":{");
            String separator = "";
            for (Map.Entry<String, String> entry : kinds.get(kind).entrySet()) {
                text.append(separator).append(quoted(entry.getKey())).append(":").append(quoted(entry.getValue()));
                separator = ",";
            }
            text.append("}");
        }
        return text.append("}").toString();
    }

    private static String quoted(String text) {
        return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }
}
