//! Batches of plain messages for Python: `gantrymq/client/producing/message_encoder.py`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use super::guard::guarded;
use crate::plain_batch::{Batch, Keys};

/// Returns (batch, keys separated by commas) for messages with these flags, bodies and properties. Returns None if
/// Python must handle them: a body is empty or isn't bytes, a flag isn't a 32-bit integer, a property isn't of strings,
/// contains a separator or has one of the `odd` names, or something is too long.
#[pyfunction]
pub fn plain_batch<'py>(
    py: Python<'py>,
    flags: Bound<'py, PyList>,
    bodies: Bound<'py, PyList>,
    properties: Bound<'py, PyList>,
    odd: Vec<String>,
    key_head: &str,
    first_key: u32,
) -> PyResult<Option<(Bound<'py, PyBytes>, String)>> {
    guarded(|| Ok(made(py, &flags, &bodies, &properties, &odd, Keys { head: key_head, first: first_key })))
}

fn made<'py>(
    py: Python<'py>,
    flags: &Bound<'py, PyList>,
    bodies: &Bound<'py, PyList>,
    properties: &Bound<'py, PyList>,
    odd: &[String],
    keys: Keys<'_>,
) -> Option<(Bound<'py, PyBytes>, String)> {
    let mut batch = Batch::new(keys);
    for ((flag, body), own) in flags.iter().zip(bodies.iter()).zip(properties.iter()) {
        let body = body.cast_into_exact::<PyBytes>().ok()?;
        let own = own.cast_into_exact::<PyDict>().ok()?;
        let mut pairs = Vec::with_capacity(own.len());
        for (name, value) in own.iter() {
            pairs.push((name.cast_into_exact::<PyString>().ok()?, value.cast_into_exact::<PyString>().ok()?));
        }
        let mut texts = Vec::with_capacity(pairs.len());
        for (name, value) in &pairs {
            let (name, value) = (name.to_str().ok()?, value.to_str().ok()?);
            if odd.iter().any(|one| one == name) {
                return None;
            }
            texts.push((name, value));
        }
        batch.add(flag.extract().ok()?, body.as_bytes(), texts.into_iter())?;
    }
    Some((PyBytes::new(py, &batch.body), batch.ids))
}
