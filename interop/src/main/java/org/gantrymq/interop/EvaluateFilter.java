package org.gantrymq.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.expression.BooleanExpression;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * What Apache's SQL92 filter makes of expressions. In: a line {@code {"properties": [{name: value}, ...]}}, then lines
 * {@code {"expression": text}}. Out: for each expression {@code "results"}, one for each set of properties: true, false,
 * null, or "error" where the evaluation failed; or {@code "invalid": true}.
 */
public final class EvaluateFilter {
    private EvaluateFilter() {
    }

    public static void main(String[] args) throws Exception {
        List<JSONObject> input = JsonLines.readInput();
        List<Map<String, Object>> contexts = new ArrayList<>();
        for (Object properties : input.get(0).getJSONArray("properties")) {
            contexts.add((JSONObject) properties);
        }
        for (JSONObject line : input.subList(1, input.size())) {
            String text = line.getString("expression");
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("expression", text);
            try {
                BooleanExpression expression = SelectorParser.parse(text);
                List<Object> results = new ArrayList<>();
                for (Map<String, Object> properties : contexts) {
                    results.add(evaluate(expression, properties));
                }
                answer.put("results", results);
            } catch (MQFilterException e) {
                answer.put("invalid", true);
            }
            System.out.println(JSON.toJSONString(answer, JSONWriter.Feature.WriteMapNullValue));
        }
    }

    private static Object evaluate(BooleanExpression expression, Map<String, Object> properties) {
        try {
            return expression.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return properties;
                }
            });
        } catch (Exception e) {
            return "error";
        }
    }
}
