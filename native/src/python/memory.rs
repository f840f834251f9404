//! Memory of others (mapped files, bytes) as slices.

use std::cell::Cell;
use std::slice;

use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The bytes of a buffer, which nothing changes while the interpreter's lock is held: who of this process writes to a
/// mapped file holds it, and the store's lock keeps out other processes.
pub fn bytes_of<'a>(buffer: &'a PyBuffer<u8>, _py: Python<'a>) -> PyResult<&'a [u8]> {
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err("the bytes aren't side by side"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(&[]);
    }
    // SAFETY: the buffer is held, and as long as it says; `_py` keeps the lock, so nothing changes it.
    Ok(unsafe { slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) })
}

/// The bytes of a buffer that its owner leaves as they are until it is released, whoever holds the interpreter's lock:
/// bytes, or memory that is filled again only when nobody reads it any more.
pub fn lasting_bytes_of(buffer: &PyUntypedBuffer) -> PyResult<&[u8]> {
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err("the bytes aren't side by side"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(&[]);
    }
    // SAFETY: the buffer is held, and as long as it says; that nothing changes it is its owner's promise.
    Ok(unsafe { slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) })
}

/// The bytes of a buffer that may be written to.
pub fn cells_of<'a>(buffer: &'a PyBuffer<u8>, _py: Python<'a>) -> PyResult<&'a [Cell<u8>]> {
    if buffer.readonly() || !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err("the bytes can't be written to"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(&[]);
    }
    // SAFETY: as above; these are cells, as the buffer may be that of another one, too.
    Ok(unsafe { slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) })
}

/// Copies bytes to a place of such memory, at once; false, and nothing is done, where they don't fit.
pub fn put(cells: &[Cell<u8>], at: usize, bytes: &[u8]) -> bool {
    let Some(place) = at.checked_add(bytes.len()).and_then(|end| cells.get(at..end)) else { return false };
    // SAFETY: the place is as long as the bytes and may be written to, being of cells that are there as long as `cells`.
    unsafe { std::ptr::copy(bytes.as_ptr(), place.as_ptr().cast::<u8>().cast_mut(), bytes.len()) };
    true
}
