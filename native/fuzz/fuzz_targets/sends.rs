//! Any frames are taken apart or left alone; whoever cuts a header that is known gets what stands in it, and only that.
#![no_main]

use gantrymq_native::sends::{Answers, Cutter, Parts, Place, is_sure};
use libfuzzer_sys::fuzz_target;

const BORN: &[u8] = b"1700000000123";

/// Anything, or anything but the names that are looked for and what makes them a header.
fn header(kind: u8, [head, properties, between, tail]: [&[u8]; 4]) -> Vec<u8> {
    match kind % 4 {
        0 => [head, properties, between, tail].concat(),
        1 => {
            let length = (properties.len() as u32).to_be_bytes();
            let born = [b"\x00\x01g\x00\x00\x00\x0D", BORN, b"\x00\x01h\x00\x00\x00\x010\x00\x01i"].concat();
            let ext = [head, &born, &length, properties, tail].concat();
            let fixed = [1, if kind & 64 == 0 { 54 } else { 64 }, 0, 1, 223, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0];
            [&fixed[..], &(ext.len() as u32).to_be_bytes(), &ext].concat()
        }
        2 => [
            if kind & 64 == 0 { b"{\"code\":310," } else { b"{\"code\":320," },
            head,
            b"\"g\":\"",
            BORN,
            between,
            b"\"i\":\"",
            properties,
            b"\"",
            tail,
            b"\"opaque\":7}",
        ]
        .concat(),
        _ => {
            let start = b"{\"code\":10,\"opaque\":7";
            [start, head, b"\"bornTimestamp\":\"", BORN, between, b"\"properties\":\"", properties, tail].concat()
        }
    }
}

fuzz_target!(|input: (u8, [&[u8]; 4])| {
    let (kind, pieces) = input;
    let (header, body) = (&header(kind, pieces)[..], pieces[3]);
    let is_binary = kind % 2 == 1 && kind % 4 != 3 || kind >= 128;
    let word = header.len() as u32 | u32::from(is_binary) << 24;
    let length = (4 + header.len() + body.len()) as u32;
    let frame = [&length.to_be_bytes()[..], &word.to_be_bytes(), header, body].concat();
    let (cutter, mut parts) = (Cutter::default(), Parts::default());
    cutter.cut(header, 0, &mut parts);
    let Some(send) = cutter.cut(&frame, 0, &mut parts) else { return };
    assert!(send.end == frame.len() && send.body == body && send.born_timestamp > 0);
    assert!(parts.properties.len() < header.len());
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
        host: b"7F000001".to_vec(),
        binary: [vec![0, 0, 3, 1, 223], vec![]],
        json: [vec![b'{'], vec![], vec![], vec![], vec![b'}']],
    };
    let offsets = vec![send.born_timestamp; usize::from(kind) + 1];
    let unique_id = if Answers::takes(&parts.key, pieces[1]) { pieces[1] } else { b"" };
    let place = Place { physical_offsets: &offsets, queue_id: send.opaque, queue_offset: i64::MAX, unique_id };
    let mut to = body.to_vec();
    answers.add(&mut to, &parts.key, send.opaque, &place);
    let answer = &to[body.len()..];
    assert_eq!(answer[..4], (answer.len() as u32 - 4).to_be_bytes());
});
