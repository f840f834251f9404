//! The properties of a record: `name \x01 value \x02` repeated. As in Python's `decode_properties`, items without a
//! name or a value are skipped, and the last item may lack its \x02.

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

/// Names that are searched for in one pass.
pub struct Names<'a>(Vec<&'a [u8]>);

impl<'a> Names<'a> {
    pub fn new(names: &'a [Vec<u8>]) -> Names<'a> {
        // Matches no item, because no item contains END.
        const NOBODYS: &[u8] = &[END];
        let is_some = |name: &[u8]| !name.is_empty() && !name.contains(&NAME_VALUE) && !name.contains(&END);
        Names(names.iter().map(|name| if is_some(name) { name.as_slice() } else { NOBODYS }).collect())
    }

    /// Works like `find`, for each of the names.
    pub fn find<'p>(&self, properties: &'p [u8], values: &mut Vec<Option<&'p [u8]>>) {
        values.clear();
        values.resize(self.0.len(), None);
        if self.0.is_empty() {
            return;
        }
        let mut at = 0;
        while at < properties.len() {
            let end = memchr(END, &properties[at..]).map_or(properties.len(), |length| at + length);
            let item = &properties[at..end];
            for (name, value) in self.0.iter().zip(values.iter_mut()) {
                if item.len() > name.len() + 1 && item[name.len()] == NAME_VALUE && item.starts_with(name) {
                    *value = Some(&item[name.len() + 1..]);
                }
            }
            at = end + 1;
        }
    }
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
        let mut values = Vec::new();
        for raw in
            [b"A\x01b\x02AA\x01x\x02A\x01c\x02A\x01\x02" as &[u8], b"", b"\x02\x01b\x02B\x01c\x02A\x01b\x01c", b"A\x01"]
        {
            Names::new(&names).find(raw, &mut values);
            let expected: Vec<Option<&[u8]>> = names.iter().map(|name| find(raw, name)).collect();
            assert_eq!(values, expected);
        }
    }
}
