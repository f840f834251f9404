//! Any bytes are runs of units or not; the units are those of the records that were read.
#![no_main]

use gantrymq_native::scan::runs;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], usize, i64, bool)| {
    let (log, at, base, needs_crc) = input;
    let scan = runs(log, at, base, 50, needs_crc, b"S");
    assert!(scan.records <= 50 && scan.end >= at && (scan.records == 0) == (scan.end == at));
    let units: usize = scan.runs.iter().map(|run| run.units.len()).sum();
    assert!(units <= scan.records * 20 && units % 20 == 0);
    assert!(scan.runs.iter().all(|run| !run.topic.is_empty() || !run.units.is_empty()));
});
