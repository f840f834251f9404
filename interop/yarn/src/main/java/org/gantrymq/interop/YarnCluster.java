package org.gantrymq.interop;

import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * A resource manager and a node manager, until the process is told to end.
 *
 * <p>Argument: a directory, which gets yarn-site.xml. Prints READY when applications can be submitted.
 */
public final class YarnCluster {
    private static final int WAIT_MS = 60_000;

    private YarnCluster() {
    }

    public static void main(String[] args) {
        try {
            start(Path.of(args[0]));
        } catch (Throwable e) {
            // Threads that are running already would keep the process.
            e.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        System.out.println("READY");
    }

    private static void start(Path directory) throws Exception {
        Configuration conf = new YarnConfiguration();
        conf.set("fs.defaultFS", "file:///");
        // The capacity scheduler wants a file with its queues.
        conf.set(YarnConfiguration.RM_SCHEDULER,
            "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler");
        conf.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 256);
        conf.setBoolean(YarnConfiguration.NM_VMEM_CHECK_ENABLED, false);
        // A node whose disk is nearly full would take no container.
        conf.setFloat(YarnConfiguration.NM_MAX_PER_DISK_UTILIZATION_PERCENTAGE, 100);
        MiniYARNCluster cluster = new MiniYARNCluster("yarn", 1, 1, 1);
        // So that no container outlives the process.
        Runtime.getRuntime().addShutdownHook(new Thread(cluster::stop));
        cluster.init(conf);
        cluster.start();
        if (!cluster.waitForNodeManagersToConnect(WAIT_MS)) {
            throw new IllegalStateException("the node manager doesn't register");
        }
        try (OutputStream file = Files.newOutputStream(directory.resolve("yarn-site.xml"))) {
            cluster.getConfig().writeXml(file);
        }
    }
}
