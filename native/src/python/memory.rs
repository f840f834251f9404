//! Provides the memory of other objects (mapped files, bytes) as slices.

use std::cell::Cell;
use std::slice;

use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Returns the bytes of a buffer that doesn't change while the GIL is held: threads of this process write to a mapped
/// file only with the GIL, and the store's lock excludes other processes.
pub fn bytes_of<'a>(buffer: &'a PyBuffer<u8>, _py: Python<'a>) -> PyResult<&'a [u8]> {
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err("the bytes aren't side by side"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(&[]);
    }
    // SAFETY: the buffer is held and has this length. `_py` holds the GIL, so nothing changes it.
    Ok(unsafe { slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) })
}

/// Returns the bytes of a buffer that its owner doesn't change until it is released, even without the GIL: bytes, or
/// memory that is reused only when it has no readers.
pub fn lasting_bytes_of(buffer: &PyUntypedBuffer) -> PyResult<&[u8]> {
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err("the bytes aren't side by side"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(&[]);
    }
    // SAFETY: the buffer is held and has this length. Its owner guarantees that nothing changes it.
    Ok(unsafe { slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) })
}

/// Returns the bytes of a writable buffer.
pub fn cells_of<'a>(buffer: &'a PyBuffer<u8>, _py: Python<'a>) -> PyResult<&'a [Cell<u8>]> {
    if buffer.readonly() || !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err("the bytes can't be written to"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(&[]);
    }
    // SAFETY: as above. The bytes are cells, because another slice may refer to the same buffer.
    Ok(unsafe { slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) })
}

/// Copies bytes to a position in one step. Returns false, without a change, if they don't fit.
pub fn put(cells: &[Cell<u8>], at: usize, bytes: &[u8]) -> bool {
    let Some(place) = at.checked_add(bytes.len()).and_then(|end| cells.get(at..end)) else { return false };
    // SAFETY: the target is as long as the bytes and writable: it consists of cells that live as long as `cells`.
    unsafe { std::ptr::copy(bytes.as_ptr(), place.as_ptr().cast::<u8>().cast_mut(), bytes.len()) };
    true
}
