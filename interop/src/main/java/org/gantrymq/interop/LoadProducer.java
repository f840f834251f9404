package org.gantrymq.interop;

import org.apache.rocketmq.example.benchmark.Producer;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * {@code LoadProducer NAMESRV TOPIC THREADS SIZE WARM_UP COUNT}: Apache's benchmark producer, twice in one JVM.
 *
 * <p>First WARM_UP messages; then READY is printed and a line on standard input awaited, so that the caller can take the
 * broker's CPU time; then COUNT messages, whose last line is the benchmark's own {@code [Complete] ... Send TPS}.
 */
public final class LoadProducer {
    private LoadProducer() {
    }

    public static void main(String[] args) throws Exception {
        // Producer.main sets the system property to ROCKETMQ; it is read once, so -Drocketmq.serialize.type holds.
        RemotingCommand.getSerializeTypeConfigInThisServer();
        send(args, args[4]);
        System.out.println("READY");
        System.in.read();
        send(args, args[5]);
        Runtime.getRuntime().halt(0);
    }

    private static void send(String[] args, String count) throws Exception {
        Producer.main(new String[] {"-n", args[0], "-t", args[1], "-w", args[2], "-s", args[3], "-q", count});
    }
}
