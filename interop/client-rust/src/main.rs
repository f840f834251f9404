//! GrpcProduce and GrpcConsume once more, with Apache's Rust client, the crate rocketmq: see the Java programs.
//!
//! It has simple consumers alone, which can't give a message back: GrpcConsume knows the mode simple.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::io::{stdin, Read};
use std::process::exit;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::prelude::{Engine, BASE64_STANDARD};
use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::time::sleep;

const ASKED_WITHIN: Duration = Duration::from_secs(60);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn options(endpoints: &str) -> ClientOption {
    let mut options = ClientOption::default();
    options.set_access_url(endpoints);
    options.set_long_polling_timeout(Duration::from_secs(5));
    options
}

fn message(topic: &str, body: Vec<u8>, line: &Value) -> MessageBuilder {
    let mut message = MessageBuilder::builder().set_topic(topic).set_body(body);
    if let Some(tag) = line["tag"].as_str() {
        message = message.set_tag(tag);
    }
    if let Some(keys) = line["keys"].as_array() {
        message = message.set_keys(keys.iter().filter_map(Value::as_str).collect());
    }
    if let Some(properties) = line["properties"].as_object() {
        let properties: HashMap<_, _> = properties.iter().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or(""))).collect();
        message = message.set_properties(properties);
    }
    if let Some(group) = line["message_group"].as_str() {
        message = message.set_message_group(group);
    }
    if let Some(delay_ms) = line["delay_ms"].as_u64() {
        let at = SystemTime::now() + Duration::from_millis(delay_ms);
        message = message.set_delivery_timestamp(at.duration_since(UNIX_EPOCH).unwrap().as_secs() as i64);
    }
    message
}

async fn produce(args: &[String]) -> Result<bool> {
    let (endpoints, topic) = (&args[0], &args[1]);
    let mut text = String::new();
    stdin().read_to_string(&mut text)?;
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?;
    let orphans: HashSet<Vec<u8>> = lines
        .iter()
        .filter(|line| line["transaction"] == "orphan")
        .map(|line| BASE64_STANDARD.decode(line["body"].as_str().unwrap()).unwrap())
        .collect();
    let left = Arc::new(Mutex::new(orphans));
    let asked = left.clone();
    let checker = move |_, message: MessageView| {
        // Of others the end is on its way.
        if asked.lock().unwrap().remove(message.body()) {
            TransactionResolution::COMMIT
        } else {
            TransactionResolution::UNKNOWN
        }
    };
    let mut told = ProducerOption::default();
    told.set_topics(vec![topic.as_str()]);
    let mut producer = Producer::new_transaction_producer(told, options(endpoints), Box::new(checker))?;
    producer.start().await?;
    for line in &lines {
        let body = BASE64_STANDARD.decode(line["body"].as_str().ok_or("no body")?)?;
        let message = message(topic, body, line);
        let message_id = if let Some(end) = line["transaction"].as_str() {
            let transaction = producer.send_transaction_message(message.enable_transaction().build()?).await?;
            let message_id = transaction.message_id().to_owned();
            match end {
                "commit" => transaction.commit().await?,
                "rollback" => transaction.rollback().await?,
                _ => (),
            }
            message_id
        } else {
            producer.send(message.build()?).await?.message_id().to_owned()
        };
        println!("{}", json!({ "message_id": message_id }));
    }
    let began = Instant::now();
    while !left.lock().unwrap().is_empty() && began.elapsed() < ASKED_WITHIN {
        sleep(Duration::from_millis(50)).await;
    }
    producer.shutdown().await?;
    let complete = left.lock().unwrap().is_empty();
    Ok(complete)
}

async fn consume(args: &[String]) -> Result<bool> {
    let [endpoints, group, topic, expression, mode, count, timeout_s] = args else {
        return Err("ENDPOINTS GROUP TOPIC EXPRESSION MODE COUNT TIMEOUT_S".into());
    };
    if mode != "simple" {
        return Err(format!("this client can't {mode}").into());
    }
    let is_sql = expression.contains(' ') && !expression.contains("||");
    let filter = FilterExpression::new(if is_sql { FilterType::Sql } else { FilterType::Tag }, expression);
    let mut told = SimpleConsumerOption::default();
    told.set_topics(vec![topic.as_str()]);
    told.set_consumer_group(group.as_str());
    let mut consumer = SimpleConsumer::new(told, options(endpoints))?;
    consumer.start().await?;
    let (began, timeout) = (Instant::now(), Duration::from_secs(timeout_s.parse()?));
    let mut left: usize = count.parse()?;
    while left > 0 && began.elapsed() < timeout {
        let received = match consumer.receive_with(topic, &filter, 32, Duration::from_secs(20)).await {
            Ok(received) => received,
            // That there is none is an error to this client.
            Err(error) => {
                eprintln!("{error}");
                continue;
            }
        };
        for message in received {
            println!(
                "{}",
                json!({
                    "topic": message.topic(),
                    "message_id": message.message_id(),
                    "body": BASE64_STANDARD.encode(message.body()),
                    "tag": message.tag(),
                    "keys": message.keys(),
                    "message_group": message.message_group(),
                    "delivery_attempt": message.delivery_attempt(),
                    "properties": message.properties(),
                })
            );
            consumer.ack(&message).await?;
            left = left.saturating_sub(1);
        }
    }
    consumer.shutdown().await?;
    Ok(left == 0)
}

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let complete = match args.split_first() {
        Some((program, args)) if program == "GrpcProduce" => produce(args).await,
        Some((program, args)) if program == "GrpcConsume" => consume(args).await,
        _ => Err("GrpcProduce or GrpcConsume".into()),
    };
    match complete {
        Ok(complete) => exit(i32::from(!complete)),
        Err(error) => {
            eprintln!("{error}");
            exit(1);
        }
    }
}
