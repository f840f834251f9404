//! The module `gantrymq_native`.

mod batch;
mod block;
mod guard;
mod index;
mod memory;
mod plain_batch;
mod pulled;
mod receive_buffer;
mod records;
mod rows;
mod scan;
mod send_frame;
mod send_responses;
mod sends;
mod slices;
mod units;

use pyo3::prelude::*;

/// Increases when a function is added or its meaning changes. `gantrymq.kernels` accepts only the version that it
/// needs.
const INTERFACE: u32 = 20;

#[pymodule]
fn gantrymq_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("INTERFACE", INTERFACE)?;
    module.add_class::<records::Records>()?;
    module.add_class::<index::IndexEntries>()?;
    module.add_class::<receive_buffer::ReceiveBuffer>()?;
    module.add_class::<sends::PlainSends>()?;
    module.add_function(wrap_pyfunction!(index::index_entries, module)?)?;
    module.add_function(wrap_pyfunction!(batch::batch_records, module)?)?;
    module.add_function(wrap_pyfunction!(batch::placed_records, module)?)?;
    module.add_function(wrap_pyfunction!(rows::batch_bodies, module)?)?;
    module.add_function(wrap_pyfunction!(scan::unit_runs, module)?)?;
    module.add_function(wrap_pyfunction!(slices::record_slices, module)?)?;
    module.add_function(wrap_pyfunction!(pulled::pulled_records, module)?)?;
    module.add_function(wrap_pyfunction!(plain_batch::plain_batch, module)?)?;
    module.add_function(wrap_pyfunction!(send_frame::plain_frame, module)?)?;
    module.add_function(wrap_pyfunction!(send_frame::send_frame, module)?)?;
    module.add_function(wrap_pyfunction!(send_responses::send_responses, module)?)?;
    module.add_function(wrap_pyfunction!(units::units_with, module)?)
}
