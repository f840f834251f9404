//! Converts the records of a log to runs of units for the consume queues (`gantrymq/store/consume_queue.py`).

use std::collections::HashMap;

use crate::keys::hashed;
use crate::properties;
use crate::record::{FIXED_SIZE_V4, Record};

/// The bit of PREPARED and ROLLBACK, whose records have no units.
const TRANSACTION_PREPARED: i32 = 1 << 2;
const CRC_NAME: &[u8] = b"__CRC32#\x01";
const CRC_DIGITS: usize = 10;

/// Units of one queue with successive queue offsets.
pub struct Run<'a> {
    pub topic: &'a [u8],
    pub queue_id: i32,
    /// The queue offset of the first unit.
    pub first: i64,
    next: i64,
    pub units: Vec<u8>,
}

pub struct Scan<'a> {
    /// In the order of their first records.
    pub runs: Vec<Run<'a>>,
    /// The number of records, including those without units, and the position of the next record.
    pub records: usize,
    pub end: usize,
    /// The store timestamp of the last record, and the largest one.
    pub last_timestamp: i64,
    pub max_timestamp: i64,
}

/// Reads at most `most` records of `log` from `at` on. `base` is the physical offset of `log`. Stops before a record
/// that may be invalid: the physical offset in it is wrong, its checksum is wrong (or missing, with `needs_crc`), its
/// queue offset doesn't follow, or its topic is not a text. Also stops before a record of the topic `left_out`, and
/// before one with zeros in its properties.
pub fn runs<'a>(log: &'a [u8], at: usize, base: i64, most: usize, needs_crc: bool, left_out: &[u8]) -> Scan<'a> {
    let mut scan = Scan { runs: Vec::new(), records: 0, end: at, last_timestamp: 0, max_timestamp: 0 };
    let mut places: HashMap<(&[u8], i32), usize> = HashMap::new();
    while scan.records < most {
        let Some(record) = Record::parse(log, scan.end) else { break };
        let properties = &log[record.properties_at..record.end];
        let topic = &log[record.topic_at..record.topic_end];
        if !is_in_place(&record, base)
            || record.has_wrong_crc(log)
            || !has_crc(&log[record.start..record.end]).unwrap_or(!needs_crc)
            || topic == left_out
            || memchr::memchr(0, properties).is_some()
        {
            break;
        }
        if record.sys_flag & TRANSACTION_PREPARED == 0 {
            let place = places.entry((topic, record.queue_id)).or_insert(usize::MAX);
            if *place == usize::MAX {
                if std::str::from_utf8(topic).is_err() {
                    break;
                }
                *place = scan.runs.len();
                let (first, units) = (record.queue_offset, Vec::new());
                scan.runs.push(Run { topic, queue_id: record.queue_id, first, next: first, units });
            }
            let run = &mut scan.runs[*place];
            if record.queue_offset != run.next {
                break;
            }
            let tags_code = properties::find_first(properties, b"TAGS").map_or(0, |tags| hashed(0, tags));
            run.units.extend(record.physical_offset.to_be_bytes());
            // Fits, because it was read from four bytes.
            run.units.extend(((record.end - record.start) as i32).to_be_bytes());
            run.units.extend(i64::from(tags_code).to_be_bytes());
            run.next += 1;
        }
        scan.records += 1;
        scan.end = record.end;
        scan.last_timestamp = record.store_timestamp;
        scan.max_timestamp = scan.max_timestamp.max(record.store_timestamp);
    }
    scan
}

/// Returns true if the record's physical offset is correct, and its queue offset is possible for this size of the log.
fn is_in_place(record: &Record, base: i64) -> bool {
    base.checked_add(record.start as i64) == Some(record.physical_offset)
        && record.queue_id >= 0
        && (0..=record.physical_offset / FIXED_SIZE_V4 as i64).contains(&record.queue_offset)
}

/// Returns true if the checksum of the whole record (`gantrymq/store/record_crc.py`) is correct; None without one.
fn has_crc(record: &[u8]) -> Option<bool> {
    let (checked, property) = record.split_at(record.len().checked_sub(CRC_NAME.len() + CRC_DIGITS + 1)?);
    let digits = property.strip_prefix(CRC_NAME)?;
    let mut crc = crc32fast::hash(checked) & 0x7FFF_FFFF;
    let are_right = digits[..CRC_DIGITS].iter().all(|&digit| {
        let expected = b'0' + (crc % 10) as u8;
        crc /= 10;
        digit == expected
    });
    Some(are_right && digits[CRC_DIGITS] == 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::encoded;

    /// Returns consecutive records of queue 3, from queue offset 11 and physical offset 4096 on.
    fn log(all: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut log = Vec::new();
        for (number, (body, properties)) in all.iter().enumerate() {
            let mut record = encoded(body, properties);
            record[20..28].copy_from_slice(&(11 + number as i64).to_be_bytes());
            record[28..36].copy_from_slice(&(4096 + log.len() as i64).to_be_bytes());
            log.extend(record);
        }
        log
    }

    fn all(log: &[u8]) -> Scan<'_> {
        runs(log, 0, 4096, 100, false, b"left out")
    }

    #[test]
    fn records_of_a_queue_are_a_run() {
        let log = log(&[(b"one", b"TAGS\x01hello\x02"), (b"", b"")]);
        let scan = all(&log);
        assert_eq!((scan.runs.len(), scan.records, scan.end), (1, 2, log.len()));
        let run = &scan.runs[0];
        assert_eq!((run.topic, run.queue_id, run.first), (b"orders" as &[u8], 3, 11));
        let size = encoded(b"one", b"TAGS\x01hello\x02").len();
        let units = [
            4096_i64.to_be_bytes().to_vec(),
            (size as i32).to_be_bytes().to_vec(),
            99_162_322_i64.to_be_bytes().to_vec(),
            (4096 + size as i64).to_be_bytes().to_vec(),
            ((log.len() - size) as i32).to_be_bytes().to_vec(),
            vec![0; 8],
        ];
        assert_eq!(run.units, units.concat());
        assert_eq!((scan.last_timestamp, scan.max_timestamp), (1_700_000_000_456, 1_700_000_000_456));
        assert_eq!(runs(&log, 0, 4096, 1, false, b"").end, size);
        assert_eq!(runs(&log, 0, 4096, 9, true, b"").records, 0);
        assert_eq!(runs(&log, 0, 4096, 9, false, b"orders").records, 0);
        assert_eq!(runs(&log, 0, 4095, 9, false, b"").records, 0);
        assert_eq!(runs(&log, usize::MAX, 4096, 9, false, b"").records, 0);
    }

    #[test]
    fn what_is_odd_ends_it() {
        let good = log(&[(b"one", b"A\x01b\x02"), (b"two", b"")]);
        let size = encoded(b"one", b"A\x01b\x02").len();
        // CRC, queue id, queue offset, physical offset, body, last byte of the properties.
        for (at, byte) in [(8, 0xFF), (12, 0x80), (27, 200), (35, 1), (88, 0), (size - 1, 0)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(all(&bad).records, 0, "{at}");
        }
        let mut next = good.clone();
        next[size + 27] += 1;
        assert_eq!((all(&next).records, all(&next).end), (1, size));
        let mut text = good;
        text[size + 88 + 3 + 1] = 0xFF;
        assert_eq!(all(&text).records, 1);
    }

    #[test]
    fn a_checksum_over_all_must_be_right() {
        let mut record = log(&[(b"x", b"A\x01b\x02__CRC32#\x010000000000\x02")]);
        assert_eq!(all(&record).records, 0);
        let digits_at = record.len() - 11;
        let mut crc = crc32fast::hash(&record[..record.len() - 20]) & 0x7FFF_FFFF;
        for digit in &mut record[digits_at..digits_at + 10] {
            *digit = b'0' + (crc % 10) as u8;
            crc /= 10;
        }
        assert_eq!((all(&record).records, runs(&record, 0, 4096, 9, true, b"").records), (1, 1));
        record[digits_at] ^= 1;
        assert_eq!(all(&record).records, 0);
    }
}
