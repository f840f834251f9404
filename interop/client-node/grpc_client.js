// GrpcProduce and GrpcConsume once more, with Apache's Node client, rocketmq-client-nodejs: see the Java programs.

'use strict';

const fs = require('node:fs');
const readline = require('node:readline');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const ASKED_WITHIN_MS = 60_000;
// The client's own log goes there, not to the standard output.
const logger = { debug() {}, info() {}, warn: console.error, error: console.error };
const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

function print(line) {
  fs.writeSync(1, JSON.stringify(line) + '\n');
}

function received(message) {
  return {
    topic: message.topic,
    message_id: message.messageId,
    body: message.body.toString('base64'),
    tag: message.tag || null,
    keys: message.keys,
    message_group: message.messageGroup || null,
    delivery_attempt: message.deliveryAttempt,
    properties: Object.fromEntries(message.properties),
  };
}

async function send(producer, message, transaction, againS) {
  for (const deadline = Date.now() + 1000 * againS; ;) {
    try {
      return await producer.send(message, transaction);
    } catch (error) {
      if (Date.now() > deadline) {
        throw error;
      }
      await pause(50);
    }
  }
}

async function produce(endpoints, topic) {
  const lines = [];
  for await (const line of readline.createInterface({ input: process.stdin })) {
    lines.push(JSON.parse(line));
  }
  const orphans = new Set(lines.filter(line => line.transaction === 'orphan').map(line => line.body));
  const checker = {
    async check(message) {
      // Of others the end is on its way.
      return orphans.delete(message.body.toString('base64'))
        ? TransactionResolution.COMMIT
        : TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED;
    },
  };
  const producer = new Producer({ endpoints, namespace: '', topic, checker, logger });
  await producer.startup();
  for (const line of lines) {
    const message = {
      topic,
      body: Buffer.from(line.body, 'base64'),
      tag: line.tag,
      keys: line.keys,
      messageGroup: line.message_group,
      properties: new Map(Object.entries(line.properties || {})),
      deliveryTimestamp: line.delay_ms && new Date(Date.now() + line.delay_ms),
    };
    const transaction = line.transaction && producer.beginTransaction();
    const receipt = await send(producer, message, transaction, line.again_s || 0);
    if (line.recall) {
      await producer.recallMessage(topic, receipt.recallHandle);
    }
    if (line.transaction === 'commit') {
      await transaction.commit();
    } else if (line.transaction === 'rollback') {
      await transaction.rollback();
    }
    print({ message_id: receipt.messageId });
  }
  for (const deadline = Date.now() + ASKED_WITHIN_MS; orphans.size && Date.now() < deadline;) {
    await pause(50);
  }
  await producer.shutdown();
  return orphans.size ? 1 : 0;
}

async function consume(endpoints, consumerGroup, topic, expression, mode, count, timeoutS) {
  const isSql = expression.includes(' ') && !expression.includes('||');
  const subscriptions = new Map([[topic, new FilterExpression(expression, isSql ? FilterType.SQL : FilterType.TAG)]]);
  const deadline = Date.now() + 1000 * timeoutS;
  const options = { endpoints, namespace: '', consumerGroup, subscriptions, logger };
  let left = Number(count);
  if (['push', 'retry', 'fail'].includes(mode)) {
    const messageListener = {
      async consume(message) {
        print(received(message));
        left -= 1;
        const fails = mode === 'fail' || (mode === 'retry' && message.deliveryAttempt === 1);
        return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    };
    const consumer = new PushConsumer({ ...options, messageListener });
    await consumer.startup();
    while (left > 0 && Date.now() < deadline) {
      await pause(20);
    }
    await consumer.shutdown();
    return left > 0 ? 1 : 0;
  }
  const consumer = new SimpleConsumer({ ...options, awaitDuration: 5000 });
  await consumer.startup();
  while (left > 0 && Date.now() < deadline) {
    for (const message of await consumer.receive(32, 20_000)) {
      print(received(message));
      left -= 1;
      if (mode === 'again' && message.deliveryAttempt === 1) {
        await consumer.changeInvisibleDuration(message, 1000);
      } else {
        await consumer.ack(message);
      }
    }
  }
  await consumer.shutdown();
  return left > 0 ? 1 : 0;
}

const [program, ...args] = process.argv.slice(2);
({ GrpcProduce: produce, GrpcConsume: consume })[program](...args).then(
  code => process.exit(code),
  error => {
    console.error(error);
    process.exit(1);
  },
);
