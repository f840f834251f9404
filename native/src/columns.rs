//! Columns as Arrow has them in memory: validity bits, offsets, data.

use crate::inflate::{Failed, Inflater};
use crate::properties;
use crate::record::Record;

/// More bytes than an Arrow array with offsets of 32 bits holds.
#[derive(Debug, PartialEq)]
pub struct TooLarge;

/// Values of bytes or, where it was made of texts, of UTF-8.
#[derive(Default)]
pub struct Binary {
    pub offsets: Vec<i32>,
    pub data: Vec<u8>,
    /// A bit for each value, the first one lowest; empty while none is null.
    pub validity: Vec<u8>,
    pub nulls: usize,
}

impl Binary {
    pub fn with_capacity(values: usize, bytes: usize) -> Binary {
        let mut offsets = Vec::with_capacity(values + 1);
        offsets.push(0);
        Binary { offsets, data: Vec::with_capacity(bytes), validity: Vec::new(), nulls: 0 }
    }

    pub fn count(&self) -> usize {
        self.offsets.len() - 1
    }

    pub fn push(&mut self, value: &[u8]) -> Result<(), TooLarge> {
        self.data.extend_from_slice(value);
        self.end_value(true)
    }

    /// Bytes that aren't UTF-8 are replaced, as Python's `decode(errors="replace")` does.
    pub fn push_text(&mut self, value: &[u8]) -> Result<(), TooLarge> {
        self.data.extend_from_slice(String::from_utf8_lossy(value).as_bytes());
        self.end_value(true)
    }

    pub fn push_null(&mut self) -> Result<(), TooLarge> {
        self.end_value(false)
    }

    /// Ends a value whose bytes were added to `data`.
    pub fn end_pushed(&mut self) -> Result<(), TooLarge> {
        self.end_value(true)
    }

    fn end_value(&mut self, is_valid: bool) -> Result<(), TooLarge> {
        let number = self.count();
        if !is_valid {
            if self.nulls == 0 {
                self.validity = vec![0xFF; number / 8];
                self.validity.push((1_u16 << (number % 8)).wrapping_sub(1) as u8);
            } else if number % 8 == 0 {
                self.validity.push(0);
            }
            self.nulls += 1;
        } else if self.nulls > 0 {
            if number % 8 == 0 {
                self.validity.push(1);
            } else {
                self.validity[number / 8] |= 1 << (number % 8);
            }
        }
        self.offsets.push(i32::try_from(self.data.len()).map_err(|_| TooLarge)?);
        Ok(())
    }
}

pub fn topics(buffer: &[u8], records: &[Record]) -> Result<Binary, TooLarge> {
    let mut column = Binary::with_capacity(records.len(), 0);
    for record in records {
        column.push_text(&buffer[record.topic_at..record.topic_end])?;
    }
    Ok(column)
}

/// The bodies as they are stored.
pub fn bodies(buffer: &[u8], records: &[Record]) -> Result<Binary, TooLarge> {
    let size = records.iter().map(|record| record.body_end - record.body_at).sum();
    let mut column = Binary::with_capacity(records.len(), size);
    for record in records {
        column.push(&buffer[record.body_at..record.body_end])?;
    }
    Ok(column)
}

/// The plain bodies of the first so many of `numbers`, until they have `max_bytes`; of each `max_body` at most.
pub fn inflated(
    buffer: &[u8],
    records: &[Record],
    numbers: &[i64],
    max_bytes: usize,
    max_body: usize,
) -> Result<Binary, Failed> {
    let mut column = Binary::with_capacity(numbers.len(), 0);
    let mut inflater = Inflater::default();
    for &number in numbers {
        let record = usize::try_from(number).ok().and_then(|number| records.get(number)).ok_or(Failed)?;
        let body = &buffer[record.body_at..record.body_end];
        inflater.append(body, record.sys_flag, max_body, &mut column.data)?;
        column.end_pushed().map_err(|TooLarge| Failed)?;
        if column.data.len() >= max_bytes {
            break;
        }
    }
    Ok(column)
}

/// One property's values, null where a record hasn't got it.
pub fn property(buffer: &[u8], records: &[Record], name: &[u8]) -> Result<Binary, TooLarge> {
    let mut column = Binary::with_capacity(records.len(), 0);
    for record in records {
        match properties::find(&buffer[record.properties_at..record.end], name) {
            Some(value) => column.push_text(value)?,
            None => column.push_null()?,
        }
    }
    Ok(column)
}

/// All properties: where those of each record begin among all names and values.
pub struct Map {
    pub firsts: Vec<i32>,
    pub names: Binary,
    pub values: Binary,
}

pub fn all_properties(buffer: &[u8], records: &[Record]) -> Result<Map, TooLarge> {
    let mut names = Binary::with_capacity(0, 0);
    let mut values = Binary::with_capacity(0, 0);
    let mut firsts = Vec::with_capacity(records.len() + 1);
    firsts.push(0);
    for record in records {
        for (name, value) in properties::items(&buffer[record.properties_at..record.end]) {
            names.push_text(name)?;
            values.push_text(value)?;
        }
        firsts.push(i32::try_from(names.count()).map_err(|_| TooLarge)?);
    }
    Ok(Map { firsts, names, values })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{parse_all, tests::encoded};

    #[test]
    fn nulls_have_no_bit() {
        for count in 0..40_u32 {
            for pattern in [0, 0b1, 0b10, 0xFF, 0x1_0000, 0x5555_5555, u64::MAX, 1 << (count.max(1) - 1)] {
                let mut column = Binary::with_capacity(0, 0);
                for number in 0..count {
                    if pattern >> number & 1 == 1 { column.push_null() } else { column.push(b"x") }.unwrap();
                }
                let expected: usize = (0..count).filter(|number| pattern >> number & 1 == 1).count();
                assert_eq!(column.nulls, expected);
                if expected == 0 {
                    assert!(column.validity.is_empty());
                    continue;
                }
                assert_eq!(column.validity.len(), count.div_ceil(8) as usize);
                for number in 0..count {
                    let bit = column.validity[number as usize / 8] >> (number % 8) & 1;
                    assert_eq!(u64::from(bit), 1 - (pattern >> number & 1), "{number} of {count}, {pattern:b}");
                }
            }
        }
    }

    #[test]
    fn a_property_of_some_records() {
        let buffer =
            [encoded(b"1", b"A\x01b\x02"), encoded(b"2", b"B\x01c\x02"), encoded(b"3", b"A\x01\xFFd")].concat();
        let records = parse_all(&buffer).unwrap();
        let column = property(&buffer, &records, b"A").unwrap();
        assert_eq!(column.offsets, [0, 1, 1, 5]);
        assert_eq!(column.data, "b\u{FFFD}d".as_bytes());
        assert_eq!((column.validity, column.nulls), (vec![0b101], 1));
        let map = all_properties(&buffer, &records).unwrap();
        assert_eq!(map.firsts, [0, 1, 2, 3]);
        assert_eq!(map.names.data, b"ABA");
        assert_eq!(bodies(&buffer, &records).unwrap().data, b"123");
        assert_eq!(topics(&buffer, &records).unwrap().data, b"ordersordersorders");
    }
}
