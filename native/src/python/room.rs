//! Bytes that are filled by who receives them, from a socket for example: there is no copy between.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Has Python's buffer protocol, to be written to, until `finish` gives the bytes.
#[pyclass(frozen, module = "gantrymq_native")]
pub struct Room {
    bytes: Py<PyBytes>,
    is_finished: AtomicBool,
}

#[pymethods]
impl Room {
    /// What isn't written to holds anything.
    #[new]
    fn new(py: Python<'_>, size: usize) -> PyResult<Room> {
        // SAFETY: without content CPython makes bytes that are still to be filled; nobody but this object has them.
        let bytes = unsafe {
            let made = ffi::PyBytes_FromStringAndSize(std::ptr::null(), isize::try_from(size)?);
            Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked::<PyBytes>().unbind()
        };
        Ok(Room { bytes, is_finished: AtomicBool::new(false) })
    }

    /// The bytes. Who has a view of the room leaves them as they are from now on.
    fn finish(&self, py: Python<'_>) -> Py<PyBytes> {
        self.is_finished.store(true, Ordering::Relaxed);
        self.bytes.clone_ref(py)
    }

    /// # Safety
    /// CPython calls it with a `view` to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let room = slf.get();
        if room.is_finished.load(Ordering::Relaxed) {
            return Err(PyBufferError::new_err("the bytes are finished"));
        }
        let bytes = room.bytes.as_ptr();
        // SAFETY: the view holds this object, and that the bytes, which don't move. They are written to before anybody
        // else has them.
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
