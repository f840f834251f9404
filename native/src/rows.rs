//! Encodes rows of Arrow columns as the messages of batch bodies (`gantrymq/protocol/batch.py`).

use std::io::Write;

use memchr::{memchr, memchr2};

use crate::properties::{END, NAME_VALUE};

const HEX: [u8; 16] = *b"0123456789ABCDEF";

/// A map with more names is left to Python, because each name is compared with all others.
const MANY: usize = 64;

/// A row that can't be a message of a batch or that Python must handle, or columns with an invalid layout.
#[derive(Debug, PartialEq)]
pub struct Refused;

/// A column of bytes or texts: the buffers of an Arrow array. The column starts at value `first` of the array.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    /// A bit for each value; None if no value is null.
    pub validity: Option<&'a [u8]>,
    /// 32-bit offsets in the byte order of this machine.
    pub offsets: &'a [u8],
    pub data: &'a [u8],
    pub first: usize,
}

impl<'a> Values<'a> {
    /// Returns a value; None if it is null.
    fn get(&self, number: usize) -> Result<Option<&'a [u8]>, Refused> {
        let Some((start, end)) = self.bounds(number)? else { return Ok(None) };
        self.data.get(start..end).ok_or(Refused).map(Some)
    }

    /// Returns the start and the end of a value; None if it is null.
    fn bounds(&self, number: usize) -> Result<Option<(usize, usize)>, Refused> {
        let number = self.first.checked_add(number).ok_or(Refused)?;
        let bits = self.validity.map_or(Ok(0xFF), |validity| validity.get(number / 8).copied().ok_or(Refused))?;
        if bits >> (number % 8) & 1 == 0 {
            return Ok(None);
        }
        Ok(Some((self.offset(number)?, self.offset(number + 1)?)))
    }

    fn offset(&self, number: usize) -> Result<usize, Refused> {
        let at = number.checked_mul(4).ok_or(Refused)?;
        let bytes = self.offsets.get(at..).and_then(<[u8]>::first_chunk).ok_or(Refused)?;
        usize::try_from(i32::from_ne_bytes(*bytes)).map_err(|_| Refused)
    }
}

/// A column of maps of texts. Map n has the names and values from offset n to offset n + 1.
pub struct Maps<'a> {
    pub all: Values<'a>,
    pub names: Values<'a>,
    pub values: Values<'a>,
    /// Names that are omitted.
    pub dropped: &'a [Vec<u8>],
}

/// Rows, and the additional properties of their messages.
pub struct Rows<'a> {
    pub bodies: Values<'a>,
    /// Properties with these names, each with the values of a column.
    pub singles: &'a [(Vec<u8>, Values<'a>)],
    pub maps: Option<Maps<'a>>,
    /// Prefix of the property GANTRY_ID. The row's number follows; the first row has the number `first_row`.
    pub id_prefix: &'a [u8],
    pub first_row: u64,
    /// Prefix of the property UNIQ_KEY. Four hexadecimal digits follow, which count from `first_key` on.
    pub key_head: &'a [u8],
    pub first_key: u16,
    /// If set, messages have the property GANTRY_SEQ (`gantrymq/protocol/row_ids.py`).
    pub sequence: Option<Sequence<'a>>,
}

/// The prefix of GANTRY_SEQ, and the checksum of all rows before the first row.
pub struct Sequence<'a> {
    pub target: &'a [u8],
    pub chain: u32,
}

/// Messages, and the checksum of all rows up to the last message.
#[derive(Debug, Default, PartialEq)]
pub struct Batch {
    pub messages: usize,
    pub data: Vec<u8>,
    pub chain: u32,
}

/// The limits of a message and of a batch. The size of a batch counts only bodies and properties.
pub struct Most {
    pub properties: usize,
    pub messages: usize,
    pub bytes: usize,
}

/// Returns the batches of `count` rows, in order.
pub fn batches(rows: &Rows<'_>, count: usize, most: &Most) -> Result<Vec<Batch>, Refused> {
    let mut found: Vec<Batch> = Vec::new();
    let mut size = 0;
    let mut chain = rows.sequence.as_ref().map_or(0, |sequence| sequence.chain);
    let mut properties = Vec::new();
    for row in 0..count {
        let body = rows.bodies.get(row)?.filter(|body| !body.is_empty()).ok_or(Refused)?;
        properties.clear();
        rows.put_properties(row, body, &mut chain, &mut properties)?;
        if properties.len() > most.properties {
            return Err(Refused);
        }
        let length = body.len() + properties.len();
        let is_full = found.last().is_none_or(|batch| size + length > most.bytes || batch.messages >= most.messages);
        if is_full {
            // The estimate assumes that the other rows have the size of this one.
            let rows_left = most.messages.min(count - row);
            let capacity = rows_left.saturating_mul(length + 24).min(most.bytes + length);
            found.push(Batch { data: Vec::with_capacity(capacity), ..Batch::default() });
            size = 0;
        }
        let Some(batch) = found.last_mut() else { return Err(Refused) };
        put_message(&mut batch.data, body, &properties)?;
        batch.messages += 1;
        batch.chain = chain;
        size += length;
    }
    Ok(found)
}

fn put_message(batch: &mut Vec<u8>, body: &[u8], properties: &[u8]) -> Result<(), Refused> {
    let int = |number: usize| i32::try_from(number).map_err(|_| Refused).map(i32::to_be_bytes);
    batch.extend(int(22 + body.len() + properties.len())?);
    batch.extend([0; 12]);
    batch.extend(int(body.len())?);
    batch.extend_from_slice(body);
    batch.extend(i16::try_from(properties.len()).map_err(|_| Refused)?.to_be_bytes());
    batch.extend_from_slice(properties);
    Ok(())
}

impl Rows<'_> {
    fn put_properties(&self, row: usize, body: &[u8], chain: &mut u32, out: &mut Vec<u8>) -> Result<(), Refused> {
        if let Some(maps) = &self.maps {
            maps.put(row, out)?;
        }
        for (name, column) in self.singles {
            if let Some(value) = column.get(row)? {
                put(name, value, out)?;
            }
        }
        out.extend_from_slice(b"GANTRY_ID\x01");
        out.extend_from_slice(self.id_prefix);
        write!(out, "-{}\x02", self.first_row.wrapping_add(row as u64)).map_err(|_| Refused)?;
        if self.sequence.is_some() {
            // The checksum covers only bytes that stay the same if the row is sent again.
            let digest = continued(continued(0, out), body);
            *chain = continued(*chain, &digest.to_be_bytes());
        }
        out.extend_from_slice(b"UNIQ_KEY\x01");
        out.extend_from_slice(self.key_head);
        let key = self.first_key.wrapping_add(row as u16);
        out.extend([12, 8, 4, 0].map(|shift| HEX[usize::from(key >> shift & 15)]));
        out.push(END);
        if let Some(sequence) = &self.sequence {
            out.extend_from_slice(b"GANTRY_SEQ\x01");
            out.extend_from_slice(sequence.target);
            write!(out, "{chain:08x}\x02").map_err(|_| Refused)?;
        }
        Ok(())
    }
}

/// Returns the CRC32 of data with the CRC32 `before` followed by `bytes`.
fn continued(before: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(before);
    hasher.update(bytes);
    hasher.finalize()
}

impl Maps<'_> {
    fn put(&self, row: usize, out: &mut Vec<u8>) -> Result<(), Refused> {
        let Some((first, end)) = self.all.bounds(row)? else { return Ok(()) };
        if end.saturating_sub(first) > MANY {
            return Err(Refused);
        }
        for item in first..end {
            let name = self.names.get(item)?.ok_or(Refused)?;
            for other in first..item {
                // Python decides which of two equal names counts, and where.
                if self.names.get(other)? == Some(name) {
                    return Err(Refused);
                }
            }
            let value = self.values.get(item)?.unwrap_or_default();
            if !self.dropped.iter().any(|other| other == name) {
                put(name, value, out)?;
            }
        }
        Ok(())
    }
}

/// Adds a property. Adds nothing if the value is empty, like Python.
fn put(name: &[u8], value: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
    if value.is_empty() {
        return Ok(());
    }
    if name.is_empty() || memchr2(NAME_VALUE, END, name).is_some() || memchr(END, value).is_some() {
        return Err(Refused);
    }
    out.extend_from_slice(name);
    out.push(NAME_VALUE);
    out.extend_from_slice(value);
    out.push(END);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Message;

    struct Owned(Vec<u8>, Vec<u8>, Vec<u8>);

    /// Returns the buffers of a column with these texts. "-" stands for null.
    fn column(texts: &[&str]) -> Owned {
        let (mut offsets, mut data, mut validity) = (vec![0; 4], Vec::new(), vec![0; texts.len() / 8 + 1]);
        for (number, text) in texts.iter().enumerate() {
            if *text != "-" {
                data.extend(text.as_bytes());
                validity[number / 8] |= 1 << (number % 8);
            }
            offsets.extend((data.len() as i32).to_ne_bytes());
        }
        Owned(validity, offsets, data)
    }

    impl Owned {
        fn values(&self, first: usize) -> Values<'_> {
            Values { validity: Some(&self.0), offsets: &self.1, data: &self.2, first }
        }
    }

    const MOST: Most = Most { properties: 200, messages: 2, bytes: 500 };

    fn rows<'a>(bodies: &'a Owned, singles: &'a [(Vec<u8>, Values<'a>)]) -> Rows<'a> {
        let bodies = bodies.values(1);
        Rows {
            bodies,
            singles,
            maps: None,
            id_prefix: b"w-0",
            first_row: 9,
            key_head: b"7F",
            first_key: 0xFFFF,
            sequence: None,
        }
    }

    #[test]
    fn rows_are_messages_in_their_order() {
        let (bodies, keys) = (column(&["left out", "one", "two", "three"]), column(&["k", "-", ""]));
        let singles = [(b"KEYS".to_vec(), keys.values(0))];
        let found = batches(&rows(&bodies, &singles), 3, &MOST).unwrap();
        assert_eq!(found.iter().map(|batch| batch.messages).collect::<Vec<_>>(), [2, 1]);
        let one = Message::parse(&found[0].data, 0).unwrap();
        assert_eq!((one.flag, one.body), (0, b"one" as &[u8]));
        assert_eq!(one.properties, b"KEYS\x01k\x02GANTRY_ID\x01w-0-9\x02UNIQ_KEY\x017FFFFF\x02");
        let two = Message::parse(&found[0].data, one.end).unwrap();
        assert_eq!(two.properties, b"GANTRY_ID\x01w-0-10\x02UNIQ_KEY\x017F0000\x02");
        assert_eq!(two.end, found[0].data.len());
        assert_eq!(Message::parse(&found[1].data, 0).unwrap().body, b"three");
        let most = Most { bytes: 60, ..MOST };
        assert_eq!(batches(&rows(&bodies, &[]), 3, &most).unwrap().len(), 3);
    }

    #[test]
    fn a_sequence_is_a_checksum_of_all_rows() {
        let bodies = column(&["", "one", "two"]);
        let sequence = Some(Sequence { target: b"0a0b0c0d", chain: 5 });
        let found = batches(&Rows { sequence, ..rows(&bodies, &[]) }, 2, &Most { messages: 1, ..MOST }).unwrap();
        let mut chain = 5;
        for (batch, (row, body)) in found.iter().zip([("9", "one"), ("10", "two")]) {
            let digest = crc32fast::hash(format!("GANTRY_ID\x01w-0-{row}\x02{body}").as_bytes());
            chain = continued(chain, &digest.to_be_bytes());
            let message = Message::parse(&batch.data, 0).unwrap();
            assert!(message.properties.ends_with(format!("\x02GANTRY_SEQ\x010a0b0c0d{chain:08x}\x02").as_bytes()));
            assert_eq!(batch.chain, chain);
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for (body, key, is_good) in
            [("x", "k", true), ("-", "k", false), ("", "k", false), ("x", "a\x02", false), ("x", "a\x01b", true)]
        {
            let (bodies, keys) = (column(&["", body]), column(&[key]));
            let singles = [(b"KEYS".to_vec(), keys.values(0))];
            let rows = rows(&bodies, &singles);
            assert_eq!(batches(&rows, 1, &MOST).is_ok(), is_good, "{body} {key}");
            assert_eq!(batches(&rows, 2, &MOST), Err(Refused), "there is but one");
            assert_eq!(batches(&rows, 1, &Most { properties: 30, ..MOST }), Err(Refused));
        }
    }

    #[test]
    fn maps_come_first_without_what_is_dropped() {
        let (bodies, all) = (column(&["", "x", "y"]), column(&["ab", "-"]));
        let (names, values) = (column(&["A", "B"]), column(&["1", "2"]));
        let dropped = [b"A".to_vec()];
        let maps = Maps { all: all.values(0), names: names.values(0), values: values.values(0), dropped: &dropped };
        let found = batches(&Rows { maps: Some(maps), ..rows(&bodies, &[]) }, 2, &MOST).unwrap();
        let one = Message::parse(&found[0].data, 0).unwrap();
        assert!(one.properties.starts_with(b"B\x012\x02GANTRY_ID\x01"));
        assert!(Message::parse(&found[0].data, one.end).unwrap().properties.starts_with(b"GANTRY_ID"));
    }
}
