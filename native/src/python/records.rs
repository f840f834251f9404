//! Provides the records of a buffer to Python (`gantrymq/arrow/arrow_records.py`).

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

use super::block::Block;
use super::memory::lasting_bytes_of;
use crate::binary::{Binary, TooLarge};
use crate::columns::{self, Columns, Wanted};
use crate::record::Record;

/// (validity or None, offsets, data, nulls): the arguments of pyarrow's `Array.from_buffers`.
type Column = (Option<Py<Block>>, Py<Block>, Py<Block>, usize);

#[pyclass(frozen, module = "gantrymq_native")]
pub struct Records {
    buffer: PyBuffer<u8>,
    starts: Vec<i64>,
    bad_at: Option<usize>,
    ints: [Py<Block>; 3],
    longs: [Py<Block>; 5],
    has_compressed: bool,
    bodies: Option<Column>,
    wrong_crc: Option<Py<Block>>,
    has_checked_crc: bool,
    properties: Vec<(String, Column)>,
}

const INTS: [&str; 3] = ["queue_id", "sys_flag", "reconsume_times"];
const LONGS: [&str; 5] = ["start", "queue_offset", "physical_offset", "born_timestamp", "store_timestamp"];

#[pymethods]
impl Records {
    /// Parses the records. Also reads bodies, checks their CRC32 and reads single properties if these are needed later.
    #[new]
    fn new(
        py: Python<'_>,
        buffer: PyBuffer<u8>,
        bodies: bool,
        crc: bool,
        properties: Vec<String>,
    ) -> PyResult<Records> {
        let bytes = lasting_bytes_of(&buffer)?;
        let names = properties.iter().map(|name| name.as_bytes().to_vec()).collect();
        let wanted = Wanted { bodies, crc, properties: names };
        let found: Columns = py.detach(|| columns::columns(bytes, &wanted)).map_err(too_large)?;
        let values = found.properties.into_iter().map(|column| parts(py, column)).collect::<PyResult<Vec<_>>>()?;
        Ok(Records {
            buffer,
            bad_at: found.bad_at,
            has_compressed: found.sys_flags.iter().any(|flags| flags & crate::inflate::COMPRESSED != 0),
            ints: [block(py, found.queue_ids)?, block(py, found.sys_flags)?, block(py, found.reconsume_times)?],
            longs: [
                block(py, found.starts.clone())?,
                block(py, found.queue_offsets)?,
                block(py, found.physical_offsets)?,
                block(py, found.born_timestamps)?,
                block(py, found.store_timestamps)?,
            ],
            starts: found.starts,
            bodies: found.bodies.map(|column| parts(py, column)).transpose()?,
            wrong_crc: found.wrong_crc.map(|wrong| block(py, wrong)).transpose()?,
            has_checked_crc: crc,
            properties: properties.into_iter().zip(values).collect(),
        })
    }

    /// Position of the first incomplete or invalid record. Only the records before it are included.
    #[getter]
    fn bad_at(&self) -> Option<usize> {
        self.bad_at
    }

    /// True if at least one body is compressed.
    #[getter]
    fn has_compressed(&self) -> bool {
        self.has_compressed
    }

    fn __len__(&self) -> usize {
        self.starts.len()
    }

    fn ints(&self, py: Python<'_>, field: &str) -> PyResult<Py<Block>> {
        named(&INTS, field).map(|number| self.ints[number].clone_ref(py))
    }

    fn longs(&self, py: Python<'_>, field: &str) -> PyResult<Py<Block>> {
        named(&LONGS, field).map(|number| self.longs[number].clone_ref(py))
    }

    /// A byte for each record: 1 if the CRC32 of its body is wrong. None if all are correct.
    fn wrong_crc(&self, py: Python<'_>) -> PyResult<Option<Py<Block>>> {
        if self.has_checked_crc {
            return Ok(self.wrong_crc.as_ref().map(|wrong| wrong.clone_ref(py)));
        }
        let bytes = self.bytes()?;
        let wrong: Vec<u8> = py.detach(|| {
            columns::records(bytes, &self.starts).map(|record| record.has_wrong_crc(bytes).into()).collect()
        });
        wrong.contains(&1).then(|| block(py, wrong)).transpose()
    }

    fn topics(&self, py: Python<'_>) -> PyResult<Column> {
        let bytes = self.bytes()?;
        column(py, || columns::topics(bytes, &self.starts))
    }

    /// Returns (different topics, index of each record's topic).
    fn numbered_topics(&self, py: Python<'_>) -> PyResult<(Vec<String>, Py<Block>)> {
        let bytes = self.bytes()?;
        let (topics, numbers) = py.detach(|| columns::numbered_topics(bytes, &self.starts));
        let topics = topics.into_iter().map(|topic| String::from_utf8_lossy(topic).into_owned()).collect();
        Ok((topics, block(py, numbers)?))
    }

    /// Returns the stored bodies of all or some records.
    #[pyo3(signature = (numbers, /))]
    fn bodies(&self, py: Python<'_>, numbers: Option<PyBuffer<i64>>) -> PyResult<Column> {
        if let (None, Some((validity, offsets, data, nulls))) = (&numbers, &self.bodies) {
            let validity = validity.as_ref().map(|block| block.clone_ref(py));
            return Ok((validity, offsets.clone_ref(py), data.clone_ref(py), *nulls));
        }
        let bytes = self.bytes()?;
        match numbers {
            None => column(py, || columns::bodies(bytes, &self.starts)),
            Some(numbers) => {
                let starts = self.starts_of(py, &numbers)?;
                column(py, || columns::bodies(bytes, &starts))
            }
        }
    }

    /// Returns the plain bodies of the first of `numbers`, until their total size reaches `max_bytes`. None if a body
    /// can't be inflated or exceeds `max_body` bytes.
    fn inflated(
        &self,
        py: Python<'_>,
        numbers: PyBuffer<i64>,
        max_bytes: usize,
        max_body: usize,
    ) -> PyResult<Option<Column>> {
        let starts = self.starts_of(py, &numbers)?;
        let bytes = self.bytes()?;
        let found = py.detach(|| columns::inflated(bytes, &starts, max_bytes, max_body));
        found.ok().map(|column| parts(py, column)).transpose()
    }

    fn property(&self, py: Python<'_>, name: &str) -> PyResult<Column> {
        if let Some((_, (validity, offsets, data, nulls))) = self.properties.iter().find(|(other, _)| other == name) {
            let validity = validity.as_ref().map(|block| block.clone_ref(py));
            return Ok((validity, offsets.clone_ref(py), data.clone_ref(py), *nulls));
        }
        let bytes = self.bytes()?;
        column(py, || columns::property(bytes, &self.starts, name.as_bytes()))
    }

    /// Returns (start of each record's properties, names, values).
    fn properties(&self, py: Python<'_>) -> PyResult<(Py<Block>, Column, Column)> {
        let bytes = self.bytes()?;
        let map = py.detach(|| columns::all_properties(bytes, &self.starts)).map_err(too_large)?;
        Ok((block(py, map.firsts)?, parts(py, map.names)?, parts(py, map.values)?))
    }

    /// Returns the start and the end of a record's stored body in the buffer.
    fn body_place(&self, number: usize) -> PyResult<(usize, usize)> {
        self.record(number).map(|record| (record.body_at, record.body_end))
    }

    /// Returns the start and the end of a record's store host in the buffer.
    fn store_host_place(&self, number: usize) -> PyResult<(usize, usize)> {
        self.record(number).map(|record| (record.store_host_at, record.store_host_end))
    }
}

impl Records {
    fn bytes(&self) -> PyResult<&[u8]> {
        lasting_bytes_of(&self.buffer)
    }

    fn record(&self, number: usize) -> PyResult<Record> {
        let bytes = self.bytes()?;
        let found = self.starts.get(number).and_then(|&start| Record::parse(bytes, start as usize));
        found.ok_or_else(|| no_record(number as i64))
    }

    fn starts_of(&self, py: Python<'_>, numbers: &PyBuffer<i64>) -> PyResult<Vec<i64>> {
        let start = |&number: &i64| {
            let start = usize::try_from(number).ok().and_then(|number| self.starts.get(number));
            start.copied().ok_or_else(|| no_record(number))
        };
        numbers.to_vec(py)?.iter().map(start).collect()
    }
}

fn no_record(number: i64) -> PyErr {
    PyValueError::new_err(format!("no record {number}"))
}

fn named(names: &[&str], field: &str) -> PyResult<usize> {
    let number = names.iter().position(|name| *name == field);
    number.ok_or_else(|| PyValueError::new_err(format!("no field {field}")))
}

fn block(py: Python<'_>, values: impl Into<Block>) -> PyResult<Py<Block>> {
    Py::new(py, values.into())
}

fn column(py: Python<'_>, make: impl FnOnce() -> Result<Binary, TooLarge> + Send) -> PyResult<Column> {
    parts(py, py.detach(make).map_err(too_large)?)
}

fn parts(py: Python<'_>, column: Binary) -> PyResult<Column> {
    let validity = (column.nulls > 0).then(|| block(py, column.validity)).transpose()?;
    Ok((validity, block(py, column.offsets)?, block(py, column.data)?, column.nulls))
}

fn too_large(_: TooLarge) -> PyErr {
    PyOverflowError::new_err("a column of more than 2 GiB")
}
