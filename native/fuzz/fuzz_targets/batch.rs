//! The messages of any bytes become records that are read back as they were.
#![no_main]

use gantrymq_native::batch::{Common, Message, Place, placed};
use gantrymq_native::columns::{Wanted, columns, records as records_of};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (batch, topic) = input;
    let common = Common {
        queue_id: 3,
        sys_flag: 0,
        born_timestamp: 1,
        born_host: &[0; 8],
        store_host: &[0; 8],
        reconsume_times: 0,
        topic,
    };
    let (mut at, mut records, mut codes) = (0, Vec::new(), Vec::new());
    while let Some(message) = Message::parse(batch, at) {
        let Some(record) = common.encode(&message) else { return };
        records.push(record);
        codes.push(i64::from(message.tags_code()));
        at = message.end;
    }
    let all: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    let place = Place { queue_offset: 1, physical_offset: 2, store_timestamp: 3, timestamp_at: 56 };
    let (data, units, offsets) = placed(&all, &codes, &place).unwrap();
    assert_eq!(units.len(), offsets.len() * 20);
    let found = columns(&data, &Wanted { crc: true, ..Wanted::default() }).unwrap();
    assert_eq!((found.starts.len(), found.bad_at, found.wrong_crc), (all.len(), None, None));
    assert!(records_of(&data, &found.starts).all(|record| record.store_timestamp == 3));
});
