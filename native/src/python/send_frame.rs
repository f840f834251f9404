//! Requests to send one message for Python: `gantrymq/client/producing/direct_sends.py`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::guard::guarded;
use crate::send_frame::Parts;

/// Returns the frame of a request. The arguments are those of `send_frame` in `send_command.py`.
#[pyfunction]
pub fn send_frame<'py>(
    py: Python<'py>,
    before: &[u8],
    after: &[u8],
    opaque: i32,
    born_timestamp: i64,
    properties: &[u8],
    body: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    guarded(|| {
        let born = born_timestamp.to_string();
        let parts = Parts { opaque, before, born: &born, properties, after, body };
        let length = parts.length().ok_or_else(|| PyValueError::new_err("the request is too long"))?;
        PyBytes::new_with(py, length, |out| {
            parts.write(out);
            Ok(())
        })
    })
}
