//! Runs of units for Python: `gantrymq/store/log_reader.py`.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::guard::guarded;
use super::memory::bytes_of;
use crate::scan;

/// (topic, queue id, queue offset of the first unit, units).
type Run<'py> = (Bound<'py, PyBytes>, i32, i64, Bound<'py, PyBytes>);

/// Returns (runs, number of records, position of the next record, store timestamp of the last record, largest
/// timestamp) for at most `most` records in `log` between `at` and `end`. Stops before a record that Python must check.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn unit_runs<'py>(
    py: Python<'py>,
    log: PyBuffer<u8>,
    at: usize,
    end: usize,
    base: i64,
    most: usize,
    needs_crc: bool,
    left_out: &[u8],
) -> PyResult<(Vec<Run<'py>>, usize, usize, i64, i64)> {
    guarded(|| {
        let log = bytes_of(&log, py)?.get(..end).ok_or_else(|| PyValueError::new_err("the log ends earlier"))?;
        let found = scan::runs(log, at, base, most, needs_crc, left_out);
        let runs = found
            .runs
            .iter()
            .map(|run| (PyBytes::new(py, run.topic), run.queue_id, run.first, PyBytes::new(py, &run.units)))
            .collect();
        Ok((runs, found.records, found.end, found.last_timestamp, found.max_timestamp))
    })
}
