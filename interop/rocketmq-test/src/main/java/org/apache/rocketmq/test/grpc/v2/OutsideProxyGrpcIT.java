package org.apache.rocketmq.test.grpc.v2;

import io.grpc.Channel;
import java.util.UUID;
import org.apache.rocketmq.common.constant.GrpcConstants;
import org.apache.rocketmq.proxy.config.ConfigurationManager;
import org.junit.After;
import org.junit.Before;

/**
 * The tests of ClusterGrpcIT with a proxy outside of this JVM. The system property gantry.proxy.port is its port on
 * 127.0.0.1.
 */
public class OutsideProxyGrpcIT extends ClusterGrpcIT {
    @Override
    @Before
    public void setUp() throws Exception {
        header.put(GrpcConstants.CLIENT_ID, "client-id" + UUID.randomUUID());
        header.put(GrpcConstants.LANGUAGE, "JAVA");
        int port = Integer.getInteger("gantry.proxy.port");
        // The tests compare the routes with the port of this configuration.
        ConfigurationManager.initEnv();
        ConfigurationManager.initConfig();
        ConfigurationManager.getProxyConfig().setGrpcServerPort(port);
        Channel channel = createChannel(port);
        blockingStub = createBlockingStub(channel);
        stub = createStub(channel);
    }

    @Override
    @After
    public void tearDown() {
        shutdown();
    }
}
