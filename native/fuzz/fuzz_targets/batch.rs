//! The messages of any bytes become records that are read back as they were, one by one and all at once.
#![no_main]

use gantrymq_native::batch::{Common, Message, Place, Placed, placed};
use gantrymq_native::columns::{Wanted, columns, records as records_of};
use libfuzzer_sys::fuzz_target;
use memchr::memmem::Finder;

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
    let Placed { data, units, offsets, .. } = placed(&all, &codes, place).unwrap();
    assert_eq!(units.len(), offsets.len() * 20);
    let found = columns(&data, &Wanted { crc: true, ..Wanted::default() }).unwrap();
    assert_eq!((found.starts.len(), found.bad_at, found.wrong_crc), (all.len(), None, None));
    assert!(records_of(&data, &found.starts).all(|record| record.store_timestamp == 3));
    let mut whole = Placed::default();
    whole.begin(place);
    let special = Finder::new(b"\x01a");
    if whole.add_batch(&common, batch, 3, &special).is_some() {
        assert!((1..=3).contains(&all.len()) && at == batch.len());
        assert!(whole.data == data && whole.units == units && whole.offsets == offsets);
    } else {
        let is_odd = |at| special.find(Message::parse(batch, at).unwrap().properties).is_some();
        let mut starts = vec![0];
        while let Some(message) = Message::parse(batch, starts[starts.len() - 1]) {
            starts.push(message.end);
        }
        starts.pop();
        assert!(at != batch.len() || all.is_empty() || all.len() > 3 || starts.into_iter().any(is_odd));
    }
});
