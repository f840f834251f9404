//! The records of a buffer for Python: what `gantrymq/spark/arrow_records.py` asks of them.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use super::block::Block;
use crate::columns::{self, Binary, TooLarge};
use crate::record::{Record, parse_all};

/// (validity or None, offsets, data, nulls): what pyarrow's `Array.from_buffers` takes.
type Column = (Option<Block>, Block, Block, usize);

#[pyclass(frozen, module = "gantrymq_native")]
pub struct Records {
    buffer: PyBackedBytes,
    records: Vec<Record>,
    bad_at: Option<usize>,
}

#[pymethods]
impl Records {
    #[new]
    fn new(py: Python<'_>, buffer: PyBackedBytes) -> Records {
        match py.detach(|| parse_all(&buffer)) {
            Ok(records) => Records { buffer, records, bad_at: None },
            Err(at) => Records { buffer, records: Vec::new(), bad_at: Some(at) },
        }
    }

    /// Where the first place is at which no whole record begins; there are no records then.
    #[getter]
    fn bad_at(&self) -> Option<usize> {
        self.bad_at
    }

    fn __len__(&self) -> usize {
        self.records.len()
    }

    fn ints(&self, field: &str) -> PyResult<Block> {
        let get: fn(&Record) -> i32 = match field {
            "queue_id" => |record| record.queue_id,
            "sys_flag" => |record| record.sys_flag,
            "reconsume_times" => |record| record.reconsume_times,
            _ => return Err(PyValueError::new_err(format!("no field {field}"))),
        };
        Ok(self.records.iter().map(get).collect::<Vec<i32>>().into())
    }

    fn longs(&self, field: &str) -> PyResult<Block> {
        let get: fn(&Record) -> i64 = match field {
            "start" => |record| record.start as i64,
            "queue_offset" => |record| record.queue_offset,
            "physical_offset" => |record| record.physical_offset,
            "born_timestamp" => |record| record.born_timestamp,
            "store_timestamp" => |record| record.store_timestamp,
            _ => return Err(PyValueError::new_err(format!("no field {field}"))),
        };
        Ok(self.records.iter().map(get).collect::<Vec<i64>>().into())
    }

    /// A byte for each record, 1 where its body has another CRC32 than it says; None where all are right.
    fn wrong_crc(&self, py: Python<'_>) -> Option<Block> {
        py.detach(|| {
            let wrong: Vec<u8> = self.records.iter().map(|record| record.has_wrong_crc(&self.buffer).into()).collect();
            wrong.contains(&1).then(|| wrong.into())
        })
    }

    fn topics(&self, py: Python<'_>) -> PyResult<Column> {
        column(py, || columns::topics(&self.buffer, &self.records))
    }

    fn bodies(&self, py: Python<'_>) -> PyResult<Column> {
        column(py, || columns::bodies(&self.buffer, &self.records))
    }

    /// The plain bodies of the first so many of `numbers`, until they have `max_bytes`; None where one doesn't inflate,
    /// or to more than `max_body` bytes.
    fn inflated(
        &self,
        py: Python<'_>,
        numbers: PyBuffer<i64>,
        max_bytes: usize,
        max_body: usize,
    ) -> PyResult<Option<Column>> {
        let numbers = numbers.to_vec(py)?;
        let found = py.detach(|| columns::inflated(&self.buffer, &self.records, &numbers, max_bytes, max_body));
        Ok(found.ok().map(parts))
    }

    fn property(&self, py: Python<'_>, name: &str) -> PyResult<Column> {
        column(py, || columns::property(&self.buffer, &self.records, name.as_bytes()))
    }

    /// (where each record's begin among all, names, values).
    fn properties(&self, py: Python<'_>) -> PyResult<(Block, Column, Column)> {
        let map = py.detach(|| columns::all_properties(&self.buffer, &self.records)).map_err(too_large)?;
        Ok((map.firsts.into(), parts(map.names), parts(map.values)))
    }

    /// Start and end of one record's stored body in the buffer.
    fn body_place(&self, number: usize) -> PyResult<(usize, usize)> {
        self.record(number).map(|record| (record.body_at, record.body_end))
    }

    /// Start and end of one record's store host in the buffer.
    fn store_host_place(&self, number: usize) -> PyResult<(usize, usize)> {
        self.record(number).map(|record| (record.store_host_at, record.store_host_end))
    }
}

impl Records {
    fn record(&self, number: usize) -> PyResult<&Record> {
        self.records.get(number).ok_or_else(|| PyValueError::new_err(format!("no record {number}")))
    }
}

fn column(py: Python<'_>, make: impl FnOnce() -> Result<Binary, TooLarge> + Send) -> PyResult<Column> {
    py.detach(make).map(parts).map_err(too_large)
}

fn parts(column: Binary) -> Column {
    let validity = (column.nulls > 0).then(|| column.validity.into());
    (validity, column.offsets.into(), column.data.into(), column.nulls)
}

fn too_large(_: TooLarge) -> PyErr {
    PyOverflowError::new_err("a column of more than 2 GiB")
}
