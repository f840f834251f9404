//! A buffer that becomes a bytes object without a copy, for example the body of a frame from a socket.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Supports Python's buffer protocol for writing, until `finish` returns the bytes.
#[pyclass(frozen, module = "gantrymq_native")]
pub struct ReceiveBuffer {
    bytes: Py<PyBytes>,
    is_finished: AtomicBool,
}

#[pymethods]
impl ReceiveBuffer {
    /// Allocates `size` bytes, which are not initialised.
    #[new]
    fn new(py: Python<'_>, size: usize) -> PyResult<ReceiveBuffer> {
        // SAFETY: without content, CPython allocates bytes for the caller to fill; only this object has a reference.
        let bytes = unsafe {
            let made = ffi::PyBytes_FromStringAndSize(std::ptr::null(), isize::try_from(size)?);
            Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked::<PyBytes>().unbind()
        };
        Ok(ReceiveBuffer { bytes, is_finished: AtomicBool::new(false) })
    }

    /// Returns the bytes. Owners of views must not write to them afterwards.
    fn finish(&self, py: Python<'_>) -> Py<PyBytes> {
        self.is_finished.store(true, Ordering::Relaxed);
        self.bytes.clone_ref(py)
    }

    /// # Safety
    /// CPython calls this with a `view` to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let buffer = slf.get();
        if buffer.is_finished.load(Ordering::Relaxed) {
            return Err(PyBufferError::new_err("the bytes are finished"));
        }
        let bytes = buffer.bytes.as_ptr();
        // SAFETY: the view refers to this object, and this object to the bytes, which do not move. They are written
        // before another object refers to them.
        let code = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                ffi::PyBytes_AsString(bytes).cast(),
                ffi::PyBytes_Size(bytes),
                0,
                flags,
            )
        };
        if code == -1 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}
