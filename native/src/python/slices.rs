//! The records of a pull for Python: `gantrymq/store/collect.py`.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::guard::guarded;
use super::memory::bytes_of;
use crate::slices::slices;

/// Shorter pieces of the log are copied into one buffer, which costs less than to pass each one to the kernel.
const APART: usize = 1024;
/// Maximum size of such a buffer, so that memory can be reused for it.
const MOST_TOGETHER: usize = 64 * 1024;

/// Returns (number of records, number of bytes, pieces). A piece is (start, end) in the log, or a buffer of copies.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn record_slices<'py>(
    py: Python<'py>,
    units: &[u8],
    queue_offset: i64,
    log: PyBuffer<u8>,
    end: usize,
    base: i64,
    most: usize,
    most_bytes: usize,
) -> PyResult<(usize, usize, Vec<Bound<'py, PyAny>>)> {
    guarded(|| {
        let log = bytes_of(&log, py)?.get(..end).ok_or_else(|| PyValueError::new_err("the log ends earlier"))?;
        let found = slices(units, queue_offset, log, base, most, most_bytes);
        let mut pieces = Vec::new();
        let mut places = found.places.as_slice();
        while let Some(&(start, end)) = places.first() {
            if end - start >= APART {
                pieces.push((start, end).into_pyobject(py)?.into_any());
                places = &places[1..];
                continue;
            }
            let (mut count, mut size) = (0, 0);
            while let Some((start, end)) = places.get(count) {
                if end - start >= APART || size + (end - start) > MOST_TOGETHER {
                    break;
                }
                size += end - start;
                count += 1;
            }
            let together = PyBytes::new_with(py, size, |bytes| {
                let mut at = 0;
                for &(start, end) in &places[..count] {
                    bytes[at..at + end - start].copy_from_slice(&log[start..end]);
                    at += end - start;
                }
                Ok(())
            })?;
            pieces.push(together.into_any());
            places = &places[count..];
        }
        Ok((found.count, found.size, pieces))
    })
}
