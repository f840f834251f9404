//! Any bytes are a pull's records or not, and any messages a batch.
#![no_main]

use gantrymq_native::plain_batch::{Batch, Keys};
use gantrymq_native::pulled::{Queue, records};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], usize, i32, i64, Vec<(i32, &[u8], &str, &str)>)| {
    let (buffer, at, queue_id, last, messages) = input;
    let found = records(buffer, at, &Queue { topic: b"T", queue_id, last });
    assert!(found.windows(2).all(|two| two[0].end == two[1].start && two[0].queue_offset < two[1].queue_offset));
    let mut batch = Batch::new(Keys { head: "H", first: 0xFFFF });
    let mut end = 0;
    for (flag, body, name, value) in messages {
        if batch.add(flag, body, [(name, value)].into_iter()).is_none() {
            return;
        }
        let message = gantrymq_native::batch::Message::parse(&batch.body, end).unwrap();
        assert_eq!((message.flag, message.body), (flag, body));
        end = message.end;
    }
    assert_eq!(end, batch.body.len());
});
