//! Converts panics to exceptions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

const FAULT: &str = "gantrymq-native has a fault, where is on standard error; GANTRYMQ_NATIVE=0 does without it";

/// Returns the result of `work`. A panic would not be an `Exception` in Python, and would end a loop that catches
/// these.
///
/// All data that `work` changes must be valid even if `work` ends early.
pub fn guarded<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(PyRuntimeError::new_err(FAULT)))
}
