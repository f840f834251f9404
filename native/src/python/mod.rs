//! The module `gantrymq_native`.

mod block;
mod index;
mod records;

use pyo3::prelude::*;

/// Counts up when a function is added or means something else: `gantrymq.kernels` takes the one that it was made for.
const INTERFACE: u32 = 4;

#[pymodule]
fn gantrymq_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("INTERFACE", INTERFACE)?;
    module.add_class::<records::Records>()?;
    module.add_class::<index::IndexEntries>()?;
    module.add_function(wrap_pyfunction!(index::index_entries, module)?)
}
