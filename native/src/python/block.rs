//! Memory that is filled in Rust and read elsewhere (pyarrow, numpy) without a copy.

use std::ffi::{c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;

enum Values {
    Bytes(Vec<u8>),
    Ints(Vec<i32>),
    Longs(Vec<i64>),
}

/// Supports Python's buffer protocol, read-only.
#[pyclass(frozen, module = "gantrymq_native")]
pub struct Block(Values);

impl From<Vec<u8>> for Block {
    fn from(values: Vec<u8>) -> Block {
        Block(Values::Bytes(values))
    }
}

impl From<Vec<i32>> for Block {
    fn from(values: Vec<i32>) -> Block {
        Block(Values::Ints(values))
    }
}

impl From<Vec<i64>> for Block {
    fn from(values: Vec<i64>) -> Block {
        Block(Values::Longs(values))
    }
}

#[pymethods]
impl Block {
    /// # Safety
    /// CPython calls this with a `view` to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (start, size): (*const c_void, usize) = match &slf.get().0 {
            Values::Bytes(values) => (values.as_ptr().cast(), values.len()),
            Values::Ints(values) => (values.as_ptr().cast(), size_of_val(values.as_slice())),
            Values::Longs(values) => (values.as_ptr().cast(), size_of_val(values.as_slice())),
        };
        // SAFETY: the view holds a reference to this object, which is frozen: its memory does not move or change until
        // the view is released. A Vec has at most isize::MAX bytes.
        let code = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast_mut(), size as isize, 1, flags) };
        if code == -1 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}
