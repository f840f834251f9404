package org.gantrymq.interop.suite;

import com.alibaba.fastjson2.JSON;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs the JUnit tests of one class. Prints one line of JSON for each test: its name, its state ("passed", "failed" or
 * "not run") and the reason. A test that sends a request which the broker does not support is "not run". The last line
 * has the number of these lines: without it, the JVM has ended early.
 */
public final class RunClass extends RunListener {
    private static final int REASON_LENGTH = 4000;

    private static int printed;

    private boolean ended;

    public static void main(String[] args) throws Exception {
        JUnitCore core = new JUnitCore();
        core.addListener(new RunClass());
        core.run(Class.forName(args[0]));
        System.out.println(JSON.toJSONString(Map.of("tests", printed)));
        System.out.flush();
        // The clients' threads keep the JVM alive.
        Runtime.getRuntime().halt(0);
    }

    @Override
    public void testStarted(Description test) {
        ended = false;
    }

    @Override
    public void testFinished(Description test) {
        if (!ended) {
            print(test, "passed", "");
        }
    }

    @Override
    public void testFailure(Failure failure) {
        ended = true;
        for (Throwable cause = failure.getException(); cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException refusal
                && refusal.getResponseCode() == ResponseCode.REQUEST_CODE_NOT_SUPPORTED) {
                print(failure.getDescription(), "not run", refusal.getErrorMessage());
                return;
            }
        }
        String trace = failure.getTrimmedTrace();
        print(failure.getDescription(), "failed", trace.substring(0, Math.min(trace.length(), REASON_LENGTH)));
    }

    @Override
    public void testAssumptionFailure(Failure failure) {
        ended = true;
        print(failure.getDescription(), "not run", failure.getMessage());
    }

    @Override
    public void testIgnored(Description test) {
        print(test, "not run", "Apache's tests ignore it");
    }

    private static void print(Description test, String state, String reason) {
        Map<String, String> line = new LinkedHashMap<>();
        line.put("name", test.getMethodName() == null ? test.getDisplayName() : test.getMethodName());
        line.put("state", state);
        line.put("reason", reason == null ? "" : reason);
        System.out.println(JSON.toJSONString(line));
        System.out.flush();
        printed++;
    }
}
