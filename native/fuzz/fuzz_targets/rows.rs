//! Columns of any bytes are rows or not, and what is of rows is a batch that is read back.
#![no_main]

use gantrymq_native::batch::Message;
use gantrymq_native::rows::{Maps, Most, Rows, Sequence, Values, batches};
use libfuzzer_sys::fuzz_target;

type Column<'a> = (Option<&'a [u8]>, Vec<u8>, &'a [u8], u8);

/// Offsets are small numbers, or nothing would ever be a row.
fn values<'a>(column: &'a Column<'a>, offsets: &'a mut Vec<u8>) -> Values<'a> {
    let (validity, steps, data, first) = column;
    let mut offset = 0_i32;
    offsets.clear();
    for step in steps {
        offset += i32::from(*step) - 8;
        offsets.extend(offset.to_ne_bytes());
    }
    Values { validity: *validity, offsets, data, first: usize::from(*first) }
}

fuzz_target!(|input: (Column, Column, Option<(Column, Column, Column)>, Vec<u8>, u8, &[u8])| {
    let (bodies, keys, maps, dropped, count, prefix) = input;
    let mut offsets: [Vec<u8>; 5] = Default::default();
    let [a, b, c, d, e] = &mut offsets;
    let (bodies, keys) = (values(&bodies, a), values(&keys, b));
    let dropped = [dropped];
    let maps = maps.as_ref().map(|(all, names, of_names)| Maps {
        all: values(all, c),
        names: values(names, d),
        values: values(of_names, e),
        dropped: &dropped,
    });
    let singles = [(b"KEYS".to_vec(), keys)];
    let sequence = prefix.first_chunk().map(|target: &[u8; 8]| Sequence { target, chain: 5 });
    let rows = Rows {
        bodies,
        singles: &singles,
        maps,
        id_prefix: prefix,
        first_row: 1,
        key_head: b"7F",
        first_key: 0xFFFF,
        sequence,
    };
    let most = Most { properties: 1000, messages: 3, bytes: 300 };
    let Ok(found) = batches(&rows, usize::from(count), &most) else { return };
    assert_eq!(found.iter().map(|batch| batch.messages).sum::<usize>(), usize::from(count));
    for batch in &found {
        let mut at = 0;
        for _ in 0..batch.messages {
            let message = Message::parse(&batch.data, at).unwrap();
            assert!(!message.body.is_empty() && message.properties.len() <= 1000);
            at = message.end;
        }
        assert_eq!(at, batch.data.len());
        assert!(batch.messages <= 3);
    }
});
