package org.gantrymq.interop.suite;

import java.util.List;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.pop.orderly.ConsumerOrderInfoManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.header.QueryConsumerOffsetRequestHeader;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.junit.AssumptionViolatedException;

/**
 * Stand-in for a broker that runs outside of this JVM. The broker is never initialized or started. Each method that the
 * integration tests call becomes an admin request. If a call has no such request, the test is skipped.
 */
public final class OutsideBroker extends BrokerController {
    private static final long TIMEOUT_MS = 10_000;

    private final DefaultMQAdminExt admin;
    private final String address;
    private final MessageStore store;

    /** Returns the broker with this name. */
    public static OutsideBroker of(String name, String nsAddr) {
        return call(() -> {
            DefaultMQAdminExt admin = new DefaultMQAdminExt(TIMEOUT_MS);
            admin.setInstanceName("OutsideBroker-" + name);
            admin.setNamesrvAddr(nsAddr);
            admin.start();
            String address = admin.examineBrokerClusterInfo().getBrokerAddrTable().get(name).selectBrokerAddr();
            Properties found = admin.getBrokerConfig(address);
            Config config = new Config(found.getProperty("brokerClusterName"), name, address, nsAddr);
            config.changes = change -> call(() -> {
                admin.updateBrokerConfig(address, change);
                return null;
            });
            return new OutsideBroker(config, admin, address);
        });
    }

    private OutsideBroker(Config config, DefaultMQAdminExt admin, String address) throws Exception {
        super(config, new NettyServerConfig(), new NettyClientConfig(), new StoreConfig(config));
        this.admin = admin;
        this.address = address;
        this.store = new Store(this);
        getBrokerOuterAPI().updateNameServerAddressList(config.getNamesrvAddr());
        getBrokerOuterAPI().start();
    }

    @Override
    public String getBrokerAddr() {
        return address;
    }

    @Override
    public MessageStore getMessageStore() {
        return store;
    }

    @Override
    public TopicConfigManager getTopicConfigManager() {
        return admin == null ? super.getTopicConfigManager() : new Topics();
    }

    @Override
    public SubscriptionGroupManager getSubscriptionGroupManager() {
        return admin == null ? super.getSubscriptionGroupManager() : new Groups();
    }

    @Override
    public ConsumerOffsetManager getConsumerOffsetManager() {
        return admin == null ? super.getConsumerOffsetManager() : new Offsets();
    }

    @Override
    public ConsumerOrderInfoManager getConsumerOrderInfoManager() {
        if (admin == null) {
            return super.getConsumerOrderInfoManager();
        }
        throw new AssumptionViolatedException("the test reads the order information in the broker's memory");
    }

    /** The broker registers its topics itself. */
    @Override
    public synchronized void registerBrokerAll(boolean checkOrderConfig, boolean oneway, boolean forceRegister) {
    }

    @Override
    public void registerServerRPCHook(RPCHook rpcHook) {
        throw new AssumptionViolatedException("the test adds a hook to the broker in its own JVM");
    }

    @Override
    public void shutdown() {
        throw new AssumptionViolatedException("the test restarts the broker in its own JVM");
    }

    private MQClientAPIImpl api() {
        return admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
    }

    private static <T> T call(Callable<T> request) {
        try {
            return request.call();
        } catch (RuntimeException error) {
            throw error;
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private interface Changes {
        void apply(Properties change);
    }

    /** Configuration whose setters change the broker outside. */
    private static final class Config extends BrokerConfig {
        private Changes changes;

        Config(String cluster, String name, String address, String nsAddr) {
            setBrokerClusterName(cluster);
            setBrokerName(name);
            setNamesrvAddr(nsAddr);
            setBrokerIP1("127.0.0.1");
            setListenPort(Integer.parseInt(address.substring(address.lastIndexOf(':') + 1)));
        }

        private void change(String key, Object value) {
            Properties change = new Properties();
            change.setProperty(key, value.toString());
            changes.apply(change);
        }

        @Override
        public void setEnableNotifyAfterPopOrderLockRelease(boolean value) {
            change("enableNotifyAfterPopOrderLockRelease", value);
        }

        @Override
        public void setEnablePopBufferMerge(boolean value) {
            change("enablePopBufferMerge", value);
        }

        @Override
        public void setEnableSingleTopicRegister(boolean value) {
            change("enableSingleTopicRegister", value);
        }

        @Override
        public void setEnableSplitRegistration(boolean value) {
            change("enableSplitRegistration", value);
        }

        @Override
        public void setEstimateAccumulation(boolean value) {
            change("estimateAccumulation", value);
        }

        @Override
        public void setLongPollingEnable(boolean value) {
            change("longPollingEnable", value);
        }

        @Override
        public void setPopConsumerKVServiceEnable(boolean value) {
            if (value) {
                throw new AssumptionViolatedException("the broker has no pop store in RocksDB");
            }
            change("popConsumerKVServiceEnable", value);
        }

        @Override
        public void setPopFromRetryProbabilityForPriority(int value) {
            change("popFromRetryProbabilityForPriority", value);
        }

        @Override
        public void setPriorityOrderAsc(boolean value) {
            change("priorityOrderAsc", value);
        }

        @Override
        public void setShortPollingTimeMills(long value) {
            change("shortPollingTimeMills", value);
        }

        @Override
        public void setTransactionCheckInterval(long value) {
            change("transactionCheckInterval", value);
        }

        @Override
        public void setUseSeparateRetryQueue(boolean value) {
            change("useSeparateRetryQueue", value);
        }

        @Override
        public void setUseServerSideResetOffset(boolean value) {
            change("useServerSideResetOffset", value);
        }
    }

    /** Configuration of the store. Its directory is that of the stand-in, which stores nothing. */
    private static final class StoreConfig extends MessageStoreConfig {
        private final Config config;

        StoreConfig(Config config) {
            this.config = config;
            setStorePathRootDir(System.getProperty("java.io.tmpdir") + "/" + config.getBrokerName());
            setHaListenPort(0);
        }

        @Override
        public void setAppendTopicForTimerDeleteKey(boolean value) {
            config.change("appendTopicForTimerDeleteKey", value);
        }
    }

    /** Store that reads offsets from the broker outside. Some tests cast it to DefaultMessageStore. */
    private final class Store extends DefaultMessageStore {
        Store(BrokerController broker) throws Exception {
            super(broker.getMessageStoreConfig(), null, null, broker.getBrokerConfig(), new ConcurrentHashMap<>());
        }

        @Override
        public long dispatchBehindBytes() {
            return Long.parseLong(call(() -> api().getBrokerRuntimeInfo(address, TIMEOUT_MS))
                .getTable().get("dispatchBehindBytes"));
        }

        @Override
        public long getMaxOffsetInQueue(String topic, int queueId) {
            return call(() -> api().getMaxOffset(address, queue(topic, queueId), TIMEOUT_MS));
        }

        @Override
        public long getMinOffsetInQueue(String topic, int queueId) {
            return call(() -> api().getMinOffset(address, queue(topic, queueId), TIMEOUT_MS));
        }

        @Override
        public long estimateMessageCount(String topic, int queueId, long from, long to, MessageFilter filter) {
            throw new AssumptionViolatedException("the test counts messages by a filter object in its own JVM");
        }
    }

    private MessageQueue queue(String topic, int queueId) {
        return new MessageQueue(topic, getBrokerConfig().getBrokerName(), queueId);
    }

    private final class Topics extends TopicConfigManager {
        @Override
        public ConcurrentMap<String, TopicConfig> getTopicConfigTable() {
            return call(() -> api().getAllTopicConfig(address, TIMEOUT_MS)).getTopicConfigTable();
        }

        @Override
        public void updateTopicConfig(TopicConfig config) {
            call(() -> {
                admin.createAndUpdateTopicConfig(address, config);
                return null;
            });
        }
    }

    private final class Groups extends SubscriptionGroupManager {
        /** Returns a new configuration for an unknown group: Java's broker creates the group. */
        @Override
        public SubscriptionGroupConfig findSubscriptionGroupConfig(String group) {
            SubscriptionGroupConfig found = call(() -> admin.examineSubscriptionGroupConfig(address, group));
            if (found == null) {
                found = new SubscriptionGroupConfig();
                found.setGroupName(group);
            }
            return found;
        }

        @Override
        public void updateSubscriptionGroupConfig(SubscriptionGroupConfig config) {
            call(() -> {
                admin.createAndUpdateSubscriptionGroupConfig(address, config);
                return null;
            });
        }
    }

    private final class Offsets extends ConsumerOffsetManager {
        @Override
        public long queryOffset(String group, String topic, int queueId) {
            QueryConsumerOffsetRequestHeader header = new QueryConsumerOffsetRequestHeader();
            header.setConsumerGroup(group);
            header.setTopic(topic);
            header.setQueueId(queueId);
            header.setSetZeroIfNotFound(false);
            return call(() -> {
                try {
                    return api().queryConsumerOffset(address, header, TIMEOUT_MS);
                } catch (MQBrokerException error) {
                    if (error.getResponseCode() == ResponseCode.QUERY_NOT_FOUND) {
                        return -1L;
                    }
                    throw error;
                }
            });
        }

        @Override
        public long queryPullOffset(String group, String topic, int queueId) {
            List<String> none = null;
            OffsetWrapper found = call(() -> api().getConsumeStats(address, group, topic, none, TIMEOUT_MS))
                .getOffsetTable().get(queue(topic, queueId));
            return found == null ? -1 : found.getPullOffset();
        }
    }
}
