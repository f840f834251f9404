//! Any bytes begin with responses to sends or not. A response of known parts is parsed to these parts.
#![no_main]

use gantrymq_native::send_responses::{Response, response};
use libfuzzer_sys::fuzz_target;

fn field(ext: &mut Vec<u8>, name: &str, value: &[u8]) {
    ext.extend((name.len() as i16).to_be_bytes());
    ext.extend_from_slice(name.as_bytes());
    ext.extend((value.len() as i32).to_be_bytes());
    ext.extend_from_slice(value);
}

fn frame(opaque: i32, ext: &[u8], other: u8) -> Vec<u8> {
    // One bit makes another code, flag or body of the frame.
    let (code, flag, body) = (other & 1, 1 | other & 2, &[0][..usize::from(other >> 2 & 1)]);
    let length = (21 + ext.len()) as i32;
    let mut frame = (4 + length + body.len() as i32).to_be_bytes().to_vec();
    frame.extend((1 << 24 | length).to_be_bytes());
    frame.extend([0, code, 7, 1, 0]);
    frame.extend(opaque.to_be_bytes());
    frame.extend([0, 0, 0, flag, 0, 0, 0, 0]);
    frame.extend((ext.len() as i32).to_be_bytes());
    frame.extend_from_slice(ext);
    frame.extend_from_slice(body);
    frame
}

/// Parses all responses from the beginning on. Their frames follow each other.
fn all(data: &[u8]) -> Vec<Response<'_>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(one) = response(data, at) {
        assert!(one.end >= at + 29 && one.end <= data.len() && one.tail.len() <= 512);
        assert!(one.queue_id >= 0 && one.queue_offset >= 0 && one.offset_msg_id.is_ascii());
        at = one.end;
        found.push(one);
    }
    found
}

fuzz_target!(|input: (&[u8], usize, i32, &str, u32, u64, Option<&str>, &[u8], u8)| {
    let (data, at, opaque, msg_id, queue_id, queue_offset, transaction_id, tail, other) = input;
    response(data, at);
    all(data);
    let mut ext = Vec::new();
    field(&mut ext, "msgId", msg_id.as_bytes());
    field(&mut ext, "queueId", queue_id.to_string().as_bytes());
    field(&mut ext, "queueOffset", queue_offset.to_string().as_bytes());
    if let Some(id) = transaction_id {
        field(&mut ext, "transactionId", id.as_bytes());
    }
    ext.extend_from_slice(tail);
    let mut whole = frame(opaque, &ext, other & 7);
    let end = whole.len();
    whole.extend_from_slice(data);
    assert_eq!(response(&whole[..end - 1], 0), None);
    let found = all(&whole);
    // Other bytes can begin as a transaction id does.
    let is_plain = other & 7 == 0
        && msg_id.is_ascii()
        && msg_id.len() < 256
        && transaction_id.is_none_or(|id| id.len() < 256)
        && tail.len() <= 512
        && !tail.starts_with(b"\0\x0dtransactionId")
        && i32::try_from(queue_id).is_ok()
        && i64::try_from(queue_offset).is_ok();
    if is_plain {
        let first = &found[0];
        assert_eq!((first.opaque, first.queue_id as u32, first.queue_offset as u64), (opaque, queue_id, queue_offset));
        assert_eq!((first.offset_msg_id, first.transaction_id), (msg_id, transaction_id));
        assert_eq!((first.tail, first.end), (tail, end));
    } else if other & 7 != 0 {
        assert!(found.is_empty());
    }
});
