//! Any units point to records of a log or not; those that are found are those that one after the other are right.
#![no_main]

use gantrymq_native::slices::slices;
use gantrymq_native::units::{UNIT_SIZE, unit};
use libfuzzer_sys::fuzz_target;

const MOST_RECORDS: usize = 64;

/// A number that stands in a record or a unit, or one beside it where the bit says so.
fn nearly(number: i64, bits: u8, bit: u8) -> [u8; 8] {
    number.wrapping_add(i64::from(bits >> bit & 1)).to_be_bytes()
}

/// A log of records, as far as they are looked at, with gaps between, and their units. All are right but for the bits.
fn put(pieces: &[(u8, u8, u8)], queue_offset: i64, base: i64) -> (Vec<u8>, Vec<u8>) {
    let (mut log, mut units) = (Vec::new(), Vec::new());
    for (number, (gap, more, bits)) in pieces.iter().take(MOST_RECORDS).enumerate() {
        log.resize(log.len() + usize::from(*gap), 7);
        let size = 90 + usize::from(*more);
        let physical_offset = base.wrapping_add(log.len() as i64);
        let mut record = vec![0; size];
        record[..4].copy_from_slice(&nearly(size as i64, *bits, 0)[4..]);
        record[20..28].copy_from_slice(&nearly(queue_offset.wrapping_add(number as i64), *bits, 1));
        record[28..36].copy_from_slice(&nearly(physical_offset, *bits, 2));
        log.extend(record);
        units.extend(unit(
            i64::from_be_bytes(nearly(physical_offset, *bits, 3)),
            size as i32 + i32::from(bits >> 4 & 1),
            0,
        ));
    }
    (log, units)
}

/// Where the record of a unit stands, in numbers that don't overflow.
fn place(unit: &[u8], queue_offset: i128, log: &[u8], base: i64) -> Option<(usize, usize)> {
    let long = |bytes: &[u8]| i128::from(i64::from_be_bytes(bytes.try_into().unwrap()));
    let int = |bytes: &[u8]| i128::from(i32::from_be_bytes(bytes.try_into().unwrap()));
    let (physical_offset, size) = (long(&unit[..8]), int(&unit[8..12]));
    let start = physical_offset - i128::from(base);
    if size < 91 || start < 0 || start + size > log.len() as i128 {
        return None;
    }
    let record = &log[start as usize..(start + size) as usize];
    let is_it =
        (int(&record[..4]), long(&record[20..28]), long(&record[28..36])) == (size, queue_offset, physical_offset);
    is_it.then_some((start as usize, (start + size) as usize))
}

type Input<'a> = (Vec<(u8, u8, u8)>, &'a [u8], i64, i64, u8, u16);

fuzz_target!(|input: Input| {
    let (pieces, further, queue_offset, base, most, most_bytes) = input;
    let (log, mut units) = put(&pieces, queue_offset, base);
    units.extend_from_slice(further);
    let (most, most_bytes) = (usize::from(most), usize::from(most_bytes));
    let found = slices(&units, queue_offset, &log, base, most, most_bytes);

    let (mut expected, mut size) = (Vec::new(), 0);
    for (number, unit) in units.chunks_exact(UNIT_SIZE).take(most).enumerate() {
        let Some((start, end)) = place(unit, i128::from(queue_offset) + number as i128, &log, base) else { break };
        if size + end - start > most_bytes {
            break;
        }
        expected.push((start, end));
        size += end - start;
    }
    assert_eq!((found.count, found.size), (expected.len(), size));
    let bytes =
        |places: &[(usize, usize)]| places.iter().map(|&(start, end)| &log[start..end]).collect::<Vec<_>>().concat();
    assert!(bytes(&found.places) == bytes(&expected));
    assert!(found.places.windows(2).all(|two| two[0].1 != two[1].0), "those side by side are one");
});
