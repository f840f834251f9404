//! Entries of the key index for Python: `gantrymq/store/message_index.py` and `index_file.py`.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use super::guard::guarded;
use super::memory::{bytes_of, cells_of};
use crate::index_file::{IndexFile, Outside};
use crate::keys::{self, Entry, LeftOut, Limits};

#[pyclass(frozen, sequence, module = "gantrymq_native")]
pub struct IndexEntries(Vec<Entry>);

#[pymethods]
impl IndexEntries {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __getitem__(&self, number: usize) -> PyResult<(i32, i64, i64)> {
        let entry = self.0.get(number).ok_or_else(|| PyIndexError::new_err(number))?;
        Ok((entry.hash, entry.physical_offset, entry.timestamp))
    }

    /// Writes `count` entries, from `first` on, to the mapped file. Returns the number of slots that were empty before.
    #[allow(clippy::too_many_arguments)]
    fn put(
        &self,
        py: Python<'_>,
        first: usize,
        count: usize,
        mapping: PyBuffer<u8>,
        hash_slots: usize,
        number: i32,
        begin: i64,
    ) -> PyResult<usize> {
        guarded(|| {
            let mapping = cells_of(&mapping, py)?;
            let outside = || PyIndexError::new_err("outside of the file, or of the entries");
            let entries = first.checked_add(count).and_then(|end| self.0.get(first..end)).ok_or_else(outside)?;
            IndexFile { mapping, hash_slots }.put(entries, number, begin).map_err(|Outside| outside())
        })
    }
}

/// Returns (entries, position of the last processed record, position of the next record) for the records in `log`
/// between `at` and `end`, up to the limits or an invalid record. `left_out` is a topic and a mark.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn index_entries(
    py: Python<'_>,
    log: PyBuffer<u8>,
    at: usize,
    end: usize,
    base: i64,
    records: usize,
    keys: usize,
    bytes: usize,
    left_out: (&[u8], &[u8]),
) -> PyResult<(IndexEntries, usize, usize)> {
    guarded(|| {
        let log = bytes_of(&log, py)?.get(..end).ok_or_else(|| PyValueError::new_err("the log ends earlier"))?;
        if i64::try_from(end).ok().and_then(|end| base.checked_add(end)).is_none() {
            return Err(PyValueError::new_err("the log ends beyond the largest physical offset"));
        }
        let mut found = Vec::new();
        let left_out = LeftOut { topic: left_out.0, mark: left_out.1 };
        let reached = keys::entries(log, at, base, Limits { records, keys, bytes }, left_out, &mut found);
        Ok((IndexEntries(found), reached.last, reached.next))
    })
}
