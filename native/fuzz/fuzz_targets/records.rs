//! Any bytes are records or not, and what is of records has columns.
#![no_main]

use gantrymq_native::{columns, record::parse_all};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(records) = parse_all(bytes) else { return };
    let count = records.len();
    assert_eq!(records.last().map_or(0, |record| record.end), bytes.len());
    let wrong = records.iter().filter(|record| record.has_wrong_crc(bytes)).count();
    assert!(wrong <= count);
    assert_eq!(columns::topics(bytes, &records).unwrap().count(), count);
    assert_eq!(columns::bodies(bytes, &records).unwrap().count(), count);
    let keys = columns::property(bytes, &records, b"KEYS").unwrap();
    assert!(std::str::from_utf8(&keys.data).is_ok() && keys.nulls <= count);
    let map = columns::all_properties(bytes, &records).unwrap();
    assert_eq!(map.firsts.len(), count + 1);
    assert_eq!(map.names.count(), map.values.count());
    let numbers: Vec<i64> = (0..count as i64).collect();
    if let Ok(bodies) = columns::inflated(bytes, &records, &numbers, 1 << 20, 1 << 16) {
        assert!(bodies.count() <= count && bodies.data.len() < (1 << 20) + (1 << 16));
    }
});
