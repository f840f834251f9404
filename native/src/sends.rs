//! Splits the frames of sends, and encodes their responses (`gantrymq/broker/send/fast_path.py`).
//!
//! The headers of a producer's messages differ only in the opaque number, the born time and the properties. A header
//! without these three parts is therefore a key. Python decodes one header with each key and registers its meaning.

use std::io::Write;

use memchr::memmem::{self, Finder};
use memchr::{memchr, memchr2};

use crate::bytes::i32_at;

const JSON: u8 = 0;
const BINARY: u8 = 1;
const FRAME_PREFIX: usize = 8;

/// Positions in a binary header: opaque number, flag, lengths of remark and ext fields, start of the fields.
const OPAQUE_AT: usize = 5;
const FLAG_AT: usize = 9;
const REMARK_LENGTH_AT: usize = 13;
const EXT_LENGTH_AT: usize = 17;
const EXT_AT: usize = 21;
/// The codes at the start of a binary header whose field names have one letter: SEND_MESSAGE_V2, SEND_BATCH_MESSAGE.
const CODES: [[u8; 2]; 2] = [310_u16.to_be_bytes(), 320_u16.to_be_bytes()];
/// Name and length of the born time; then the bytes between its digits and the length of the properties: a flag of 0.
const BEFORE_BORN: &[u8] = b"\x00\x01g\x00\x00\x00\x0D";
const BEHIND_BORN: &[u8] = b"\x00\x01h\x00\x00\x00\x010\x00\x01i";
const BORN_DIGITS: usize = 13;

/// The start of a JSON header with long field names, and with field names of one letter.
const LONG_NAMES: &[u8] = b"{\"code\":10,";
const SHORT_NAMES: [&[u8]; 2] = [b"{\"code\":310,", b"{\"code\":320,"];

/// Start of the header in a key, after the encoding and the positions at which the header is cut.
const BINARY_KEY_AT: usize = 5;
const JSON_KEY_AT: usize = 13;

/// A frame that may be a send.
#[derive(Debug, PartialEq)]
pub struct Send<'a> {
    pub opaque: i32,
    pub born_timestamp: i64,
    pub body: &'a [u8],
    /// Position of the next frame.
    pub end: usize,
}

/// The two other parts of a send's header. The memory is reused.
#[derive(Debug, Default, PartialEq)]
pub struct Parts {
    /// The encoding, the positions at which parts were removed, and the rest of the header.
    pub key: Vec<u8>,
    pub properties: Vec<u8>,
}

/// Removes the variable parts from headers.
pub struct Cutter {
    before_born: Finder<'static>,
    json_opaque: Finder<'static>,
    short: JsonNames,
    long: JsonNames,
}

/// The bytes of a name up to its value.
struct JsonNames {
    born: Finder<'static>,
    properties: Finder<'static>,
}

impl Default for Cutter {
    fn default() -> Cutter {
        Cutter {
            before_born: Finder::new(BEFORE_BORN),
            json_opaque: Finder::new(b"\"opaque\":"),
            short: JsonNames { born: Finder::new(b"\"g\":\""), properties: Finder::new(b"\"i\":\"") },
            long: JsonNames {
                born: Finder::new(b"\"bornTimestamp\":\""),
                properties: Finder::new(b"\"properties\":\""),
            },
        }
    }
}

impl Cutter {
    /// Returns the frame at `at`. None if it is incomplete, or if its header lacks one of the parts or has an unusual
    /// form.
    pub fn cut<'a>(&self, data: &'a [u8], at: usize, parts: &mut Parts) -> Option<Send<'a>> {
        let length = usize::try_from(i32_at(data, at)?).ok()?;
        let end = at.checked_add(4)?.checked_add(length)?;
        let frame = data.get(at..end)?;
        let [encoding, a, b, c] = i32_at(frame, 4)?.to_be_bytes();
        let header_length = u32::from_be_bytes([0, a, b, c]) as usize;
        let (header, body) = frame[FRAME_PREFIX..].split_at_checked(header_length)?;
        parts.key.clear();
        parts.properties.clear();
        let (opaque, born_timestamp) = match encoding {
            BINARY => self.cut_binary(header, parts)?,
            JSON => self.cut_json(header, parts)?,
            _ => return None,
        };
        if std::str::from_utf8(&parts.properties).is_err() {
            return None;
        }
        Some(Send { opaque, born_timestamp, body, end })
    }

    fn cut_binary(&self, header: &[u8], parts: &mut Parts) -> Option<(i32, i64)> {
        if !CODES.iter().any(|code| header.starts_with(code)) {
            return None; // Its fields have long names: short ones stand in a value.
        }
        let ext = header.get(EXT_AT..)?;
        if i32_at(header, REMARK_LENGTH_AT)? != 0 || usize::try_from(i32_at(header, EXT_LENGTH_AT)?) != Ok(ext.len()) {
            return None;
        }
        let born_at = self.before_born.find(ext)? + BEFORE_BORN.len();
        let born_end = born_at + BORN_DIGITS;
        let length_at = born_end + BEHIND_BORN.len();
        if ext.get(born_end..length_at)? != BEHIND_BORN {
            return None;
        }
        let properties_at = length_at + 4;
        let properties_end = properties_at.checked_add(usize::try_from(i32_at(ext, length_at)?).ok()?)?;
        let properties = ext.get(properties_at..properties_end)?;
        if memchr(0, properties).is_some() {
            return None; // It could be a field that is in there.
        }
        parts.properties.extend_from_slice(properties);
        let key = &mut parts.key;
        key.push(BINARY);
        key.extend((born_at as u32).to_be_bytes());
        key.extend_from_slice(&header[..OPAQUE_AT]);
        key.extend_from_slice(&header[FLAG_AT..EXT_LENGTH_AT]);
        key.extend_from_slice(&ext[..born_at]);
        key.extend_from_slice(BEHIND_BORN);
        key.extend_from_slice(&ext[properties_end..]);
        Some((i32_at(header, OPAQUE_AT)?, digits(&ext[born_at..born_end])?))
    }

    fn cut_json(&self, header: &[u8], parts: &mut Parts) -> Option<(i32, i64)> {
        let names = match header {
            _ if SHORT_NAMES.iter().any(|start| header.starts_with(start)) => &self.short,
            _ if header.starts_with(LONG_NAMES) => &self.long,
            _ => return None,
        };
        let born_at = end_of(&names.born, header, 0)?;
        let born_end = born_at + BORN_DIGITS;
        let born_timestamp = digits(header.get(born_at..born_end)?)?;
        let properties_at = end_of(&names.properties, header, born_end)?;
        let properties_end = properties_at + unescaped(&header[properties_at..], &mut parts.properties)?;
        // Java writes the opaque number after the fields, Go before them.
        let opaque_at = match end_of(&self.json_opaque, &header[..born_at], 0) {
            Some(at) => at,
            None => end_of(&self.json_opaque, header, properties_end)?,
        };
        let length = header[opaque_at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let opaque_end = opaque_at + length;
        // 0 can't be distinguished from a missing number.
        let opaque = i32::try_from(digits(&header[opaque_at..opaque_end])?).ok()?;
        let mut cuts = [(opaque_at, opaque_end), (born_at, born_end), (properties_at, properties_end)];
        cuts.sort_unstable();
        let key = &mut parts.key;
        key.extend([JSON; JSON_KEY_AT]);
        let mut left = 0;
        for ((at, end), place) in cuts.into_iter().zip([1, 5, 9]) {
            key.extend_from_slice(header.get(left..at)?);
            let cut = (key.len() as u32).to_be_bytes();
            key[place..place + 4].copy_from_slice(&cut);
            left = end;
        }
        key.extend_from_slice(&header[left..]);
        Some((opaque, born_timestamp))
    }
}

/// Returns true if a header with this key has the three parts only where it is cut. After Python has decoded one such
/// header with the same values, all headers with this key have the same meaning except for these parts.
pub fn is_sure(key: &[u8]) -> bool {
    let is_binary = key.first() == Some(&BINARY);
    let fields = key.get(if is_binary { BINARY_KEY_AT } else { JSON_KEY_AT }..).unwrap_or_default();
    let once = |names: &[&[u8]]| names.iter().all(|name| memmem::find_iter(fields, name).count() == 1);
    if is_binary {
        return once(&[b"\x00\x01g", b"\x00\x01h", b"\x00\x01i"]);
    }
    let [born, properties]: [&[u8]; 2] =
        if fields.starts_with(LONG_NAMES) { [b"\"bornTimestamp\"", b"\"properties\""] } else { [b"\"g\"", b"\"i\""] };
    // An escape allows another spelling of a name, and a second code changes the names of the fields.
    memchr(b'\\', fields).is_none() && once(&[born, properties, b"\"opaque\"", b"\"code\""])
}

fn end_of(name: &Finder<'_>, header: &[u8], from: usize) -> Option<usize> {
    Some(from + name.find(header.get(from..)?)? + name.needle().len())
}

/// Returns a positive number of at most 18 digits.
fn digits(text: &[u8]) -> Option<i64> {
    if text.len() > 18 || !text.iter().all(u8::is_ascii_digit) || *text.first()? == b'0' {
        return None;
    }
    Some(text.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0')))
}

/// Adds the rest of a JSON string to `to`, and returns its end in `text`. Returns None for an escape that clients don't
/// write, or if a required escape is missing.
fn unescaped(text: &[u8], to: &mut Vec<u8>) -> Option<usize> {
    let mut at = 0;
    loop {
        let plain = &text[at..at + memchr2(b'"', b'\\', &text[at..])?];
        if plain.iter().any(|&byte| byte < b' ') {
            return None;
        }
        to.extend_from_slice(plain);
        at += plain.len();
        if text[at] == b'"' {
            return Some(at);
        }
        let (byte, length) = match text.get(at + 1)? {
            b'u' => match text.get(at + 2..at + 6)? {
                b"0001" => (1, 6),
                b"0002" => (2, 6),
                _ => return None,
            },
            &byte @ (b'"' | b'\\') => (byte, 2),
            _ => return None,
        };
        to.push(byte);
        at += length;
    }
}

/// The parts that all responses of a broker share. `SendResponses` of `gantrymq/protocol/send_response.py` defines
/// them.
pub struct Answers {
    /// The broker's address, with which each message id begins.
    pub host: Vec<u8>,
    /// The bytes before the opaque number, and the fields after the queue offset.
    pub binary: [Vec<u8>; 2],
    /// The bytes before, between and after message ids, queue id, queue offset and opaque number.
    pub json: [Vec<u8>; 5],
}

/// The physical offsets of a request's messages, and the queue offset of the first message.
pub struct Place<'a> {
    pub physical_offsets: &'a [i64],
    pub queue_id: i32,
    pub queue_offset: i64,
    /// The unique id of a single message, which is the transaction id in the response; empty for a batch.
    pub unique_id: &'a [u8],
}

impl Answers {
    /// Adds the response to a request with this key and opaque number.
    pub fn add(&self, to: &mut Vec<u8>, key: &[u8], opaque: i32, place: &Place<'_>) {
        let at = to.len();
        to.extend([0; FRAME_PREFIX]);
        let encoding = if key.first() == Some(&BINARY) {
            self.add_binary(to, opaque, place);
            BINARY
        } else {
            self.add_json(to, opaque, place);
            JSON
        };
        let length = (to.len() - at - FRAME_PREFIX) as u32;
        to[at..at + 4].copy_from_slice(&(length + 4).to_be_bytes());
        to[at + 4..at + FRAME_PREFIX].copy_from_slice(&(length | u32::from(encoding) << 24).to_be_bytes());
    }

    /// Returns true if a response to a request with this key can contain this unique id: JSON must escape some bytes.
    pub fn takes(key: &[u8], unique_id: &[u8]) -> bool {
        key.first() == Some(&BINARY) || !unique_id.iter().any(|byte| matches!(byte, 0..0x20 | b'"' | b'\\'))
    }

    fn add_binary(&self, to: &mut Vec<u8>, opaque: i32, place: &Place<'_>) {
        let [head, behind] = &self.binary;
        to.extend_from_slice(head);
        to.extend(opaque.to_be_bytes());
        to.extend(1_i32.to_be_bytes()); // It is an answer, without a remark.
        to.extend([0; 8]);
        let ext_at = to.len();
        add_field(to, b"\x00\x05msgId", |to| self.add_ids(to, place.physical_offsets));
        add_field(to, b"\x00\x07queueId", |to| write(to, format_args!("{}", place.queue_id)));
        add_field(to, b"\x00\x0BqueueOffset", |to| write(to, format_args!("{}", place.queue_offset)));
        if !place.unique_id.is_empty() {
            add_field(to, b"\x00\x0DtransactionId", |to| to.extend_from_slice(place.unique_id));
        }
        to.extend_from_slice(behind);
        let length = (to.len() - ext_at) as u32;
        to[ext_at - 4..ext_at].copy_from_slice(&length.to_be_bytes());
    }

    fn add_json(&self, to: &mut Vec<u8>, opaque: i32, place: &Place<'_>) {
        let [first, second, third, fourth, last] = &self.json;
        to.extend_from_slice(first);
        self.add_ids(to, place.physical_offsets);
        to.extend_from_slice(second);
        write(to, format_args!("{}", place.queue_id));
        to.extend_from_slice(third);
        write(to, format_args!("{}", place.queue_offset));
        if !place.unique_id.is_empty() {
            to.extend_from_slice(br#"","transactionId":""#);
            to.extend_from_slice(place.unique_id);
        }
        to.extend_from_slice(fourth);
        write(to, format_args!("{opaque}"));
        to.extend_from_slice(last);
    }

    /// Adds the message ids, separated by commas.
    fn add_ids(&self, to: &mut Vec<u8>, physical_offsets: &[i64]) {
        for (number, offset) in physical_offsets.iter().enumerate() {
            if number > 0 {
                to.push(b',');
            }
            to.extend_from_slice(&self.host);
            to.extend(std::array::from_fn::<u8, 16, _>(|at| {
                b"0123456789ABCDEF"[(offset >> (60 - 4 * at)) as usize & 15]
            }));
        }
    }
}

/// Adds a name and a value, each preceded by its length.
fn add_field(to: &mut Vec<u8>, name: &[u8], add_value: impl FnOnce(&mut Vec<u8>)) {
    to.extend_from_slice(name);
    to.extend([0; 4]);
    let at = to.len();
    add_value(to);
    let length = (to.len() - at) as u32;
    to[at - 4..at].copy_from_slice(&length.to_be_bytes());
}

fn write(to: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    to.write_fmt(text).expect("memory takes what is written");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(encoding: u8, header: &[u8], body: &[u8]) -> Vec<u8> {
        let word = header.len() as u32 | u32::from(encoding) << 24;
        let length = (4 + header.len() + body.len()) as u32;
        [&length.to_be_bytes()[..], &word.to_be_bytes(), header, body].concat()
    }

    fn field(name: &str, value: &str) -> Vec<u8> {
        let (name_length, length) = ((name.len() as u16).to_be_bytes(), (value.len() as u32).to_be_bytes());
        [&name_length[..], name.as_bytes(), &length, value.as_bytes()].concat()
    }

    fn binary(opaque: i32, fields: &[(&str, &str)]) -> Vec<u8> {
        binary_of(310, opaque, fields)
    }

    fn binary_of(code: u16, opaque: i32, fields: &[(&str, &str)]) -> Vec<u8> {
        let ext: Vec<u8> = fields.iter().flat_map(|(name, value)| field(name, value)).collect();
        let head = [
            &code.to_be_bytes()[..],
            &[0, 1, 223],
            &opaque.to_be_bytes()[..],
            &[0; 8],
            &(ext.len() as u32).to_be_bytes(),
        ]
        .concat();
        frame(BINARY, &[head, ext].concat(), b"body")
    }

    const BORN: &str = "1700000000123";
    const PROPERTIES: &str = "TAGS\x01\"a\\\x02UNIQ_KEY\x01ä\x02";
    const ESCAPED: &str = r#"TAGS\u0001\"a\\\u0002UNIQ_KEY\u0001ä\u0002"#;

    fn cut(data: &[u8]) -> Option<(Send<'_>, Parts)> {
        let mut parts = Parts::default();
        let send = Cutter::default().cut(data, 0, &mut parts)?;
        Some((send, parts))
    }

    #[test]
    fn a_binary_header_is_cut() {
        let of = |opaque, born, properties, queue| {
            binary(
                opaque,
                &[("a", "p"), ("b", "t"), ("e", queue), ("g", born), ("h", "0"), ("i", properties), ("j", "0")],
            )
        };
        let one = of(7, BORN, PROPERTIES, "3");
        let (send, parts) = cut(&one).unwrap();
        assert_eq!(send, Send { opaque: 7, born_timestamp: 1_700_000_000_123, body: b"body", end: one.len() });
        assert_eq!(parts.properties, PROPERTIES.as_bytes());
        assert!(is_sure(&parts.key));
        let other = of(-8, "1800000000000", "A\x01b\x02", "3");
        assert_eq!(cut(&other).unwrap().1.key, parts.key);
        assert_ne!(cut(&of(7, BORN, PROPERTIES, "4")).unwrap().1.key, parts.key);
        assert_eq!(cut(&of(7, BORN, "", "3")).unwrap().1, Parts { key: parts.key, properties: vec![] });
        for (born, properties) in [("0700000000123", "A"), ("170000000012", "A"), (BORN, "a\0")] {
            assert_eq!(cut(&of(7, born, properties, "3")), None);
        }
        let fields = [("a", "p"), ("g", BORN), ("h", "0"), ("i", PROPERTIES)];
        for code in [10, 325] {
            assert_eq!(cut(&binary_of(code, 7, &fields)), None);
        }
        let (batch, parts) = (binary_of(320, 7, &fields), cut(&binary(7, &fields)).unwrap().1);
        let of_batch = cut(&batch).unwrap().1;
        assert!(is_sure(&of_batch.key) && of_batch.key != parts.key && of_batch.properties == parts.properties);
        for more in [("i", "B"), ("k", "i")] {
            let twice = binary(7, &[("a", "p"), ("g", BORN), ("h", "0"), ("i", "A"), more]);
            assert!(!is_sure(&cut(&twice).unwrap().1.key));
        }
    }

    #[test]
    fn json_is_cut_as_java_and_go_write_it() {
        for (before, between, opaque_between, behind) in [
            (
                r#"{"code":310,"extFields":{"a":"p","g":""#,
                r#"","h":"0","i":""#,
                r#"","j":"0"},"flag":0,"opaque":"#,
                "}",
            ),
            (r#"{"code":320,"extFields":{"g":""#, r#"","h":"0","i":""#, r#""},"opaque":"#, "}"),
            (r#"{"code":10,"extFields":{"bornTimestamp":""#, r#"","properties":""#, r#""},"opaque":"#, r#","g":"i"}"#),
        ] {
            let of = |opaque: &str, born: &str, escaped: &str| {
                let header = [before, born, between, escaped, opaque_between, opaque, behind].concat();
                frame(JSON, header.as_bytes(), b"")
            };
            let one = of("7", BORN, ESCAPED);
            let (send, parts) = cut(&one).unwrap();
            assert_eq!((send.opaque, send.born_timestamp, send.end), (7, 1_700_000_000_123, one.len()));
            assert_eq!(parts.properties, PROPERTIES.as_bytes());
            assert!(is_sure(&parts.key));
            for (opaque, escaped) in [("2147483647", "A"), ("8", "")] {
                assert_eq!(cut(&of(opaque, "1800000000000", escaped)).unwrap().1.key, parts.key);
            }
            for (opaque, born, escaped) in [
                ("0", BORN, "A"),
                ("-1", BORN, "A"),
                ("2147483648", BORN, "A"),
                ("", BORN, "A"),
                ("7", "17000000001234", "A"),
                ("7", BORN, r"\n"),
                ("7", BORN, r"\u0003"),
                ("7", BORN, "\x01"),
                ("7", BORN, r"\"),
            ] {
                let data = of(opaque, born, escaped);
                assert!(cut(&data).is_none_or(|(_, other)| other.key != parts.key), "{opaque} {born} {escaped}");
            }
        }
        let go = |opaque: &str, more: &str| {
            let header = format!(
                r#"{{"code":310,"opaque":{opaque},"extFields":{{"a":"{more}","g":"{BORN}","h":"0","i":"{ESCAPED}"}}}}"#
            );
            cut(&frame(JSON, header.as_bytes(), b"")).map(|(_, parts)| parts.key)
        };
        let key = go("7", "p").unwrap();
        assert!(is_sure(&key));
        assert_eq!(go("1234567", "p").unwrap(), key);
        for ambiguous in
            [r"\u0067", r#"p","g":"x"#, r#"p","opaque":"x"#, r#"p"},"code":10,"x":{"y":""#, "g", "i", "opaque"]
        {
            assert!(go("7", ambiguous).is_none_or(|key| !is_sure(&key)), "{ambiguous}");
        }
        for before in [r#"{"code":325,"#, r#"{ "code":310,"#, r#"{"version":479,"code":310,"#] {
            let header = format!(r#"{before}"opaque":7,"extFields":{{"a":"p","g":"{BORN}","i":"A"}}}}"#);
            assert_eq!(cut(&frame(JSON, header.as_bytes(), b"")), None, "{before}");
        }
    }

    #[test]
    fn what_is_cut_off_or_changed_is_no_trouble() {
        let header =
            format!(r#"{{"code":310,"extFields":{{"g":"{BORN}","h":"0","i":"{ESCAPED}"}},"opaque":7,"version":479}}"#);
        let json = frame(JSON, header.as_bytes(), b"body");
        let binary = binary(7, &[("a", "p"), ("g", BORN), ("h", "0"), ("i", PROPERTIES), ("j", "0")]);
        for good in [json, binary] {
            assert!(cut(&good).is_some());
            for end in 0..good.len() {
                assert_eq!(cut(&good[..end]), None, "{end}");
            }
            for at in 0..good.len() {
                for byte in [0, 1, b'"', b'\\', 0x7F, 0x80, 0xFF] {
                    let mut bad = good.clone();
                    bad[at] = byte;
                    if let Some((send, parts)) = cut(&bad) {
                        assert!(send.end == bad.len());
                        is_sure(&parts.key);
                    }
                }
            }
        }
        assert_eq!(Cutter::default().cut(b"", usize::MAX, &mut Parts::default()), None);
        assert!(!is_sure(b"") && !is_sure(&[BINARY]) && !is_sure(&[JSON; 5]));
    }
}
