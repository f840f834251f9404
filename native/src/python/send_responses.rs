//! Responses to sends for Python: `gantrymq/client/producing/direct_sends.py`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::guard::guarded;
use crate::send_responses::response;

/// (opaque number, queue id, queue offset, offset message id, transaction id, fields about traces, end of the frame).
type Fields<'py> = (i32, i32, i64, String, Option<String>, Bound<'py, PyBytes>, usize);

/// Returns the fields of the responses with which `data` begins. Stops before a frame that Python must decode.
#[pyfunction]
pub fn send_responses<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Vec<Fields<'py>>> {
    guarded(|| {
        let (mut found, mut at) = (Vec::new(), 0);
        while let Some(one) = response(data, at) {
            at = one.end;
            found.push((
                one.opaque,
                one.queue_id,
                one.queue_offset,
                one.offset_msg_id.to_owned(),
                one.transaction_id.map(str::to_owned),
                PyBytes::new(py, one.tail),
                one.end,
            ));
        }
        Ok(found)
    })
}
