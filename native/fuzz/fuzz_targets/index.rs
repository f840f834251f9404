//! Any log has entries or not, and they go into an index file that holds anything.
#![no_main]

use std::cell::Cell;

use gantrymq_native::index_file::IndexFile;
use gantrymq_native::keys::{LeftOut, Limits, entries};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], Vec<u8>, usize, u8, i32, i64)| {
    let (log, mut file, slots, keys, number, begin) = input;
    let limits = Limits { records: 100, keys: usize::from(keys), bytes: 1000 };
    let mut found = Vec::new();
    let reached = entries(log, 0, 1 << 40, limits, LeftOut { topic: b"T", mark: b"m\x01\x02" }, &mut found);
    assert!(reached.last <= reached.next && reached.next <= log.len());
    assert!(found.len() <= limits.keys && found.iter().all(|entry| entry.hash >= 0));
    let mapping = Cell::from_mut(file.as_mut_slice()).as_slice_of_cells();
    let _ = IndexFile { mapping, hash_slots: slots }.put(&found, number, begin);
});
