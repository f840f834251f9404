//! Panics, which nobody expects, as errors that Python expects.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

const FAULT: &str = "gantrymq-native has a fault, where is on standard error; GANTRYMQ_NATIVE=0 does without it";

/// What `work` returns. A panic would be no `Exception` in Python: whoever goes on after each of these would end with it.
///
/// What `work` changes must be fit for use whenever it ends.
pub fn guarded<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(PyRuntimeError::new_err(FAULT)))
}
