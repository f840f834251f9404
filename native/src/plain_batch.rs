//! Encodes ordinary messages as a batch body (`gantrymq/client/producing/message_encoder.py`).

use crate::properties::{END, NAME_VALUE};

const UNIQUE_KEY: &[u8] = b"UNIQ_KEY\x01";
const KEY_DIGITS: usize = 4;
const MAX_PROPERTIES_LENGTH: usize = i16::MAX as usize;

/// The prefix of unique keys, and the number in the last four digits of the first key.
pub struct Keys<'a> {
    pub head: &'a str,
    pub first: u32,
}

/// A growing batch body, and the keys of its messages, separated by commas.
pub struct Batch<'a> {
    keys: Keys<'a>,
    count: u32,
    pub body: Vec<u8>,
    pub ids: String,
}

impl<'a> Batch<'a> {
    pub fn new(keys: Keys<'a>) -> Batch<'a> {
        Batch { keys, count: 0, body: Vec::new(), ids: String::new() }
    }

    /// Adds a message with these properties and a key. Returns None if something is too large, the body is empty, or a
    /// property contains a separator. The batch is then unusable.
    pub fn add<'p>(
        &mut self,
        flag: i32,
        body: &[u8],
        properties: impl Iterator<Item = (&'p str, &'p str)>,
    ) -> Option<()> {
        if body.is_empty() {
            return None;
        }
        let start = self.body.len();
        self.body.extend([0; 12]);
        self.body.extend(flag.to_be_bytes());
        self.body.extend(i32::try_from(body.len()).ok()?.to_be_bytes());
        self.body.extend_from_slice(body);
        let length_at = self.body.len();
        self.body.extend([0; 2]);
        for (name, value) in properties {
            let is_separator = |byte: &u8| *byte == NAME_VALUE || *byte == END;
            if name.as_bytes().iter().chain(value.as_bytes()).any(is_separator) {
                return None;
            }
            self.body.extend_from_slice(name.as_bytes());
            self.body.push(NAME_VALUE);
            self.body.extend_from_slice(value.as_bytes());
            self.body.push(END);
        }
        self.add_key();
        let length = self.body.len() - length_at - 2;
        if length > MAX_PROPERTIES_LENGTH {
            return None;
        }
        self.body[length_at..length_at + 2].copy_from_slice(&(length as i16).to_be_bytes());
        let size = i32::try_from(self.body.len() - start).ok()?;
        self.body[start..start + 4].copy_from_slice(&size.to_be_bytes());
        Some(())
    }

    fn add_key(&mut self) {
        if !self.ids.is_empty() {
            self.ids.push(',');
        }
        let at = self.ids.len();
        self.ids.push_str(self.keys.head);
        let number = self.keys.first.wrapping_add(self.count);
        self.count += 1;
        for shift in (0..KEY_DIGITS).rev() {
            self.ids.push(char::from(b"0123456789ABCDEF"[(number >> (4 * shift)) as usize & 15]));
        }
        self.body.extend_from_slice(UNIQUE_KEY);
        self.body.extend_from_slice(&self.ids.as_bytes()[at..]);
        self.body.push(END);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Message;

    #[test]
    fn each_has_its_properties_and_key() {
        let mut batch = Batch::new(Keys { head: "7F", first: 0xFFFF });
        batch.add(7, b"one", [("A", "b"), ("C", "")].into_iter()).unwrap();
        batch.add(-1, b"two", [].into_iter()).unwrap();
        assert_eq!(batch.ids, "7FFFFF,7F0000");
        let one = Message::parse(&batch.body, 0).unwrap();
        assert_eq!((one.flag, one.body), (7, b"one" as &[u8]));
        assert_eq!(one.properties, b"A\x01b\x02C\x01\x02UNIQ_KEY\x017FFFFF\x02");
        let two = Message::parse(&batch.body, one.end).unwrap();
        assert_eq!((two.flag, two.body, two.properties), (-1, b"two" as &[u8], b"UNIQ_KEY\x017F0000\x02" as &[u8]));
        assert_eq!(two.end, batch.body.len());
    }

    #[test]
    fn what_is_odd_is_refused() {
        let add = |body: &[u8], name: &str, value: &str| {
            Batch::new(Keys { head: "7F", first: 0 }).add(0, body, [(name, value)].into_iter())
        };
        assert_eq!(add(b"x", "a", "b"), Some(()));
        assert_eq!(add(b"", "a", "b"), None);
        assert_eq!(add(b"x", "a\x01", "b"), None);
        assert_eq!(add(b"x", "a", "b\x02"), None);
        assert_eq!(add(b"x", "a", &"b".repeat(MAX_PROPERTIES_LENGTH)), None);
    }
}
