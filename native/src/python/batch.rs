//! The records of a batch for Python: `gantrymq/store/record_batch.py`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::block::Block;
use super::guard::guarded;
use crate::batch::{Common, Message, Place, placed};

/// Returns (records, tags codes, position of the next message) for at most `most` messages in `batch` from `at` on.
/// Stops before an invalid message, and before one that has the bytes `special` in its properties.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn batch_records<'py>(
    py: Python<'py>,
    batch: &[u8],
    mut at: usize,
    most: usize,
    special: &[u8],
    queue_id: i32,
    sys_flag: i32,
    born_timestamp: i64,
    born_host: &[u8],
    store_host: &[u8],
    reconsume_times: i32,
    topic: &[u8],
) -> PyResult<(Vec<Bound<'py, PyBytes>>, Vec<i32>, usize)> {
    guarded(|| {
        let common = Common { queue_id, sys_flag, born_timestamp, born_host, store_host, reconsume_times, topic };
        let special = memchr::memmem::Finder::new(special);
        let (mut records, mut tags_codes) = (Vec::new(), Vec::new());
        while records.len() < most {
            let Some(message) = Message::parse(batch, at) else { break };
            if special.find(message.properties).is_some() {
                break;
            }
            let Some(record) = common.encode(&message) else { break };
            records.push(PyBytes::new(py, &record));
            tags_codes.push(message.tags_code());
            at = message.end;
        }
        Ok((records, tags_codes, at))
    })
}

/// Returns (consecutive records with their final offsets, their units, their physical offsets).
#[pyfunction]
pub fn placed_records<'py>(
    py: Python<'py>,
    records: Vec<Bound<'py, PyBytes>>,
    tags_codes: Vec<i64>,
    queue_offset: i64,
    physical_offset: i64,
    store_timestamp: i64,
    timestamp_at: usize,
) -> PyResult<(Block, Bound<'py, PyBytes>, Vec<i64>)> {
    guarded(|| {
        let records: Vec<&[u8]> = records.iter().map(|record| record.as_bytes()).collect();
        let place = Place { queue_offset, physical_offset, store_timestamp, timestamp_at };
        let found =
            placed(&records, &tags_codes, place).ok_or_else(|| PyValueError::new_err("these are no records"))?;
        Ok((found.data.into(), PyBytes::new(py, &found.units), found.offsets))
    })
}
