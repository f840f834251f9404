//! Encodes rows of Arrow columns as batch bodies for Python: `gantrymq/arrow/row_messages.py`.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::memory::lasting_bytes_of;
use crate::rows::{self, Maps, Most, Rows, Sequence, Values, batches};

/// pyarrow's buffers contain signed bytes.
///
/// An Arrow array of bytes, texts or maps: validity or None, offsets, data, and index of its first value. The data is
/// None for maps, and for an array without any bytes.
#[derive(FromPyObject)]
pub struct Array(Option<PyBuffer<i8>>, PyBuffer<i8>, Option<PyBuffer<i8>>, usize);

impl Array {
    fn values(&self) -> PyResult<Values<'_>> {
        let Array(validity, offsets, data, first) = self;
        Ok(Values {
            validity: validity.as_ref().map(|bits| lasting_bytes_of(bits)).transpose()?,
            offsets: lasting_bytes_of(offsets)?,
            data: data.as_ref().map_or(Ok(&[] as &[u8]), |data| lasting_bytes_of(data))?,
            first: *first,
        })
    }
}

/// Number of messages, batch, checksum of all rows up to the last one.
type Batch<'py> = (usize, Bound<'py, PyBytes>, u32);

/// Returns the batches of `count` rows, in order. Returns None if a row can't be a message of a batch, or if Python
/// must report an error. `maps` has all properties: maps, names, values, and the names to omit.
#[pyfunction]
#[pyo3(signature = (bodies, count, singles, maps, id_prefix, first_row, key_head, first_key, sequence, most, /))]
#[allow(clippy::too_many_arguments)]
pub fn batch_bodies<'py>(
    py: Python<'py>,
    bodies: Array,
    count: usize,
    singles: Vec<(String, Array)>,
    maps: Option<(Array, Array, Array, Vec<String>)>,
    id_prefix: &str,
    first_row: u64,
    key_head: &str,
    first_key: u16,
    sequence: Option<(&[u8], u32)>,
    most: (usize, usize, usize),
) -> PyResult<Option<Vec<Batch<'py>>>> {
    let singles = singles
        .iter()
        .map(|(name, column)| Ok((name.as_bytes().to_vec(), column.values()?)))
        .collect::<PyResult<Vec<_>>>()?;
    let dropped: Vec<Vec<u8>> =
        maps.iter().flat_map(|(.., dropped)| dropped).map(|name| name.as_bytes().to_vec()).collect();
    let maps = match &maps {
        Some((all, names, values, _)) => {
            Some(Maps { all: all.values()?, names: names.values()?, values: values.values()?, dropped: &dropped })
        }
        None => None,
    };
    let rows = Rows {
        bodies: bodies.values()?,
        singles: &singles,
        maps,
        id_prefix: id_prefix.as_bytes(),
        first_row,
        key_head: key_head.as_bytes(),
        first_key,
        sequence: sequence.map(|(target, chain)| Sequence { target, chain }),
    };
    let most = Most { properties: most.0, messages: most.1, bytes: most.2 };
    let found = py.detach(|| batches(&rows, count, &most)).ok();
    let of_python = |batch: &rows::Batch| (batch.messages, PyBytes::new(py, &batch.data), batch.chain);
    Ok(found.map(|found| found.iter().map(of_python).collect()))
}
