//! Encodes requests to send one message (`gantrymq/client/producing/send_command.py`).

const CODE: i16 = 310;
const LANGUAGE: u8 = 3;
const VERSION: i16 = 513;
const BINARY: i32 = 1 << 24;
const MAX_HEADER_LENGTH: usize = 0xFF_FFFF;
/// Length of a frame's prefix, and of a binary header before its ext fields.
const PREFIX: usize = 8;
const FIXED: usize = 21;
/// The flag, which is 0, and the name of the properties.
const BEFORE_PROPERTIES: &[u8] = b"\x00\x01h\x00\x00\x00\x010\x00\x01i";

/// The parts of a request. `before` and `after` are the ext fields around the born time and the properties.
pub struct Parts<'a> {
    pub opaque: i32,
    pub before: &'a [u8],
    pub born: &'a str,
    pub properties: &'a [u8],
    pub after: &'a [u8],
    pub body: &'a [u8],
}

impl Parts<'_> {
    fn ext_length(&self) -> usize {
        let properties = BEFORE_PROPERTIES.len() + 4 + self.properties.len();
        self.before.len() + 1 + self.born.len() + properties + self.after.len()
    }

    /// Returns the length of the frame, or None if a part is too long.
    pub fn length(&self) -> Option<usize> {
        let header = FIXED + self.ext_length();
        let length = PREFIX + header + self.body.len();
        if header > MAX_HEADER_LENGTH || i32::try_from(length).is_err() {
            return None;
        }
        Some(length)
    }

    /// Writes the frame to `out`, which has its length.
    pub fn write(&self, out: &mut [u8]) {
        let mut out = Out { bytes: out, at: 0 };
        let ext = self.ext_length();
        let header = FIXED + ext;
        out.put(&((PREFIX - 4 + header + self.body.len()) as i32).to_be_bytes());
        out.put(&(BINARY | header as i32).to_be_bytes());
        out.put(&CODE.to_be_bytes());
        out.put(&[LANGUAGE]);
        out.put(&VERSION.to_be_bytes());
        out.put(&self.opaque.to_be_bytes());
        out.put(&[0; 8]); // The flag, and the length of the remark.
        out.put(&(ext as i32).to_be_bytes());
        out.put(self.before);
        out.put(&[self.born.len() as u8]);
        out.put(self.born.as_bytes());
        out.put(BEFORE_PROPERTIES);
        out.put(&(self.properties.len() as i32).to_be_bytes());
        out.put(self.properties);
        out.put(self.after);
        out.put(self.body);
    }
}

/// The name of the property with a message's id, and its separators.
const UNIQUE_KEY: &str = "UNIQ_KEY\x01";
const END: &str = "\x02";

/// Returns the encoded property with the id that consists of `head` and the number in four digits.
pub fn unique_key_property(head: &str, number: u16) -> String {
    format!("{UNIQUE_KEY}{head}{number:04X}{END}")
}

/// Returns the id in the result of `unique_key_property`.
pub fn id_of(property: &str) -> &str {
    &property[UNIQUE_KEY.len()..property.len() - END.len()]
}

struct Out<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Out<'_> {
    fn put(&mut self, part: &[u8]) {
        let end = self.at + part.len();
        self.bytes[self.at..end].copy_from_slice(part);
        self.at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: Parts<'_> =
        Parts { opaque: 9, before: b"<", born: "17", properties: b"k\x01v\x02", after: b">", body: b"body" };

    #[test]
    fn the_parts_are_in_order() {
        let mut frame = vec![0; PARTS.length().unwrap()];
        PARTS.write(&mut frame);
        let ext = b"<\x0217\x00\x01h\x00\x00\x00\x010\x00\x01i\x00\x00\x00\x04k\x01v\x02>";
        let mut wanted = ((4 + FIXED + ext.len() + 4) as i32).to_be_bytes().to_vec();
        wanted.extend((BINARY | (FIXED + ext.len()) as i32).to_be_bytes());
        wanted.extend([1, 54, 3, 2, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
        wanted.extend((ext.len() as i32).to_be_bytes());
        wanted.extend_from_slice(ext);
        wanted.extend_from_slice(b"body");
        assert_eq!(frame, wanted);
    }

    #[test]
    fn an_id_is_in_its_property() {
        let property = unique_key_property("7F00", 0xAB);
        assert_eq!(property, "UNIQ_KEY\x017F0000AB\x02");
        assert_eq!(id_of(&property), "7F0000AB");
    }

    #[test]
    fn parts_that_are_too_long_have_no_frame() {
        let properties = vec![0; MAX_HEADER_LENGTH];
        assert_eq!(Parts { properties: &properties, ..PARTS }.length(), None);
    }
}
