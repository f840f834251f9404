//! Parses the responses to the sends of one message (`gantrymq/protocol/send_response.py`).

use crate::bytes::{i16_at, i32_at};

const PREFIX: usize = 8;
const BINARY: u8 = 1;
const RESPONSE_FLAG: i32 = 1;
/// Positions in a binary header: opaque number, flag, lengths of remark and ext fields, start of the fields.
const OPAQUE_AT: usize = 5;
const FLAG_AT: usize = 9;
const REMARK_LENGTH_AT: usize = 13;
const EXT_LENGTH_AT: usize = 17;
const EXT_AT: usize = 21;
/// Field names, each with the bytes of its value's length that are 0.
const MSG_ID: &[u8] = b"\x00\x05msgId\x00\x00\x00";
const QUEUE_ID: &[u8] = b"\x00\x07queueId\x00\x00\x00";
const QUEUE_OFFSET: &[u8] = b"\x00\x0bqueueOffset\x00\x00\x00";
const TRANSACTION_ID: &[u8] = b"\x00\x0dtransactionId\x00\x00\x00";
/// Longest fields about traces, in bytes.
const LONGEST_TAIL: usize = 512;

/// A successful response, without a body.
#[derive(Debug, PartialEq)]
pub struct Response<'a> {
    pub opaque: i32,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub offset_msg_id: &'a str,
    pub transaction_id: Option<&'a str>,
    /// The fields after these: those about traces.
    pub tail: &'a [u8],
    /// Position of the next frame.
    pub end: usize,
}

/// Returns the response at `at`. None if it is incomplete or has another form.
pub fn response(data: &[u8], at: usize) -> Option<Response<'_>> {
    let length = usize::try_from(i32_at(data, at)?).ok()?;
    let end = at.checked_add(4)?.checked_add(length)?;
    let frame = data.get(at..end)?;
    let [encoding, a, b, c] = i32_at(frame, 4)?.to_be_bytes();
    let header = &frame[PREFIX..];
    if encoding != BINARY || u32::from_be_bytes([0, a, b, c]) as usize != header.len() {
        return None;
    }
    let ext = header.get(EXT_AT..)?;
    let is_plain = i16_at(header, 0)? == 0
        && i32_at(header, FLAG_AT)? == RESPONSE_FLAG
        && i32_at(header, REMARK_LENGTH_AT)? == 0
        && usize::try_from(i32_at(header, EXT_LENGTH_AT)?) == Ok(ext.len());
    if !is_plain {
        return None;
    }
    let (offset_msg_id, rest) = value(ext, MSG_ID)?;
    let (queue_id, rest) = value(rest, QUEUE_ID)?;
    let (queue_offset, rest) = value(rest, QUEUE_OFFSET)?;
    let (transaction_id, tail) = match value(rest, TRANSACTION_ID) {
        Some((id, tail)) => (Some(id), tail),
        None if rest.starts_with(TRANSACTION_ID) => return None,
        None => (None, rest),
    };
    if !offset_msg_id.is_ascii() || tail.len() > LONGEST_TAIL {
        return None;
    }
    Some(Response {
        opaque: i32_at(header, OPAQUE_AT)?,
        queue_id: i32::try_from(number(queue_id)?).ok()?,
        queue_offset: number(queue_offset)?,
        offset_msg_id,
        transaction_id,
        tail,
        end,
    })
}

/// Returns the value of the field `name`, which begins the fields and has fewer than 256 bytes, and the other fields.
fn value<'a>(fields: &'a [u8], name: &[u8]) -> Option<(&'a str, &'a [u8])> {
    let (&length, rest) = fields.strip_prefix(name)?.split_first()?;
    let (value, rest) = rest.split_at_checked(length as usize)?;
    Some((std::str::from_utf8(value).ok()?, rest))
}

/// Returns a number of digits only, as Java writes it.
fn number(text: &str) -> Option<i64> {
    let is_canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if is_canonical { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(code: u8, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let mut ext = Vec::new();
        for (name, value) in fields {
            ext.extend((name.len() as i16).to_be_bytes());
            ext.extend_from_slice(name.as_bytes());
            ext.extend((value.len() as i32).to_be_bytes());
            ext.extend_from_slice(value.as_bytes());
        }
        let mut header = vec![0, code, 7, 1, 0];
        header.extend(9_i32.to_be_bytes());
        header.extend([0, 0, 0, 1, 0, 0, 0, 0]);
        header.extend((ext.len() as i32).to_be_bytes());
        header.extend(ext);
        let mut frame = ((4 + header.len() + body.len()) as i32).to_be_bytes().to_vec();
        frame.extend((1 << 24 | header.len() as i32).to_be_bytes());
        frame.extend(header);
        frame.extend_from_slice(body);
        frame
    }

    const FIELDS: [(&str, &str); 3] = [("msgId", "7F00"), ("queueId", "3"), ("queueOffset", "41")];

    #[test]
    fn plain_responses_are_read() {
        let mut data = frame(0, &FIELDS, b"");
        let one = data.len();
        data.extend(frame(0, &[&FIELDS[..], &[("transactionId", "AB"), ("MSG_REGION", "r")]].concat(), b""));
        let first = response(&data, 0).unwrap();
        assert_eq!((first.opaque, first.queue_id, first.queue_offset, first.end), (9, 3, 41, one));
        assert_eq!((first.offset_msg_id, first.transaction_id, first.tail), ("7F00", None, b"" as &[u8]));
        let second = response(&data, one).unwrap();
        assert_eq!((second.transaction_id, second.tail), (Some("AB"), b"\0\x0aMSG_REGION\0\0\0\x01r" as &[u8]));
        assert_eq!(second.end, data.len());
        assert_eq!(response(&data, second.end), None);
    }

    #[test]
    fn other_forms_are_left_to_python() {
        assert_eq!(response(&frame(1, &FIELDS, b""), 0), None);
        assert_eq!(response(&frame(0, &FIELDS, b"body"), 0), None);
        assert_eq!(response(&frame(0, &FIELDS[1..], b""), 0), None);
        for (name, value) in
            [("queueOffset", "041"), ("queueOffset", "-1"), ("queueOffset", ""), ("queueOffset", "9e9")]
        {
            assert_eq!(response(&frame(0, &[FIELDS[0], FIELDS[1], (name, value)], b""), 0), None, "{value}");
        }
        let whole = frame(0, &FIELDS, b"");
        for end in 0..whole.len() {
            assert_eq!(response(&whole[..end], 0), None);
        }
    }
}
