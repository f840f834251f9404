//! The keys by which records are found, and their hashes (`gantrymq/store/index_keys.py`).

use crate::properties;
use crate::record::Record;

const TRANSACTION_ROLLBACK: i32 = 3 << 2;

/// An index entry: the hash of a key, and the record's physical offset and store timestamp in ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    pub hash: i32,
    pub physical_offset: i64,
    pub timestamp: i64,
}

/// The limits of one call.
#[derive(Clone, Copy)]
pub struct Limits {
    pub records: usize,
    pub keys: usize,
    /// Total size of the properties.
    pub bytes: usize,
}

/// Records of this topic whose properties end with this mark have no entries.
#[derive(Clone, Copy)]
pub struct LeftOut<'a> {
    pub topic: &'a [u8],
    pub mark: &'a [u8],
}

/// The progress of a call: the positions of the last processed record and of the next record.
#[derive(Debug, PartialEq)]
pub struct Reached {
    pub last: usize,
    pub next: usize,
}

/// Adds the entries of the records in `log` from `at` on. `base` is the physical offset of `log`. Stops before an
/// invalid record, and before a record whose keys would exceed the limit.
pub fn entries(
    log: &[u8],
    at: usize,
    base: i64,
    limits: Limits,
    left_out: LeftOut<'_>,
    found: &mut Vec<Entry>,
) -> Reached {
    let mut reached = Reached { last: at, next: at };
    let mut bytes = 0;
    for _ in 0..limits.records {
        let Some(record) = Record::parse(log, reached.next) else { break };
        let before = found.len();
        let properties = &log[record.properties_at..record.end];
        let topic = &log[record.topic_at..record.topic_end];
        let is_left_out = topic == left_out.topic && properties.ends_with(left_out.mark);
        if record.sys_flag & TRANSACTION_ROLLBACK != TRANSACTION_ROLLBACK && !is_left_out {
            let topic = hashed(hashed(0, topic), b"#");
            let (physical_offset, timestamp) = (base + record.start as i64, record.store_timestamp);
            each_key_hash(properties, topic, |hash| found.push(Entry { hash, physical_offset, timestamp }));
            if found.len() > limits.keys {
                found.truncate(before);
                break;
            }
        }
        reached = Reached { last: record.start, next: record.end };
        bytes += properties.len();
        if bytes >= limits.bytes {
            break;
        }
    }
    reached
}

fn each_key_hash(properties: &[u8], topic: i32, mut add: impl FnMut(i32)) {
    if let Some(key) = properties::find_first(properties, b"UNIQ_KEY") {
        add(positive(hashed(topic, key)));
    }
    if let Some(keys) = properties::find_first(properties, b"KEYS") {
        for key in keys.split(|&byte| byte == b' ').filter(|key| !key.is_empty()) {
            add(positive(hashed(topic, key)));
        }
    }
    if let Some(tags) = properties::find_first(properties, b"TAGS") {
        add(positive(hashed(hashed(topic, b"T#"), tags)));
    }
}

/// Returns the `String.hashCode()` of a text with the hash `before` followed by `text`, which must start at a character
/// boundary.
pub fn hashed(before: i32, text: &[u8]) -> i32 {
    let add = |hash: i32, unit: u16| hash.wrapping_mul(31).wrapping_add(i32::from(unit));
    if text.is_ascii() {
        text.iter().fold(before, |hash, &byte| add(hash, u16::from(byte)))
    } else {
        String::from_utf8_lossy(text).encode_utf16().fold(before, add)
    }
}

/// Applies `IndexService.indexKeyHashMethod`: the result is 0 if Java's abs overflows.
fn positive(hash: i32) -> i32 {
    hash.checked_abs().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::encoded;

    const ALL: Limits = Limits { records: 100, keys: 100, bytes: 1000 };

    fn all(log: &[u8], limits: Limits) -> (Vec<i32>, Reached) {
        let mut found = Vec::new();
        let reached = entries(log, 0, 0, limits, LeftOut { topic: b"orders", mark: b"H\x01h\x02" }, &mut found);
        (found.iter().map(|entry| entry.hash).collect(), reached)
    }

    #[test]
    fn hashes_are_javas() {
        assert_eq!(hashed(0, b""), 0);
        assert_eq!(hashed(0, b"hello"), 99_162_322);
        assert_eq!(hashed(hashed(0, b"hel"), b"lo"), 99_162_322);
        // A character outside the basic plane is two units. Invalid UTF-8 becomes U+FFFD.
        assert_eq!(hashed(0, "\u{1F600}".as_bytes()), 0xD83D * 31 + 0xDE00);
        assert_eq!(hashed(0, b"\xFF"), 0xFFFD);
        assert_eq!(positive(i32::MIN), 0);
        assert_eq!(positive(-5), 5);
    }

    #[test]
    fn each_key_is_an_entry() {
        let log = encoded(b"x", b"KEYS\x01a  b \x02TAGS\x01t\x02UNIQ_KEY\x01u\x02KEYS\x01c\x02");
        let expected: Vec<i32> =
            [b"orders#u" as &[u8], b"orders#a", b"orders#b", b"orders#T#t"].map(|key| positive(hashed(0, key))).into();
        assert_eq!(all(&log, ALL), (expected, Reached { last: 0, next: log.len() }));
    }

    #[test]
    fn what_is_left_out_is_looked_at() {
        let left_out = encoded(b"x", b"KEYS\x01a\x02H\x01h\x02");
        let log = [left_out.clone(), encoded(b"x", b"H\x01h\x02KEYS\x01a\x02"), left_out].concat();
        let (found, reached) = all(&log, ALL);
        assert_eq!((found.len(), reached.next), (1, log.len()));
    }

    #[test]
    fn limits_end_it_between_two_records() {
        let one = encoded(b"x", b"KEYS\x01a b\x02");
        let log = one.repeat(5);
        let reached = |count: usize| Reached { last: (count - 1) * one.len(), next: count * one.len() };
        assert_eq!(all(&log, Limits { records: 2, ..ALL }).1, reached(2));
        assert_eq!(all(&log, Limits { keys: 7, ..ALL }), (all(&log[..3 * one.len()], ALL).0, reached(3)));
        assert_eq!(all(&log, Limits { bytes: 10, ..ALL }).1, reached(2));
        assert_eq!(all(&log, Limits { keys: 1, ..ALL }), (vec![], Reached { last: 0, next: 0 }));
        assert_eq!(all(&log[..log.len() - 1], ALL).1, reached(4));
    }
}
