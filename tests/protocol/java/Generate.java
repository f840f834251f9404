import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicLong;
import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import com.alibaba.fastjson2.JSONWriter;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.message.MessageVersion;
import org.apache.rocketmq.remoting.protocol.DataVersion;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.SerializeType;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.body.KVTable;
import org.apache.rocketmq.remoting.protocol.body.RegisterBrokerBody;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigAndMappingSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.body.TopicList;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.remoting.protocol.header.GetConsumerListByGroupResponseBody;
import org.apache.rocketmq.remoting.protocol.header.PullMessageResponseHeader;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeaderV2;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumeType;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumerData;
import org.apache.rocketmq.remoting.protocol.heartbeat.HeartbeatData;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.heartbeat.ProducerData;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.route.QueueData;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;
import org.apache.rocketmq.remoting.protocol.statictopic.TopicQueueMappingInfo;
import org.apache.rocketmq.store.MessageExtEncoder;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** Writes what Apache RocketMQ's own classes encode, for the tests of the formats. See README.md. */
public class Generate {
    static Path dir;

    public static void main(String[] args) throws Exception {
        dir = Path.of(args[0]);
        for (SerializeType type : SerializeType.values()) {
            frames(type);
        }
        records();
        batch();
        bodies();
        for (CompressionType type : CompressionType.values()) {
            write("body." + type.name().toLowerCase(), CompressorFactory.getCompressor(type).compress(plain(), 5));
        }
        facts();
    }

    static void frames(SerializeType type) throws Exception {
        String name = type.name().toLowerCase();

        RemotingCommand request = RemotingCommand.createRequestCommand(310, sendHeader());
        request.setSerializeTypeCurrentRPC(type);
        request.setVersion(479);
        request.setOpaque(Integer.MIN_VALUE);
        request.setBody("hello".getBytes(StandardCharsets.UTF_8));
        write("send-request-reflected." + name, bytes(request.encode()));

        // What Netty sends: the fast header writes its fields itself, in the order a to n.
        RemotingCommand fast = RemotingCommand.createRequestCommand(310, sendHeader());
        fast.setSerializeTypeCurrentRPC(type);
        fast.setVersion(479);
        fast.setOpaque(7);
        fast.setBody("hello".getBytes(StandardCharsets.UTF_8));
        ByteBuf out = Unpooled.buffer();
        fast.fastEncodeHeader(out);
        out.writeBytes(fast.getBody());
        write("send-request." + name, bytes(out.nioBuffer()));

        PullMessageResponseHeader header = new PullMessageResponseHeader();
        header.setSuggestWhichBrokerId(1L);
        header.setNextBeginOffset(9_000_000_000L);
        header.setMinOffset(0L);
        header.setMaxOffset(Long.MAX_VALUE);
        RemotingCommand response = RemotingCommand.createResponseCommand(19, "no \"new\" message\n\t\u0001\u00e4\u4e2d\ud83d\ude00 yet");
        response.writeCustomHeader(header);
        response.setSerializeTypeCurrentRPC(type);
        response.setLanguage(LanguageCode.GO);
        response.setVersion(0);
        response.setOpaque(-5);
        write("pull-response." + name, bytes(response.encode()));

        RemotingCommand bare = RemotingCommand.createRequestCommand(34, null);
        bare.setSerializeTypeCurrentRPC(type);
        bare.setVersion(479);
        bare.setOpaque(1);
        bare.markOnewayRPC();
        write("oneway." + name, bytes(bare.encode()));
    }

    static SendMessageRequestHeaderV2 sendHeader() {
        SendMessageRequestHeaderV2 header = new SendMessageRequestHeaderV2();
        header.setA("group-1");
        header.setB("TopicTest");
        header.setC("TBW102");
        header.setD(4);
        header.setE(3);
        header.setF(0);
        header.setG(1700000000123L);
        header.setH(0);
        Map<String, String> properties = new LinkedHashMap<>();
        properties.put("KEYS", "k1 k2");
        properties.put("UNIQ_KEY", "7F0000010001000000000000000A0001");
        properties.put("TAGS", "\u4e2d\u6587");
        header.setI(MessageDecoder.messageProperties2String(properties));
        header.setJ(0);
        header.setK(false);
        header.setL(16);
        header.setM(false);
        return header;
    }

    static void records() throws Exception {
        String[][] cases = {
            {"v1-ipv4", "TopicTest", "10.1.2.3", "10.1.2.4"},
            {"v1-ipv6", "TopicTest", "2001:db8::1", "fe80::2"},
            {"v1-mixed", "TopicTest", "10.1.2.3", "fe80::2"},
            {"v2-ipv4", "%RETRY%" + "g".repeat(150), "10.1.2.3", "10.1.2.4"},
        };
        for (String[] c : cases) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(c[1]);
            message.setBody("the body \u4e2d".getBytes(StandardCharsets.UTF_8));
            message.setBodyCRC(org.apache.rocketmq.common.UtilAll.crc32(message.getBody()));
            message.setQueueId(3);
            message.setFlag(-2);
            message.setQueueOffset(5_000_000_000L);
            message.setCommitLogOffset(0L);
            message.setBornTimestamp(1700000000123L);
            message.setBornHost(new InetSocketAddress(InetAddress.getByName(c[2]), 40001));
            message.setStoreTimestamp(1700000000456L);
            message.setStoreHost(new InetSocketAddress(InetAddress.getByName(c[3]), 10911));
            if (c[2].contains(":")) {
                message.setBornHostV6Flag();
            }
            if (c[3].contains(":")) {
                message.setStoreHostAddressV6Flag();
            }
            message.setReconsumeTimes(2);
            message.setPreparedTransactionOffset(77L);
            message.setVersion(c[1].length() > 127 ? MessageVersion.MESSAGE_VERSION_V2 : MessageVersion.MESSAGE_VERSION_V1);
            message.setPropertiesString("KEYS\u0001k1 k2\u0002TAGS\u0001a\u0002");
            MessageExtEncoder encoder = new MessageExtEncoder(new MessageStoreConfig());
            encoder.encode(message);
            ByteBuffer buffer = encoder.getEncoderBuffer();
            byte[] record = new byte[buffer.getInt(0)];
            buffer.get(record);
            write("record-" + c[0] + ".bin", record);
        }
        // The other encoder, which admin tools and HA-less proxies use.
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic("TopicTest");
        message.setBody(plain());
        message.setSysFlag(1 | 1 << 8);
        message.setBornHost(new InetSocketAddress(InetAddress.getByName("10.1.2.3"), 40001));
        message.setStoreHost(new InetSocketAddress(InetAddress.getByName("10.1.2.4"), 10911));
        message.putUserProperty("colour", "red");
        write("record-lz4.bin", MessageDecoder.encode(message, true));
    }

    static void batch() {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Message message = new Message("TopicTest", ("body " + i).repeat(i).getBytes(StandardCharsets.UTF_8));
            message.setFlag(i - 1);
            MessageAccessor.setProperties(message, new HashMap<>());
            message.putUserProperty("n", String.valueOf(i));
            messages.add(message);
        }
        write("batch.bin", MessageDecoder.encodeMessages(messages));
    }

    static void bodies() throws Exception {
        TopicRouteData route = new TopicRouteData();
        QueueData queues = new QueueData();
        queues.setBrokerName("broker-a");
        queues.setReadQueueNums(8);
        queues.setWriteQueueNums(4);
        queues.setPerm(6);
        route.setQueueDatas(List.of(queues));
        HashMap<Long, String> addresses = new HashMap<>();
        addresses.put(0L, "10.1.2.4:10911");
        addresses.put(1L, "10.1.2.5:10911");
        BrokerData broker = new BrokerData("DefaultCluster", "broker-a", addresses);
        route.setBrokerDatas(List.of(broker));
        json("route", route);
        route.setOrderTopicConf("broker-a:4");
        write("route-standard.json", route.encode(JSONWriter.Feature.BrowserCompatible, JSONWriter.Feature.MapSortField));
        write("route-standard.fastjson1.json", JSON.toJSONString(route, SerializerFeature.BrowserCompatible,
            SerializerFeature.QuoteFieldNames, SerializerFeature.SkipTransientField, SerializerFeature.MapSortField)
            .getBytes(StandardCharsets.UTF_8));

        ClusterInfo cluster = new ClusterInfo();
        HashMap<String, BrokerData> brokers = new HashMap<>();
        brokers.put("broker-a", broker);
        cluster.setBrokerAddrTable(brokers);
        cluster.setClusterAddrTable(new HashMap<>(Map.of("DefaultCluster", new HashSet<>(List.of("broker-a")))));
        json("cluster", cluster);

        TopicList topics = new TopicList();
        topics.setTopicList(new HashSet<>(List.of("TopicTest")));
        json("topic-list", topics);
        KVTable table = new KVTable();
        table.setTable(new HashMap<>(Map.of("a,1:\"x\"", "{2:3}")));
        json("kv-table", table);
        GetConsumerListByGroupResponseBody consumers = new GetConsumerListByGroupResponseBody();
        consumers.setConsumerIdList(List.of("10.1.2.3@77#1"));
        json("consumer-list", consumers);

        HeartbeatData heartbeat = new HeartbeatData();
        heartbeat.setClientID("10.1.2.3@77#1");
        ProducerData producer = new ProducerData();
        producer.setGroupName("producers");
        heartbeat.setProducerDataSet(new HashSet<>(List.of(producer)));
        ConsumerData consumer = new ConsumerData();
        consumer.setGroupName("consumers");
        consumer.setConsumeType(ConsumeType.CONSUME_PASSIVELY);
        consumer.setMessageModel(MessageModel.CLUSTERING);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        SubscriptionData subscription = FilterAPI.buildSubscriptionData("TopicTest", "TagA || \u4e2d\u6587");
        subscription.setSubVersion(1700000000123L);
        consumer.getSubscriptionDataSet().add(subscription);
        heartbeat.setConsumerDataSet(new HashSet<>(List.of(consumer)));
        json("heartbeat", heartbeat);

        DataVersion version = new DataVersion();
        version.setStateVersion(1);
        version.setTimestamp(1700000000123L);
        version.setCounter(new AtomicLong(42));
        TopicConfig topicA = new TopicConfig("TopicA", 8, 4, 6);
        TopicConfig topicB = new TopicConfig("TopicB", 1, 1, 2, 3);
        topicB.setOrder(true);
        topicB.setAttributes(new HashMap<>(Map.of("message.type", "NORMAL")));
        ConcurrentMap<String, TopicConfig> configs = new ConcurrentHashMap<>(Map.of("TopicA", topicA, "TopicB", topicB));
        TopicConfigAndMappingSerializeWrapper wrapper = new TopicConfigAndMappingSerializeWrapper();
        wrapper.setDataVersion(version);
        wrapper.setMappingDataVersion(version);
        wrapper.setTopicConfigTable(configs);
        TopicQueueMappingInfo mapping = new TopicQueueMappingInfo("TopicA", 8, "broker-a", 3);
        mapping.setCurrIdMap(new ConcurrentHashMap<>(Map.of(0, 1)));
        wrapper.setTopicQueueMappingInfoMap(new ConcurrentHashMap<>(Map.of("TopicA", mapping)));
        RegisterBrokerBody body = new RegisterBrokerBody();
        body.setTopicConfigSerializeWrapper(wrapper);
        body.setFilterServerList(new ArrayList<>(List.of("10.1.2.3:30000")));
        json("register", body);
        write("register.zlib", body.encode(true));
        json("register-3.0", wrapper);
    }

    /** As 5.5.0 writes it (fastjson2) and as brokers and clients up to 5.3 do (fastjson 1.2). */
    static void json(String name, RemotingSerializable value) {
        write(name + ".json", value.encode());
        write(name + ".fastjson1.json", JSON.toJSONString(value).getBytes(StandardCharsets.UTF_8));
    }

    static void facts() throws Exception {
        StringBuilder facts = new StringBuilder();
        
        for (MQVersion.Version version : List.of(MQVersion.Version.V3_0_11, MQVersion.Version.V4_9_4,
            MQVersion.Version.V5_0_0, MQVersion.Version.V5_3_3, MQVersion.Version.V5_5_0)) {
            facts.append("version\t").append(version).append('\t').append(version.ordinal()).append('\n');
        }
        for (String text : new String[] {"", "a", "TagA", "\u4e2d\u6587", "\ud83d\ude00", "x".repeat(100)}) {
            facts.append("hash\t").append(text).append('\t').append(text.hashCode()).append('\n');
        }
        for (String ip : new String[] {"10.1.2.4", "2001:db8::1"}) {
            for (long offset : new long[] {0, 9_000_000_000L, Long.MAX_VALUE}) {
                String id = MessageDecoder.createMessageId(new InetSocketAddress(InetAddress.getByName(ip), 10911), offset);
                facts.append("id\t").append(ip).append('\t').append(offset).append('\t').append(id).append('\n');
            }
        }
        // Without the address, which is the machine's own.
        String key = MessageClientIDSetter.createUniqID();
        int address = 2 * MessageClientIDSetter.getIPFromID(key).length;
        facts.append("unique\t").append(MessageClientIDSetter.getPidFromID(key)).append('\t')
            .append(key.substring(address)).append('\n');
        for (String text : new String[] {
            "a\u0001b\u0002", "a\u0001b", "a\u0001b\u0002c\u0001d", "a\u0001\u0002c\u0001d\u0002", "\u0001b\u0002", "a\u0002b\u0001c\u0002",
            "a\u0001b\u0001c\u0002", "a\u0001b\u0002a\u0001c\u0002", "\u0002\u0002a\u0001b\u0002\u0002", "abc", ""}) {
            facts.append("properties\t").append(hex(text)).append('\t');
            for (Map.Entry<String, String> e : MessageDecoder.string2messageProperties(text).entrySet()) {
                facts.append(hex(e.getKey())).append('=').append(hex(e.getValue())).append(' ');
            }
            facts.append('\n');
        }
        write("facts.tsv", facts.toString().getBytes(StandardCharsets.UTF_8));
    }

    static String hex(String text) {
        StringBuilder hex = new StringBuilder();
        for (byte b : text.getBytes(StandardCharsets.UTF_8)) {
            hex.append(String.format("%02x", b));
        }
        return hex.toString();
    }

    /** The text that the compressed bodies hold. */
    static byte[] plain() {
        return "RocketMQ \u4e2d\u6587 ".repeat(200).getBytes(StandardCharsets.UTF_8);
    }

    static byte[] bytes(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }

    static void write(String name, byte[] content) {
        try {
            Files.write(dir.resolve(name), content);
        } catch (java.io.IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }
}
