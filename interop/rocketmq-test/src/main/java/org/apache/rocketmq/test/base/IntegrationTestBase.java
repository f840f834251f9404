package org.apache.rocketmq.test.base;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicAttributes;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;
import org.gantrymq.interop.suite.OutsideBroker;
import org.junit.AssumptionViolatedException;

/**
 * Replaces Apache's class of this name in the tests jar. Apache's class starts the NameServer and the brokers in the
 * JVM of the tests. This one returns stand-ins for servers that run outside of it.
 *
 * The system property gantry.namesrv.port is the port of the NameServer on 127.0.0.1. The brokers are named
 * TestBrokerName_1, TestBrokerName_2 and so on.
 */
public class IntegrationTestBase {
    private static final AtomicInteger BROKER_INDEX = new AtomicInteger();
    private static final int TOPIC_CREATE_TIME_S = 30;

    /** Returns a stand-in that has the address of the NameServer, but does not run. */
    public static NamesrvController createAndStartNamesrv() {
        NettyServerConfig nettyServerConfig = new NettyServerConfig();
        nettyServerConfig.setListenPort(Integer.getInteger("gantry.namesrv.port"));
        return new NamesrvController(new NamesrvConfig(), nettyServerConfig);
    }

    /** Returns a stand-in for the next broker. */
    public static BrokerController createAndStartBroker(String nsAddr) {
        return OutsideBroker.of("TestBrokerName_" + BROKER_INDEX.incrementAndGet(), nsAddr);
    }

    public static BrokerController createAndStartBroker(MessageStoreConfig storeConfig, BrokerConfig brokerConfig) {
        throw new AssumptionViolatedException("the test starts a broker in its own JVM");
    }

    public static boolean initTopic(String topic, String nsAddr, String clusterName, int queueNumbers, CQType cqType) {
        return initTopic(topic, nsAddr, clusterName, queueNumbers, cqType, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(String topic, String nsAddr, String clusterName, CQType cqType) {
        return initTopic(topic, nsAddr, clusterName, BaseConf.QUEUE_NUMBERS, cqType, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(String topic, String nsAddr, String clusterName, TopicMessageType type) {
        return initTopic(topic, nsAddr, clusterName, BaseConf.QUEUE_NUMBERS, CQType.SimpleCQ, type);
    }

    public static boolean initTopic(
        String topic, String nsAddr, String clusterName, int queueNumbers, CQType cqType, TopicMessageType type) {
        if (cqType != CQType.SimpleCQ) {
            throw new AssumptionViolatedException("the broker refuses " + cqType + " topics");
        }
        Map<String, String> attributes = new HashMap<>();
        if (type != TopicMessageType.NORMAL) {
            attributes.put("+" + TopicAttributes.TOPIC_MESSAGE_TYPE_ATTRIBUTE.getName(), type.toString());
        }
        return MQAdminTestUtils.createTopic(nsAddr, clusterName, topic, queueNumbers, attributes, TOPIC_CREATE_TIME_S);
    }

    public static void initMQAdmin(String nsAddr) {
        try {
            MQAdminTestUtils.startAdmin(nsAddr);
        } catch (MQClientException error) {
            throw new IllegalStateException(error);
        }
    }
}
