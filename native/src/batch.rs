//! Converts the messages of a batch body (`gantrymq/protocol/batch.py`) to records (`record.py`), and sets their
//! offsets.

use memchr::memmem::Finder;

use crate::bytes::{i16_at, i32_at};
use crate::keys::hashed;
use crate::properties;
use crate::record::{FIXED_SIZE_V4, MAGIC_V1, MAGIC_V2, QUEUE_OFFSET_AT};
use crate::units::unit;

const HEAD_SIZE: usize = 20;
const MAX_TOPIC_LENGTH_V1: usize = 127;

pub struct Message<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: &'a [u8],
    /// Position of the next message.
    pub end: usize,
}

impl Message<'_> {
    /// Returns the message at `at`; None if there is none or it is incomplete.
    pub fn parse(batch: &[u8], at: usize) -> Option<Message<'_>> {
        let size = usize::try_from(i32_at(batch, at)?).ok()?;
        let end = at.checked_add(size)?;
        let all = batch.get(..end)?;
        let body_at = at + HEAD_SIZE;
        let body_end = body_at.checked_add(usize::try_from(i32_at(all, at + 16)?).ok()?)?;
        let properties_at = body_end + 2;
        let length = usize::try_from(i16_at(all, body_end)?).ok()?;
        if properties_at + length != end {
            return None;
        }
        let (body, properties) = (&all[body_at..body_end], &all[properties_at..]);
        Some(Message { flag: i32_at(all, at + 12)?, body, properties, end })
    }

    /// Returns the tags code for the consume queue: `String.hashCode()` of the tags, 0 without tags.
    pub fn tags_code(&self) -> i32 {
        properties::find_first(self.properties, b"TAGS").map_or(0, |tags| hashed(0, tags))
    }
}

/// The fields that the records of a batch share. `Placed` sets their offsets and store timestamp, which are 0 at first.
pub struct Common<'a> {
    pub queue_id: i32,
    /// Includes the bits for the kinds of the hosts.
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: &'a [u8],
    pub store_host: &'a [u8],
    pub reconsume_times: i32,
    pub topic: &'a [u8],
}

impl Common<'_> {
    /// Returns the record of a message; None if it would be too large.
    pub fn encode(&self, message: &Message<'_>) -> Option<Vec<u8>> {
        let mut record = Vec::new();
        self.encode_to(message, &mut record)?;
        Some(record)
    }

    /// Adds the record of a message to `record`. Returns None if it would be too large.
    pub fn encode_to(&self, message: &Message<'_>, record: &mut Vec<u8>) -> Option<()> {
        let is_version_2 = self.topic.len() > MAX_TOPIC_LENGTH_V1;
        let hosts = self.born_host.len() + self.store_host.len();
        let size = FIXED_SIZE_V4 - 16
            + hosts
            + usize::from(is_version_2)
            + self.topic.len()
            + message.body.len()
            + message.properties.len();
        record.reserve(size);
        record.extend(i32::try_from(size).ok()?.to_be_bytes());
        record.extend(if is_version_2 { MAGIC_V2 } else { MAGIC_V1 }.to_be_bytes());
        record.extend((crc32fast::hash(message.body) & 0x7FFF_FFFF).to_be_bytes());
        record.extend(self.queue_id.to_be_bytes());
        record.extend(message.flag.to_be_bytes());
        record.extend([0; 16]);
        record.extend(self.sys_flag.to_be_bytes());
        record.extend(self.born_timestamp.to_be_bytes());
        record.extend(self.born_host);
        record.extend([0; 8]);
        record.extend(self.store_host);
        record.extend(self.reconsume_times.to_be_bytes());
        record.extend([0; 8]);
        record.extend(i32::try_from(message.body.len()).ok()?.to_be_bytes());
        record.extend(message.body);
        if is_version_2 {
            record.extend(i16::try_from(self.topic.len()).ok()?.to_be_bytes());
        } else {
            record.push(self.topic.len() as u8);
        }
        record.extend(self.topic);
        record.extend(i16::try_from(message.properties.len()).ok()?.to_be_bytes());
        record.extend(message.properties);
        Some(())
    }
}

/// The offsets of the first of some records, and their store time.
#[derive(Clone, Copy, Default)]
pub struct Place {
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub store_timestamp: i64,
    /// Position of the store timestamp in a record, which depends on the kind of its born host.
    pub timestamp_at: usize,
}

/// Consecutive records with their final offsets, their units, and their physical offsets. The memory is reused.
#[derive(Default)]
pub struct Placed {
    pub data: Vec<u8>,
    pub units: Vec<u8>,
    pub offsets: Vec<i64>,
    place: Place,
}

impl Placed {
    /// Starts a new sequence of records at `place`.
    pub fn begin(&mut self, place: Place) {
        self.data.clear();
        self.units.clear();
        self.offsets.clear();
        self.place = place;
    }

    /// Adds the record of a message. Returns None if it would be too large; the content is then unusable.
    pub fn add(&mut self, common: &Common<'_>, message: &Message<'_>) -> Option<()> {
        let at = self.data.len();
        common.encode_to(message, &mut self.data)?;
        self.put_in_place(at, message.tags_code().into())
    }

    /// Adds the records of all messages of a batch body. Returns None if the body is empty, invalid or has more than
    /// `most` messages, or if a message has `special` in its properties. The content is then unusable.
    pub fn add_batch(&mut self, common: &Common<'_>, batch: &[u8], most: usize, special: &Finder<'_>) -> Option<()> {
        let mut at = 0;
        while at < batch.len() {
            let message = Message::parse(batch, at)?;
            if self.offsets.len() == most || special.find(message.properties).is_some() {
                return None;
            }
            self.add(common, &message)?;
            at = message.end;
        }
        (at > 0).then_some(())
    }

    /// Sets the offsets of the last record, which begins at `at`, and adds its unit.
    fn put_in_place(&mut self, at: usize, tags_code: i64) -> Option<()> {
        let physical_offset = self.place.physical_offset.checked_add(at as i64)?;
        let queue_offset = self.place.queue_offset.checked_add(self.offsets.len() as i64)?;
        let record = self.data.get_mut(at..)?;
        let places = record.get_mut(QUEUE_OFFSET_AT..QUEUE_OFFSET_AT + 16)?;
        places[..8].copy_from_slice(&queue_offset.to_be_bytes());
        places[8..].copy_from_slice(&physical_offset.to_be_bytes());
        let timestamp_at = self.place.timestamp_at;
        let timestamp = record.get_mut(timestamp_at..timestamp_at.checked_add(8)?)?;
        timestamp.copy_from_slice(&self.place.store_timestamp.to_be_bytes());
        self.units.extend(unit(physical_offset, i32::try_from(record.len()).ok()?, tags_code));
        self.offsets.push(physical_offset);
        Some(())
    }
}

/// Adds encoded records, each with a tags code, and sets their offsets. Returns None if the records are invalid.
pub fn placed(records: &[&[u8]], tags_codes: &[i64], place: Place) -> Option<Placed> {
    if records.len() != tags_codes.len() {
        return None;
    }
    let mut placed = Placed { place, ..Placed::default() };
    placed.data.reserve(records.iter().map(|record| record.len()).sum());
    for (record, tags_code) in records.iter().zip(tags_codes) {
        let at = placed.data.len();
        placed.data.extend_from_slice(record);
        placed.put_in_place(at, *tags_code)?;
    }
    Some(placed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{encoded, parse_all};

    fn message(body: &[u8], properties: &[u8]) -> Vec<u8> {
        let size = HEAD_SIZE + body.len() + 2 + properties.len();
        let head = [size as i32, 0, 0, 7, body.len() as i32].map(i32::to_be_bytes).concat();
        [&head, body, &(properties.len() as i16).to_be_bytes(), properties].concat()
    }

    #[test]
    fn a_message_becomes_the_record_that_it_should() {
        let common = Common {
            queue_id: 3,
            sys_flag: 0,
            born_timestamp: 1_700_000_000_123,
            born_host: &[10, 1, 2, 3, 0, 0, 0x2A, 0x9F],
            store_host: &[10, 1, 2, 4, 0, 0, 0x2A, 0x9F],
            reconsume_times: 2,
            topic: b"orders",
        };
        let batch = [message(b"one", b"TAGS\x01hello\x02"), message(b"", b"")].concat();
        let one = Message::parse(&batch, 0).unwrap();
        assert_eq!(one.tags_code(), 99_162_322);
        let two = Message::parse(&batch, one.end).unwrap();
        assert_eq!((two.end, two.tags_code()), (batch.len(), 0));
        let records = [common.encode(&one).unwrap(), common.encode(&two).unwrap()];
        let place =
            Place { queue_offset: 10, physical_offset: 4096, store_timestamp: 1_700_000_000_456, timestamp_at: 56 };
        let Placed { data, units, offsets, .. } = placed(&[&records[0], &records[1]], &[-1, 0], place).unwrap();
        let found = parse_all(&data).unwrap();
        assert_eq!((found[0].queue_offset, found[1].queue_offset), (10, 11));
        assert_eq!(offsets, [4096, 4096 + records[0].len() as i64]);
        assert_eq!(found[1].physical_offset, offsets[1]);
        assert_eq!(units[12..20], [0xFF; 8]);
        let place = Place { queue_offset: 11, physical_offset: 4096, ..place };
        assert_eq!(placed(&[&records[0]], &[0], place).unwrap().data, encoded(b"one", b"TAGS\x01hello\x02"));
        assert!(placed(&[b"short"], &[0], place).is_none());
        assert!(placed(&[], &[0], place).is_none());
    }

    #[test]
    fn what_is_cut_off_is_no_message() {
        let batch = message(b"body", b"A\x01b\x02");
        for end in 0..batch.len() {
            assert!(Message::parse(&batch[..end], 0).is_none(), "{end}");
        }
        for at in 0..batch.len() {
            for byte in [0, 1, 0x7F, 0x80, 0xFF] {
                let mut bad = batch.clone();
                bad[at] = byte;
                assert!(Message::parse(&bad, 0).is_none_or(|message| message.end == bad.len()));
            }
        }
        assert!(Message::parse(&batch, usize::MAX).is_none());
    }
}
