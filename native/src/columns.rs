//! Converts the records of a buffer to columns in Arrow's memory layout: validity bits, offsets, data.

use std::collections::HashMap;
use std::ops::Range;

use crate::binary::{Binary, TooLarge};
use crate::inflate::{COMPRESSED, Failed, Inflater};
use crate::properties;
use crate::record::Record;

/// The columns to create besides the numbers, in one pass while a record is in the processor's cache. For records of 1
/// KiB, one pass takes half as long as one pass for each column.
#[derive(Default)]
pub struct Wanted {
    pub bodies: bool,
    pub crc: bool,
    /// Names of the properties that become columns.
    pub properties: Vec<Vec<u8>>,
}

#[derive(Default)]
pub struct Columns {
    pub starts: Vec<i64>,
    pub queue_ids: Vec<i32>,
    pub sys_flags: Vec<i32>,
    pub reconsume_times: Vec<i32>,
    pub queue_offsets: Vec<i64>,
    pub physical_offsets: Vec<i64>,
    pub born_timestamps: Vec<i64>,
    pub store_timestamps: Vec<i64>,
    /// The stored bodies; none if they are not requested or some are compressed.
    pub bodies: Option<Binary>,
    /// A byte for each record: 1 if the CRC32 of its body is wrong. None if all are correct.
    pub wrong_crc: Option<Vec<u8>>,
    /// Null if a record does not have the property.
    pub properties: Vec<Binary>,
    /// Position of the first incomplete or invalid record, if any. No later records are read.
    pub bad_at: Option<usize>,
}

/// Returns the columns of the consecutive records in `buffer`.
pub fn columns(buffer: &[u8], wanted: &Wanted) -> Result<Columns, TooLarge> {
    let mut found = Columns::default();
    let mut names = properties::Names::new(&wanted.properties);
    let mut values = vec![None; wanted.properties.len()];
    let mut bodies = None;
    let mut at = 0;
    while at < buffer.len() {
        let Some(record) = Record::parse(buffer, at) else {
            found.bad_at = Some(at);
            break;
        };
        if at == 0 {
            // The estimate assumes that all records have the size of the first one.
            let count = buffer.len() / record.end + 1;
            found.reserve(count);
            bodies = wanted.bodies.then(|| Binary::with_capacity(count, count * (record.body_end - record.body_at)));
            names.find(&buffer[record.properties_at..record.end], &mut values);
            let column = |value: &Option<&[u8]>| Binary::with_capacity(count, count * value.map_or(0, <[u8]>::len));
            found.properties = values.iter().map(column).collect();
        }
        found.starts.push(at as i64);
        found.queue_ids.push(record.queue_id);
        found.sys_flags.push(record.sys_flag);
        found.reconsume_times.push(record.reconsume_times);
        found.queue_offsets.push(record.queue_offset);
        found.physical_offsets.push(record.physical_offset);
        found.born_timestamps.push(record.born_timestamp);
        found.store_timestamps.push(record.store_timestamp);
        if wanted.crc && record.has_wrong_crc(buffer) {
            let wrong = found.wrong_crc.get_or_insert_default();
            wrong.resize(found.starts.len() - 1, 0);
            wrong.push(1);
        }
        if record.sys_flag & COMPRESSED != 0 {
            bodies = None;
        }
        if let Some(bodies) = &mut bodies {
            bodies.push(&buffer[record.body_at..record.body_end])?;
        }
        names.find(&buffer[record.properties_at..record.end], &mut values);
        for (column, value) in found.properties.iter_mut().zip(&values) {
            match value {
                Some(value) => column.push(value)?,
                None => column.push_null()?,
            }
        }
        at = record.end;
    }
    if let Some(wrong) = &mut found.wrong_crc {
        wrong.resize(found.starts.len(), 0);
    }
    found.bodies = bodies;
    found.properties.resize_with(wanted.properties.len(), || Binary::with_capacity(0, 0));
    found.properties = found.properties.into_iter().map(Binary::into_texts).collect::<Result<_, TooLarge>>()?;
    Ok(found)
}

impl Columns {
    fn reserve(&mut self, count: usize) {
        for ints in [&mut self.queue_ids, &mut self.sys_flags, &mut self.reconsume_times] {
            ints.reserve(count);
        }
        for longs in [
            &mut self.starts,
            &mut self.queue_offsets,
            &mut self.physical_offsets,
            &mut self.born_timestamps,
            &mut self.store_timestamps,
        ] {
            longs.reserve(count);
        }
    }
}

/// Returns the records of the buffer that begin at these positions.
pub fn records<'a>(buffer: &'a [u8], starts: &'a [i64]) -> impl Iterator<Item = Record> + use<'a> {
    starts.iter().filter_map(|&start| Record::parse(buffer, start as usize))
}

pub fn topics(buffer: &[u8], starts: &[i64]) -> Result<Binary, TooLarge> {
    let mut column = Binary::with_capacity(starts.len(), 0);
    for record in records(buffer, starts) {
        column.push(&buffer[record.topic_at..record.topic_end])?;
    }
    column.into_texts()
}

/// Returns the different topics, and the index of each record's topic.
pub fn numbered_topics<'a>(buffer: &'a [u8], starts: &[i64]) -> (Vec<&'a [u8]>, Vec<i32>) {
    let (mut topics, mut numbers) = (Vec::new(), Vec::with_capacity(starts.len()));
    let mut known = HashMap::new();
    let mut last = 0;
    for record in records(buffer, starts) {
        let topic = &buffer[record.topic_at..record.topic_end];
        // Most records have the same topic as the record before.
        if topics.get(last) != Some(&topic) {
            last = *known.entry(topic).or_insert(topics.len());
            if last == topics.len() {
                topics.push(topic);
            }
        }
        numbers.push(last as i32);
    }
    (topics, numbers)
}

/// Returns the stored bodies of the records at `starts`.
pub fn bodies(buffer: &[u8], starts: &[i64]) -> Result<Binary, TooLarge> {
    let size = records(buffer, starts).map(|record| record.body_end - record.body_at).sum();
    let mut column = Binary::with_capacity(starts.len(), size);
    for record in records(buffer, starts) {
        column.push(&buffer[record.body_at..record.body_end])?;
    }
    Ok(column)
}

/// Returns the plain bodies of the first records, up to a total of `max_bytes`. Each has at most `max_body` bytes.
pub fn inflated(buffer: &[u8], starts: &[i64], max_bytes: usize, max_body: usize) -> Result<Binary, Failed> {
    let mut column = Binary::with_capacity(starts.len(), 0);
    let mut inflater = Inflater::default();
    for record in records(buffer, starts) {
        let body = &buffer[record.body_at..record.body_end];
        inflater.append(body, record.sys_flag, max_body, &mut column.data)?;
        column.end_pushed().map_err(|TooLarge| Failed)?;
        if column.data.len() >= max_bytes {
            break;
        }
    }
    Ok(column)
}

/// Returns the values of one property; null if a record does not have it.
pub fn property(buffer: &[u8], starts: &[i64], name: &[u8]) -> Result<Binary, TooLarge> {
    let mut column = Binary::with_capacity(starts.len(), 0);
    for record in records(buffer, starts) {
        match properties::find(&buffer[record.properties_at..record.end], name) {
            Some(value) => column.push(value)?,
            None => column.push_null()?,
        }
    }
    column.into_texts()
}

/// If a record has more properties than this, its names aren't compared with each other.
const FEW: usize = 32;

/// All properties: the positions of each record's properties in `names` and `values`. No record has a name twice.
pub struct Map {
    pub firsts: Vec<i32>,
    pub names: Binary,
    pub values: Binary,
}

pub fn all_properties(buffer: &[u8], starts: &[i64]) -> Result<Map, TooLarge> {
    let mut names = Binary::with_capacity(0, 0);
    let mut values = Binary::with_capacity(0, 0);
    let mut firsts = Vec::with_capacity(starts.len() + 1);
    firsts.push(0);
    let mut may_repeat = false;
    for record in records(buffer, starts) {
        let first = names.count();
        // A bit for each look that a name may have: few names are compared.
        let mut looks = 0_u64;
        for (name, value) in properties::items(&buffer[record.properties_at..record.end]) {
            let look = 1 << ((name.len() + usize::from(name[0]) + usize::from(name[name.len() - 1])) % 64);
            if looks & look != 0 && !may_repeat {
                may_repeat =
                    names.count() - first > FEW || (first..names.count()).any(|other| text(&names, other) == name);
            }
            looks |= look;
            names.push(name)?;
            values.push(value)?;
        }
        firsts.push(i32::try_from(names.count()).map_err(|_| TooLarge)?);
    }
    // Different invalid UTF-8 bytes can become the same text.
    may_repeat |= !names.data.is_ascii();
    let map = Map { firsts, names: names.into_texts()?, values: values.into_texts()? };
    if may_repeat { map.with_last_items() } else { Ok(map) }
}

impl Map {
    fn name(&self, item: usize) -> &[u8] {
        text(&self.names, item)
    }

    /// Returns the range of each record's items.
    fn records(&self) -> impl Iterator<Item = Range<usize>> {
        self.firsts.windows(2).map(|firsts| firsts[0] as usize..firsts[1] as usize)
    }

    /// Keeps only the last item of each repeated name in a record, like `properties::find`.
    fn with_last_items(self) -> Result<Map, TooLarge> {
        let mut names = Binary::with_capacity(self.names.count(), self.names.data.len());
        let mut values = Binary::with_capacity(self.values.count(), self.values.data.len());
        let mut firsts = Vec::with_capacity(self.firsts.len());
        firsts.push(0);
        let mut last = HashMap::new();
        for items in self.records() {
            last.clear();
            last.extend(items.clone().map(|item| (self.name(item), item)));
            for item in items {
                if last[self.name(item)] == item {
                    names.push(self.name(item))?;
                    values.push(text(&self.values, item))?;
                }
            }
            firsts.push(names.count() as i32);
        }
        Ok(Map { firsts, names, values })
    }
}

fn text(column: &Binary, number: usize) -> &[u8] {
    &column.data[column.offsets[number] as usize..column.offsets[number + 1] as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::encoded;

    fn wanted(names: &[&[u8]]) -> Wanted {
        Wanted { bodies: true, crc: true, properties: names.iter().map(|name| name.to_vec()).collect() }
    }

    #[test]
    fn all_in_one_pass() {
        let buffer =
            [encoded(b"1", b"A\x01b\x02"), encoded(b"22", b"B\x01c\x02"), encoded(b"3", b"A\x01\xFFd")].concat();
        let found = columns(&buffer, &wanted(&[b"A", b"", b"A\x01b", b"B"])).unwrap();
        assert_eq!((found.bad_at, &found.wrong_crc), (None, &None));
        assert_eq!(found.starts.len(), 3);
        assert_eq!(found.queue_offsets, [11, 11, 11]);
        let [a, empty, none, b] = &found.properties[..] else { panic!() };
        assert_eq!(a.offsets, [0, 1, 1, 5]);
        assert_eq!(a.data, "b\u{FFFD}d".as_bytes());
        assert_eq!((&a.validity, a.nulls), (&vec![0b101], 1));
        assert_eq!((empty.nulls, none.nulls, b.nulls), (3, 3, 2));
        assert_eq!(found.bodies.unwrap().data, b"1223");
        assert_eq!(property(&buffer, &found.starts, b"A").unwrap().data, a.data);
        let map = all_properties(&buffer, &found.starts).unwrap();
        assert_eq!(map.firsts, [0, 1, 2, 3]);
        assert_eq!(map.names.data, b"ABA");
        assert_eq!(bodies(&buffer, &found.starts[1..]).unwrap().data, b"223");
        assert_eq!(topics(&buffer, &found.starts).unwrap().data, b"ordersordersorders");
        assert_eq!(numbered_topics(&buffer, &found.starts), (vec![b"orders" as &[u8]], vec![0, 0, 0]));
    }

    #[test]
    fn the_last_of_a_name_is_in_the_map() {
        let many: Vec<u8> =
            (0..100).flat_map(|number| format!("N{}\x01{number}\x02", number % 50).into_bytes()).collect();
        let raw = [
            b"A\x01b\x02C\x01d\x02A\x01e\x02" as &[u8],
            b"A\x01f\x02",
            b"",
            // As texts, these names are equal.
            b"\xFF\x01g\x02A\x01h\x02\xFE\x01i\x02",
            &many,
        ];
        let buffer = raw.map(|properties| encoded(b"1", properties)).concat();
        let starts = columns(&buffer, &wanted(&[])).unwrap().starts;
        let map = all_properties(&buffer, &starts).unwrap();
        assert_eq!(map.firsts, [0, 2, 3, 3, 5, 55]);
        let values =
            |record: usize| map.records().nth(record).unwrap().map(|item| text(&map.values, item)).collect::<Vec<_>>();
        assert_eq!(values(0), [b"d", b"e"]);
        assert_eq!(values(3), [b"h", b"i"]);
        assert_eq!((values(4)[0], values(4)[49]), (b"50" as &[u8], b"99" as &[u8]));
    }

    #[test]
    fn each_topic_has_a_number() {
        let of_topic = |topic: &[u8; 6]| {
            let mut record = encoded(b"1", b"");
            let at = record.len() - 2 - topic.len();
            record[at..at + topic.len()].copy_from_slice(topic);
            record
        };
        let buffer = [b"orders", b"trades", b"trades", b"orders", b"events", b"trades"].map(of_topic).concat();
        let starts = columns(&buffer, &wanted(&[])).unwrap().starts;
        let topics = vec![b"orders" as &[u8], b"trades", b"events"];
        assert_eq!(numbered_topics(&buffer, &starts), (topics, vec![0, 1, 1, 0, 2, 1]));
    }

    #[test]
    fn nothing_is_known_behind_what_is_no_record() {
        let one = encoded(b"1", b"A\x01b\x02");
        for end in 0..one.len() {
            let found = columns(&[&one, &one[..end]].concat(), &wanted(&[b"A"])).unwrap();
            assert_eq!(found.bad_at, (end > 0).then_some(one.len()));
            assert_eq!((found.starts.len(), found.properties[0].count()), (1, 1));
        }
        let found = columns(b"", &wanted(&[b"A"])).unwrap();
        assert_eq!((found.starts.len(), found.properties[0].count(), found.bad_at), (0, 0, None));
    }

    #[test]
    fn a_wrong_crc_is_that_of_its_record() {
        let mut buffer = [encoded(b"1", b""), encoded(b"2", b""), encoded(b"3", b"")].concat();
        let at = buffer.iter().position(|byte| *byte == b'2').unwrap();
        buffer[at] = b'x';
        assert_eq!(columns(&buffer, &wanted(&[])).unwrap().wrong_crc, Some(vec![0, 1, 0]));
    }
}
