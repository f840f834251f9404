//! Any bytes are records or not, and what is of records has columns: the same in one pass as one by one.
#![no_main]

use gantrymq_native::columns::{self, Wanted};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (bytes, name) = input;
    let names = [b"KEYS".to_vec(), name.to_vec(), b"UNIQ_KEY".to_vec()];
    let wanted = Wanted { bodies: true, crc: true, properties: names.to_vec() };
    let found = columns::columns(bytes, &wanted).unwrap();
    let starts = &found.starts;
    let count = starts.len();
    let end = columns::records(bytes, starts).last().map_or(0, |record| record.end);
    assert_eq!(found.bad_at.unwrap_or(bytes.len()), end);
    assert_eq!(columns::records(bytes, starts).count(), count);
    assert!(found.wrong_crc.is_none_or(|wrong| wrong.len() == count && wrong.contains(&1)));
    for (name, column) in names.iter().zip(&found.properties) {
        let alone = columns::property(bytes, starts, name).unwrap();
        assert!(std::str::from_utf8(&column.data).is_ok() && column.nulls <= count && column.count() == count);
        assert_eq!((&column.data, &column.offsets, &column.validity), (&alone.data, &alone.offsets, &alone.validity));
    }
    let bodies = columns::bodies(bytes, starts).unwrap();
    assert!(found.bodies.is_none_or(|column| column.data == bodies.data && column.offsets == bodies.offsets));
    assert_eq!(columns::topics(bytes, starts).unwrap().count(), count);
    let (topics, numbers) = columns::numbered_topics(bytes, starts);
    assert!(numbers.len() == count && numbers.iter().all(|number| (*number as usize) < topics.len()));
    let map = columns::all_properties(bytes, starts).unwrap();
    assert_eq!(map.firsts.len(), count + 1);
    assert_eq!(map.names.count(), map.values.count());
    if let Ok(bodies) = columns::inflated(bytes, starts, 1 << 20, 1 << 16) {
        assert!(bodies.count() <= count && bodies.data.len() < (1 << 20) + (1 << 16));
    }
});
