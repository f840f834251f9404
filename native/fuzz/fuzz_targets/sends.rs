//! Any frames are taken apart or left alone; whoever cuts a header that is known gets what stands in it, and only that.
#![no_main]

use gantrymq_native::sends::{Answers, Cutter, Parts, Place, is_sure};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8], bool)| {
    let (header, body, is_binary) = input;
    let word = header.len() as u32 & 0xFF_FFFF | u32::from(is_binary) << 24;
    let length = (4 + header.len() + body.len()) as u32;
    let frame = [&length.to_be_bytes()[..], &word.to_be_bytes(), header, body].concat();
    let (cutter, mut parts) = (Cutter::default(), Parts::default());
    cutter.cut(header, 0, &mut parts);
    let Some(send) = cutter.cut(&frame, 0, &mut parts) else { return };
    assert!(send.end == frame.len() && send.body == body && send.born_timestamp > 0);
    assert!(!parts.properties.is_empty() && parts.properties.len() < header.len());
    if is_sure(&parts.key) {
        // With other digits in their places it is the same header.
        let digits = send.born_timestamp.to_string();
        let at = frame.windows(13).position(|part| part == digits.as_bytes()).unwrap();
        let mut other = frame.clone();
        other[at..at + 13].copy_from_slice(b"9876543210123");
        let mut others = Parts::default();
        if let Some(found) = cutter.cut(&other, 0, &mut others) {
            if others.key == parts.key {
                assert!(found.opaque == send.opaque && others.properties == parts.properties);
            }
        }
    }
    let answers = Answers {
        binary: [vec![0, 0, 3, 1, 223], b"\x00\x05msgId\x00\x00\x00\x20".to_vec(), vec![]],
        json: [vec![b'{'], vec![], vec![], vec![], vec![b'}']],
    };
    let place = Place { physical_offset: send.born_timestamp, queue_id: send.opaque, queue_offset: i64::MAX };
    let mut to = body.to_vec();
    answers.add(&mut to, &parts.key, send.opaque, &place);
    let answer = &to[body.len()..];
    assert_eq!(answer[..4], (answer.len() as u32 - 4).to_be_bytes());
});
