//! Finds the records that the units of a consume queue refer to (`gantrymq/store/collect.py`).

use crate::bytes::{i32_at, i64_at};
use crate::record::{FIXED_SIZE_V4, PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT};
use crate::units::{SIZE_AT, UNIT_SIZE};

/// The records of the first `count` units, `size` bytes: their positions in the log, with adjacent records as one
/// piece.
#[derive(Debug, Default, PartialEq)]
pub struct Slices {
    pub places: Vec<(usize, usize)>,
    pub count: usize,
    pub size: usize,
}

/// Returns the records of a queue from `queue_offset` on, at most `most` and `most_bytes` in total; `base` is the
/// physical offset of `log`. Stops before a unit without a complete record in `log` that has the right queue offset.
pub fn slices(units: &[u8], queue_offset: i64, log: &[u8], base: i64, most: usize, most_bytes: usize) -> Slices {
    let mut found = Slices::default();
    for (unit, offset) in units.chunks_exact(UNIT_SIZE).take(most).zip(queue_offset..=i64::MAX) {
        let Some((start, end)) = place(unit, offset, log, base) else { break };
        if end - start > most_bytes - found.size {
            break;
        }
        match found.places.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => found.places.push((start, end)),
        }
        found.count += 1;
        found.size += end - start;
    }
    found
}

fn place(unit: &[u8], queue_offset: i64, log: &[u8], base: i64) -> Option<(usize, usize)> {
    let physical_offset = i64_at(unit, 0)?;
    let size = i32_at(unit, SIZE_AT)?;
    let start = usize::try_from(physical_offset.checked_sub(base)?).ok()?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    let record = log.get(start..end)?;
    let is_it = record.len() >= FIXED_SIZE_V4
        && i32_at(record, 0)? == size
        && i64_at(record, QUEUE_OFFSET_AT)? == queue_offset
        && i64_at(record, PHYSICAL_OFFSET_AT)? == physical_offset;
    is_it.then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::unit;

    const BASE: i64 = 1000;

    /// Appends the fields of a record that are checked to the log, and returns its unit.
    fn put(log: &mut Vec<u8>, queue_offset: i64, size: usize) -> Vec<u8> {
        let mut record = vec![7; size];
        let physical_offset = BASE + log.len() as i64;
        record[..4].copy_from_slice(&(size as i32).to_be_bytes());
        record[QUEUE_OFFSET_AT..QUEUE_OFFSET_AT + 8].copy_from_slice(&queue_offset.to_be_bytes());
        record[PHYSICAL_OFFSET_AT..PHYSICAL_OFFSET_AT + 8].copy_from_slice(&physical_offset.to_be_bytes());
        log.extend(record);
        unit(physical_offset, size as i32, 0).to_vec()
    }

    fn three() -> (Vec<u8>, Vec<u8>) {
        let mut log = Vec::new();
        let mut units = put(&mut log, 5, 100);
        units.extend(put(&mut log, 6, 91));
        log.extend([0; 30]);
        units.extend(put(&mut log, 7, 200));
        (log, units)
    }

    #[test]
    fn those_side_by_side_are_one() {
        let (log, units) = three();
        let all = Slices { places: vec![(0, 191), (221, 421)], count: 3, size: 391 };
        assert_eq!(slices(&units, 5, &log, BASE, 9, 391), all);
        let two = Slices { places: vec![(0, 191)], count: 2, size: 191 };
        assert_eq!(slices(&units, 5, &log, BASE, 9, 390), two);
        assert_eq!(slices(&units, 5, &log, BASE, 2, 1000), two);
        assert_eq!(slices(&units, 5, &log[..420], BASE, 9, 1000), two);
        assert_eq!(slices(&units[..59], 5, &log, BASE, 9, 1000), two);
        assert_eq!(slices(&units, 5, &log, BASE, 9, 99), Slices::default());
        assert_eq!(slices(&units, 5, &log, BASE, 0, 1000), Slices::default());
    }

    #[test]
    fn behind_the_largest_queue_offset_there_is_none() {
        let mut log = Vec::new();
        let units = put(&mut log, i64::MAX, 100).repeat(2);
        assert_eq!(slices(&units, i64::MAX, &log, BASE, 9, 1000).count, 1);
    }

    #[test]
    fn what_points_elsewhere_ends_it() {
        let (log, units) = three();
        assert_eq!(slices(&units, 6, &log, BASE, 9, 1000), Slices::default());
        assert_eq!(slices(&units, 5, &log, BASE + 1, 9, 1000), Slices::default());
        for (physical_offset, size) in
            [(BASE, 90), (BASE, -1), (BASE, i32::MAX), (i64::MIN, 100), (i64::MAX, 100), (0, 100)]
        {
            assert_eq!(slices(&unit(physical_offset, size, 0), 5, &log, BASE, 9, 1000), Slices::default());
        }
        for at in [0, QUEUE_OFFSET_AT, PHYSICAL_OFFSET_AT] {
            let mut damaged = log.clone();
            damaged[100 + at] ^= 1;
            assert_eq!(slices(&units, 5, &damaged, BASE, 9, 1000).count, 1);
        }
    }
}
