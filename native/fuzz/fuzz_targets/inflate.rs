//! Whatever a compressed body is, it takes no more memory than it may, and the next one comes out right.
#![no_main]

use gantrymq_native::inflate::{COMPRESSED, Inflater};
use libfuzzer_sys::fuzz_target;

const MOST: usize = 1 << 16;
/// "hello" by zlib.
const HELLO: [u8; 13] = [0x78, 0x9C, 0xCB, 0x48, 0xCD, 0xC9, 0xC9, 0x07, 0x00, 0x06, 0x2C, 0x02, 0x15];

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, body) = input;
    let mut inflater = Inflater::default();
    let mut out = Vec::new();
    if inflater.append(body, COMPRESSED | i32::from(kind % 5) << 8, MOST, &mut out).is_ok() {
        assert!(out.len() <= MOST);
    }
    out.clear();
    inflater.append(&HELLO, COMPRESSED, MOST, &mut out).unwrap();
    assert_eq!(out, b"hello");
});
