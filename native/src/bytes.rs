//! Reads big-endian numbers at positions that may be out of bounds.

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub fn i16_at(bytes: &[u8], at: usize) -> Option<i16> {
    array_at(bytes, at).map(i16::from_be_bytes)
}

pub fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    array_at(bytes, at).map(i32::from_be_bytes)
}

pub fn i64_at(bytes: &[u8], at: usize) -> Option<i64> {
    array_at(bytes, at).map(i64::from_be_bytes)
}
