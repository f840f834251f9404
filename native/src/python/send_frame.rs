//! Requests to send one message for Python: `gantrymq/client/producing/direct_sends.py`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use super::guard::guarded;
use crate::send_frame::{Parts, id_of, unique_key_property};

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
        frame(py, &Parts { opaque, before, born: &born, properties, after, body })
    })
}

/// Returns the frame of a request whose message has no property but its id, and the id. The arguments are those of
/// `plain_frame` in `send_command.py`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn plain_frame<'py>(
    py: Python<'py>,
    before: &[u8],
    after: &[u8],
    opaque: i32,
    born_timestamp: i64,
    key_head: &str,
    key_number: u16,
    body: &[u8],
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyString>)> {
    guarded(|| {
        let born = born_timestamp.to_string();
        let property = unique_key_property(key_head, key_number);
        let frame = frame(py, &Parts { opaque, before, born: &born, properties: property.as_bytes(), after, body })?;
        Ok((frame, PyString::new(py, id_of(&property))))
    })
}

fn frame<'py>(py: Python<'py>, parts: &Parts<'_>) -> PyResult<Bound<'py, PyBytes>> {
    let length = parts.length().ok_or_else(|| PyValueError::new_err("the request is too long"))?;
    PyBytes::new_with(py, length, |out| {
        parts.write(out);
        Ok(())
    })
}
