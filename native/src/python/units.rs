//! Selects units by their tags codes for Python: `gantrymq/store/collect.py`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::guard::guarded;
use crate::units::with_codes;

/// Returns (indexes of the first `most` units with one of these tags codes, these units).
#[pyfunction]
pub fn units_with<'py>(
    py: Python<'py>,
    units: &[u8],
    mut codes: Vec<i64>,
    most: usize,
) -> PyResult<(Vec<usize>, Bound<'py, PyBytes>)> {
    guarded(|| {
        codes.sort_unstable();
        let (numbers, found) = with_codes(units, &codes, most);
        Ok((numbers, PyBytes::new(py, &found)))
    })
}
