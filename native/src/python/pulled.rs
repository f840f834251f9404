//! Parses the records of a pull response for Python: `gantrymq/client/pulled_messages.py`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::guard::guarded;
use crate::pulled;

/// (size, queue offset, sysFlag, the bytes before the body, body, properties).
type Parts<'py> = (usize, i64, i32, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Returns the parts of the records in `buffer` from `at` on. Stops before an invalid record, or one not after `last`.
#[pyfunction]
pub fn pulled_records<'py>(
    py: Python<'py>,
    buffer: &[u8],
    at: usize,
    topic: &[u8],
    queue_id: i32,
    last: i64,
) -> PyResult<Vec<Parts<'py>>> {
    guarded(|| {
        let queue = pulled::Queue { topic, queue_id, last };
        let bytes = |from: usize, to: usize| PyBytes::new(py, &buffer[from..to]);
        let found = pulled::records(buffer, at, &queue)
            .iter()
            .map(|record| {
                let (head, body) = (bytes(record.start, record.body_at), bytes(record.body_at, record.body_end));
                let properties = bytes(record.properties_at, record.end);
                (record.end - record.start, record.queue_offset, record.sys_flag, head, body, properties)
            })
            .collect();
        Ok(found)
    })
}
