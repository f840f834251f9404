//! The positions of the fields in a message record. `gantrymq/protocol/record.py` defines the layout.

use crate::bytes::{i16_at, i32_at, i64_at};

pub const MAGIC_V1: i32 = 0xDAA3_20A7_u32 as i32;
pub const MAGIC_V2: i32 = 0xDAA3_20AB_u32 as i32;
const BORN_HOST_V6: i32 = 1 << 4;
const STORE_HOST_V6: i32 = 1 << 5;
const HOST_SIZE_V4: usize = 8;
const HOST_SIZE_V6: usize = 20;
/// Size of a version 1 record with IPv4 hosts, without body, topic and properties.
pub const FIXED_SIZE_V4: usize = 91;

const MAGIC_AT: usize = 4;
const BODY_CRC_AT: usize = 8;
const QUEUE_ID_AT: usize = 12;
pub const QUEUE_OFFSET_AT: usize = 20;
pub const PHYSICAL_OFFSET_AT: usize = 28;
const SYS_FLAG_AT: usize = 36;
const BORN_TIMESTAMP_AT: usize = 40;
const BORN_HOST_AT: usize = 48;
/// Position of the store timestamp if the born host is an IPv4 address.
pub const STORE_TIMESTAMP_AT_V4: usize = BORN_HOST_AT + HOST_SIZE_V4;

/// The numbers of a record, and the positions of its parts in the buffer.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub start: usize,
    pub end: usize,
    pub body_crc: i32,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub store_timestamp: i64,
    pub store_host_at: usize,
    pub store_host_end: usize,
    pub reconsume_times: i32,
    pub body_at: usize,
    pub body_end: usize,
    pub topic_at: usize,
    pub topic_end: usize,
    pub properties_at: usize,
}

impl Record {
    /// Returns the record at `start` of `buffer`; None if there is none or it is incomplete.
    #[inline]
    pub fn parse(buffer: &[u8], start: usize) -> Option<Record> {
        let size = usize::try_from(i32_at(buffer, start)?).ok()?;
        let end = start.checked_add(size)?;
        let all = buffer.get(..end)?;
        let magic = i32_at(all, start + MAGIC_AT)?;
        if size < FIXED_SIZE_V4 || (magic != MAGIC_V1 && magic != MAGIC_V2) {
            return None;
        }
        let sys_flag = i32_at(all, start + SYS_FLAG_AT)?;
        let born_end = start + BORN_HOST_AT + host_size(sys_flag & BORN_HOST_V6 != 0);
        let store_host_at = born_end + 8;
        let store_host_end = store_host_at + host_size(sys_flag & STORE_HOST_V6 != 0);
        let body_at = store_host_end + 16;
        let body_end = body_at.checked_add(usize::try_from(i32_at(all, store_host_end + 12)?).ok()?)?;
        let (topic_at, topic_length) = if magic == MAGIC_V1 {
            (body_end + 1, usize::from(*all.get(body_end)?))
        } else {
            (body_end + 2, usize::try_from(i16_at(all, body_end)?).ok()?)
        };
        let topic_end = topic_at + topic_length;
        let properties_at = topic_end + 2;
        let properties_length = usize::try_from(i16_at(all, topic_end)?).ok()?;
        if properties_at + properties_length != end {
            return None;
        }
        Some(Record {
            start,
            end,
            body_crc: i32_at(all, start + BODY_CRC_AT)?,
            queue_id: i32_at(all, start + QUEUE_ID_AT)?,
            queue_offset: i64_at(all, start + QUEUE_OFFSET_AT)?,
            physical_offset: i64_at(all, start + PHYSICAL_OFFSET_AT)?,
            sys_flag,
            born_timestamp: i64_at(all, start + BORN_TIMESTAMP_AT)?,
            store_timestamp: i64_at(all, born_end)?,
            store_host_at,
            store_host_end,
            reconsume_times: i32_at(all, store_host_end)?,
            body_at,
            body_end,
            topic_at,
            topic_end,
            properties_at,
        })
    }

    /// Returns true if the CRC32 of the stored body differs from the one in the record.
    pub fn has_wrong_crc(&self, buffer: &[u8]) -> bool {
        crc32fast::hash(&buffer[self.body_at..self.body_end]) & 0x7FFF_FFFF != self.body_crc as u32
    }
}

fn host_size(is_v6: bool) -> usize {
    if is_v6 { HOST_SIZE_V6 } else { HOST_SIZE_V4 }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns all records of `buffer`, which are consecutive, or the position of the first invalid one.
    pub fn parse_all(buffer: &[u8]) -> Result<Vec<Record>, usize> {
        let mut records = Vec::new();
        let mut at = 0;
        while at < buffer.len() {
            let record = Record::parse(buffer, at).ok_or(at)?;
            at = record.end;
            records.push(record);
        }
        Ok(records)
    }

    /// Returns a version 1 record with IPv4 hosts.
    pub fn encoded(body: &[u8], properties: &[u8]) -> Vec<u8> {
        let topic = b"orders";
        let size = FIXED_SIZE_V4 + body.len() + topic.len() + properties.len();
        let mut bytes = Vec::new();
        bytes.extend((size as i32).to_be_bytes());
        bytes.extend(MAGIC_V1.to_be_bytes());
        bytes.extend((crc32fast::hash(body) & 0x7FFF_FFFF).to_be_bytes());
        bytes.extend(3_i32.to_be_bytes());
        bytes.extend(7_i32.to_be_bytes());
        bytes.extend(11_i64.to_be_bytes());
        bytes.extend(4096_i64.to_be_bytes());
        bytes.extend(0_i32.to_be_bytes());
        bytes.extend(1_700_000_000_123_i64.to_be_bytes());
        bytes.extend([10, 1, 2, 3, 0, 0, 0x2A, 0x9F]);
        bytes.extend(1_700_000_000_456_i64.to_be_bytes());
        bytes.extend([10, 1, 2, 4, 0, 0, 0x2A, 0x9F]);
        bytes.extend(2_i32.to_be_bytes());
        bytes.extend(0_i64.to_be_bytes());
        bytes.extend((body.len() as i32).to_be_bytes());
        bytes.extend(body);
        bytes.push(topic.len() as u8);
        bytes.extend(topic);
        bytes.extend((properties.len() as i16).to_be_bytes());
        bytes.extend(properties);
        bytes
    }

    #[test]
    fn fields_stand_where_they_belong() {
        let buffer = [encoded(b"one", b"A\x01b\x02"), encoded(b"", b"")].concat();
        let records = parse_all(&buffer).unwrap();
        assert_eq!(records.len(), 2);
        let one = &records[0];
        assert_eq!((one.queue_id, one.queue_offset, one.physical_offset), (3, 11, 4096));
        assert_eq!((one.born_timestamp, one.store_timestamp), (1_700_000_000_123, 1_700_000_000_456));
        assert_eq!(one.reconsume_times, 2);
        assert_eq!(&buffer[one.body_at..one.body_end], b"one");
        assert_eq!(&buffer[one.topic_at..one.topic_end], b"orders");
        assert_eq!(&buffer[one.properties_at..one.end], b"A\x01b\x02");
        assert!(!one.has_wrong_crc(&buffer));
    }

    #[test]
    fn what_is_cut_off_is_no_record() {
        let buffer = encoded(b"body", b"A\x01b\x02");
        for end in 1..buffer.len() {
            assert_eq!(parse_all(&buffer[..end]).err(), Some(0), "{end}");
        }
    }

    #[test]
    fn any_byte_may_be_anything() {
        let good = encoded(b"body", b"A\x01b\x02");
        for at in 0..good.len() {
            for byte in [0, 1, 0x7F, 0x80, 0xFF] {
                let mut bad = good.clone();
                bad[at] = byte;
                if let Ok(records) = parse_all(&bad) {
                    assert_eq!(records.len(), 1);
                    assert!(records[0].end == bad.len() && records[0].properties_at <= bad.len());
                }
            }
        }
    }
}
