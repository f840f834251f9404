//! Inflates compressed bodies: zlib, lz4 (frame format) and zstd, as in `gantrymq/protocol/compression.py`.
//!
//! lz4 and zstd are the same C libraries as in Python's packages.

use std::io::{self, Read};

use flate2::{Decompress, FlushDecompress, Status};

pub const COMPRESSED: i32 = 1;
const TYPE_SHIFT: i32 = 8;
const TYPE_MASK: i32 = 7;
/// Minimum growth of the output, in bytes.
const STEP: usize = 16 * 1024;

/// A body can't be inflated, or becomes too large. Python reports the reason.
#[derive(Debug, PartialEq)]
pub struct Failed;

impl From<io::Error> for Failed {
    fn from(_: io::Error) -> Failed {
        Failed
    }
}

/// Inflates bodies one after the other, and reuses its decoders.
#[derive(Default)]
pub struct Inflater {
    zlib: Option<Decompress>,
    zstd: Option<zstd::zstd_safe::DCtx<'static>>,
}

impl Inflater {
    /// Appends the plain body, at most `max_size` bytes. After a failure, `out` may contain a part of it.
    pub fn append(&mut self, body: &[u8], sys_flag: i32, max_size: usize, out: &mut Vec<u8>) -> Result<(), Failed> {
        if sys_flag & COMPRESSED == 0 {
            out.extend_from_slice(body);
            return Ok(());
        }
        let most = out.len() + max_size;
        match sys_flag >> TYPE_SHIFT & TYPE_MASK {
            0 | 3 => self.zlib(body, most, out),
            1 => lz4(body, most, out),
            2 => self.zstd(body, most, out),
            _ => Err(Failed),
        }
    }

    fn zlib(&mut self, mut body: &[u8], most: usize, out: &mut Vec<u8>) -> Result<(), Failed> {
        let inflater = self.zlib.get_or_insert_with(|| Decompress::new(true));
        inflater.reset(true);
        loop {
            out.reserve(STEP);
            let (read, written) = (inflater.total_in(), out.len());
            let status = inflater.decompress_vec(body, out, FlushDecompress::None).map_err(|_| Failed)?;
            body = &body[(inflater.total_in() - read) as usize..];
            if out.len() > most {
                return Err(Failed);
            }
            if status == Status::StreamEnd {
                return Ok(());
            }
            if body.is_empty() && out.len() < out.capacity() || inflater.total_in() == read && out.len() == written {
                return Err(Failed);
            }
        }
    }

    fn zstd(&mut self, body: &[u8], most: usize, out: &mut Vec<u8>) -> Result<(), Failed> {
        use zstd::zstd_safe::{DCtx, InBuffer, OutBuffer, ResetDirective};
        let inflater = self.zstd.get_or_insert_with(DCtx::create);
        inflater.reset(ResetDirective::SessionOnly).map_err(|_| Failed)?;
        let mut input = InBuffer::around(body);
        loop {
            out.reserve(STEP);
            let at = out.len();
            let mut output = OutBuffer::around_pos(out, at);
            let left = inflater.decompress_stream(&mut output, &mut input).map_err(|_| Failed)?;
            if out.len() > most {
                return Err(Failed);
            }
            if left == 0 {
                return Ok(());
            }
            if input.pos() == body.len() && out.len() < out.capacity() {
                return Err(Failed);
            }
        }
    }
}

fn lz4(body: &[u8], most: usize, out: &mut Vec<u8>) -> Result<(), Failed> {
    let mut inflater = lz4::Decoder::new(body)?;
    let allowed = (most - out.len()) as u64;
    inflater.by_ref().take(allowed + 1).read_to_end(out)?;
    if out.len() > most {
        return Err(Failed);
    }
    // Fails if the end of the frame is missing.
    inflater.finish().1.map_err(Failed::from)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn compressed(plain: &[u8]) -> Vec<(i32, Vec<u8>)> {
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        zlib.write_all(plain).unwrap();
        let zlib = zlib.finish().unwrap();
        let mut lz4 = lz4::EncoderBuilder::new().build(Vec::new()).unwrap();
        lz4.write_all(plain).unwrap();
        let (lz4, ended) = lz4.finish();
        ended.unwrap();
        let zstd = zstd::encode_all(plain, 5).unwrap();
        vec![(1, zlib.clone()), (1 | 3 << 8, zlib), (1 | 1 << 8, lz4), (1 | 2 << 8, zstd)]
    }

    fn inflated(body: &[u8], sys_flag: i32, max_size: usize) -> Result<Vec<u8>, Failed> {
        let mut out = b"before".to_vec();
        Inflater::default().append(body, sys_flag, max_size, &mut out).map(|()| out.split_off(6))
    }

    // miri can't run C code.
    #[cfg_attr(miri, ignore)]
    #[test]
    fn whole_bodies_come_out_as_they_were() {
        for size in [0, 1, 1000, 100_000, 1_000_000] {
            let plain: Vec<u8> = (0..size).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 27) as u8).collect();
            for (sys_flag, body) in compressed(&plain) {
                assert_eq!(inflated(&body, sys_flag, plain.len()).as_ref(), Ok(&plain), "{sys_flag} {size}");
                assert_eq!(inflated(&body, sys_flag | 1 << 4, 2_000_000).as_ref(), Ok(&plain), "{sys_flag} {size}");
            }
        }
    }

    #[cfg_attr(miri, ignore)]
    #[test]
    fn what_is_cut_off_or_too_large_fails() {
        let plain = vec![b'x'; 50_000];
        for (sys_flag, body) in compressed(&plain) {
            assert_eq!(inflated(&body, sys_flag, plain.len() - 1), Err(Failed), "{sys_flag}");
            for end in 0..body.len() {
                assert_eq!(inflated(&body[..end], sys_flag, 100_000), Err(Failed), "{sys_flag} {end}");
            }
        }
        assert_eq!(inflated(b"x", 1 | 4 << 8, 100), Err(Failed));
    }
}
