//! The properties of a record: `name \x01 value \x02` repeated. As in Python's `decode_properties`, items without a
//! name or a value are skipped, and the last item may lack its \x02.

use std::ops::Range;

use memchr::memchr;

pub const NAME_VALUE: u8 = 1;
pub const END: u8 = 2;

/// Iterates over the (name, value) pairs, in order.
pub struct Items<'a> {
    left: &'a [u8],
}

pub fn items(properties: &[u8]) -> Items<'_> {
    Items { left: properties }
}

impl<'a> Iterator for Items<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.left.is_empty() {
            let item = match memchr(END, self.left) {
                Some(end) => {
                    let (item, rest) = self.left.split_at(end);
                    self.left = &rest[1..];
                    item
                }
                None => std::mem::take(&mut self.left),
            };
            if let Some(at) = memchr(NAME_VALUE, item) {
                let (name, value) = (&item[..at], &item[at + 1..]);
                if !name.is_empty() && !value.is_empty() {
                    return Some((name, value));
                }
            }
        }
        None
    }
}

/// Returns the value of the last item with this name. A name that contains a separator matches no item.
pub fn find<'a>(properties: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    if name.is_empty() || name.contains(&NAME_VALUE) || name.contains(&END) {
        return None;
    }
    // Doesn't use `items`, because the end of a name matters only for items that start with this name.
    values(properties, name).filter(|value| !value.is_empty()).last()
}

/// Searches the properties of many records for several names.
///
/// Most records have the same names as an earlier record, with values of the same lengths. One comparison then replaces
/// the search for separators and names.
pub struct Names<'n> {
    names: Vec<&'n [u8]>,
    /// The layout of properties with a length of n is at the index `n % LAYOUTS`.
    layouts: [Layout; LAYOUTS],
}

/// The number of cached layouts. The records of a topic differ in the lengths of keys and tags.
const LAYOUTS: usize = 16;

/// The positions of names and values in the properties of one record.
#[derive(Default)]
struct Layout {
    /// The length of the properties; 0 if the layout can't be used for other records.
    length: usize,
    blocks: Vec<MaskedBlock>,
    /// The last block. It can overlap the one before.
    last: MaskedBlock,
    /// For each of the names: the position of its value.
    values: Vec<Option<Range<usize>>>,
}

type Block = [u8; 16];

/// Some of the properties, and a mask: 0xFF for each byte of a name or separator, 0 for each byte of a value.
#[derive(Default)]
struct MaskedBlock {
    properties: Block,
    mask: Block,
}

impl<'n> Names<'n> {
    pub fn new(names: &'n [Vec<u8>]) -> Names<'n> {
        // Matches no item, because no item contains END.
        const NOBODYS: &[u8] = &[END];
        let is_some = |name: &[u8]| !name.is_empty() && !name.contains(&NAME_VALUE) && !name.contains(&END);
        let names = names.iter().map(|name| if is_some(name) { name.as_slice() } else { NOBODYS }).collect();
        Names { names, layouts: Default::default() }
    }

    /// Works like the function `find`, for each of the names. `values` has an element for each name.
    pub fn find<'p>(&mut self, properties: &'p [u8], values: &mut [Option<&'p [u8]>]) {
        if self.names.is_empty() {
            return;
        }
        let layout = &mut self.layouts[properties.len() % LAYOUTS];
        if !layout.fits(properties) {
            layout.read(properties, &self.names);
        }
        for (value, position) in values.iter_mut().zip(&layout.values) {
            *value = position.as_ref().map(|position| &properties[position.clone()]);
        }
    }
}

impl Layout {
    /// Returns true if `properties` has the same names and separators at the same positions.
    fn fits(&self, properties: &[u8]) -> bool {
        if properties.len() != self.length {
            return false;
        }
        let Some(last) = properties.last_chunk() else { return false };
        // Compares all blocks, because an end at the first difference would be slower.
        let mut found = Block::default();
        self.last.add_differences(last, &mut found);
        for (expected, block) in self.blocks.iter().zip(blocks(properties)) {
            expected.add_differences(block, &mut found);
        }
        found == Block::default()
    }

    /// Finds the items of `properties`.
    fn read(&mut self, properties: &[u8], names: &[&[u8]]) {
        self.values.clear();
        self.values.resize(names.len(), None);
        let mut mask = vec![0; properties.len()];
        let mut can_be_used = true;
        let mut at = 0;
        while at < properties.len() {
            let end = memchr(END, &properties[at..]).map_or(properties.len(), |length| at + length);
            match memchr(NAME_VALUE, &properties[at..end]) {
                Some(length) => {
                    mask[at..=at + length].fill(0xFF);
                    let name = &properties[at..at + length];
                    let value = at + length + 1..end;
                    for (position, other) in self.values.iter_mut().zip(names) {
                        if *other == name && !value.is_empty() {
                            *position = Some(value.clone());
                        }
                    }
                }
                // In another record, this item can have a name.
                None => can_be_used = false,
            }
            if let Some(mask) = mask.get_mut(end) {
                *mask = 0xFF;
            }
            at = end + 1;
        }
        self.length = 0;
        if let (Some(last), Some(last_mask), true) = (properties.last_chunk(), mask.last_chunk(), can_be_used) {
            self.length = properties.len();
            self.blocks.clear();
            self.blocks.extend(blocks(properties).zip(blocks(&mask)).map(MaskedBlock::new));
            self.last = MaskedBlock::new((last, last_mask));
        }
    }
}

impl MaskedBlock {
    fn new((properties, mask): (&Block, &Block)) -> MaskedBlock {
        MaskedBlock { properties: *properties, mask: *mask }
    }

    /// Adds the bits of names and separators in which `block` differs, and an END in a value.
    #[inline]
    fn add_differences(&self, block: &Block, found: &mut Block) {
        for (at, found) in found.iter_mut().enumerate() {
            *found |= (self.properties[at] ^ block[at]) & self.mask[at];
            *found |= if block[at] == END { !self.mask[at] } else { 0 };
        }
    }
}

/// Returns the complete blocks of `bytes`.
fn blocks(bytes: &[u8]) -> impl Iterator<Item = &Block> {
    bytes.chunks_exact(size_of::<Block>()).filter_map(|block| block.first_chunk())
}

/// Returns the value of the first item with this name; None if the value is empty.
pub fn find_first<'a>(properties: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    values(properties, name).next().filter(|value| !value.is_empty())
}

/// Returns the rest of each item that starts with `name \x01`.
fn values<'a, 'n>(properties: &'a [u8], name: &'n [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
    let mut left = properties;
    std::iter::from_fn(move || {
        while !left.is_empty() {
            let end = memchr(END, left);
            let item = &left[..end.unwrap_or(left.len())];
            left = end.map_or(&[], |end| &left[end + 1..]);
            if item.len() > name.len() && item[name.len()] == NAME_VALUE && item.starts_with(name) {
                return Some(&item[name.len() + 1..]);
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(properties: &[u8]) -> Vec<(&[u8], &[u8])> {
        items(properties).collect()
    }

    #[test]
    fn items_without_name_or_value_are_left_out() {
        assert_eq!(
            all(b"A\x01b\x02\x02\x01x\x02C\x01\x02D\x02E\x01f\x01g"),
            [(b"A" as &[u8], b"b" as &[u8]), (b"E", b"f\x01g")]
        );
        assert_eq!(all(b""), []);
    }

    #[test]
    fn the_last_of_a_name_counts() {
        assert_eq!(find(b"A\x01b\x02AA\x01x\x02A\x01c\x02A\x01\x02", b"A"), Some(b"c" as &[u8]));
        assert_eq!(find(b"AB\x01b\x02", b"A"), None);
        assert_eq!(find(b"B\x01c\x02A\x01b", b"A"), Some(b"b" as &[u8]));
        assert_eq!(find(b"A\x01b\x01c\x02", b"A\x01b"), None);
        assert_eq!(find(b"\x01b\x02", b""), None);
    }

    #[test]
    fn many_at_once_are_those_one_by_one() {
        let names = [b"A" as &[u8], b"AA", b"", b"A\x01b", b"B", b"\x02"].map(<[u8]>::to_vec);
        let mut values = [None; 6];
        for raw in
            [b"A\x01b\x02AA\x01x\x02A\x01c\x02A\x01\x02" as &[u8], b"", b"\x02\x01b\x02B\x01c\x02A\x01b\x01c", b"A\x01"]
        {
            Names::new(&names).find(raw, &mut values);
            let expected: Vec<Option<&[u8]>> = names.iter().map(|name| find(raw, name)).collect();
            assert_eq!(values[..], expected);
        }
    }

    #[test]
    fn a_record_like_an_earlier_one_has_its_own_values() {
        let names = [b"KEYS".to_vec(), b"TAGS".to_vec()];
        let mut finder = Names::new(&names);
        let mut values = [None; 2];
        let first = b"KEYS\x01k1000\x02TAGS\x01A\x02ID\x01123456\x02" as &[u8];
        for (raw, expected) in [
            (first, [Some(b"k1000" as &[u8]), Some(b"A" as &[u8])]),
            (b"KEYS\x01k1001\x02TAGS\x01B\x02ID\x01123457\x02", [Some(b"k1001"), Some(b"B")]),
            (b"KEYS\x01k1\x0201\x02TAGS\x01B\x02ID\x01123457\x02", [Some(b"k1"), Some(b"B")]),
            (b"KEYS\x01k1001\x02TAG\x01BC\x02ID\x01123457\x02", [Some(b"k1001"), None]),
            (b"KEYS\x01k10010TAGS\x01B\x02ID\x01123457\x02", [Some(b"k10010TAGS\x01B"), None]),
            (b"KEYS\x01k1001\x02TAGS\x01B\x02ID0123457\x02", [Some(b"k1001"), Some(b"B")]),
            (b"KEYS\x01k1001\x02TAGS\x01B\x02TAGS\x011457\x02", [Some(b"k1001"), Some(b"1457")]),
            (first, [Some(b"k1000"), Some(b"A")]),
        ] {
            assert_eq!(raw.len(), first.len());
            finder.find(raw, &mut values);
            assert_eq!(values, expected, "{}", String::from_utf8_lossy(raw));
        }
    }

    #[test]
    fn the_order_of_records_does_not_matter() {
        let names = [b"A".to_vec(), b"B".to_vec(), b"AB".to_vec()];
        let mut finder = Names::new(&names);
        let mut values = [None; 3];
        // Few different bytes, so that layouts fit often.
        let mut state = 1_u32;
        let mut next = |count: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % count
        };
        let records: Vec<Vec<u8>> = (0..20_000)
            .map(|_| {
                let mut record = b"A\x01x\x02B\x01y\x02AB\x01zzzzzzz\x02".to_vec();
                for _ in 0..next(3) {
                    let at = next(record.len() as u32) as usize;
                    record[at] = [NAME_VALUE, END, b'A', b'B'][next(4) as usize];
                }
                record.truncate(record.len() - next(3) as usize);
                record
            })
            .collect();
        for record in &records {
            finder.find(record, &mut values);
            let expected: Vec<Option<&[u8]>> = names.iter().map(|name| find(record, name)).collect();
            assert_eq!(values[..], expected, "{record:?}");
        }
    }
}
