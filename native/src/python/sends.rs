//! Plain sends for Python: `gantrymq/broker/plain_sends.py`.

use std::collections::HashMap;
use std::sync::atomic::{Ordering, compiler_fence};

use memchr::memmem::Finder;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::guard::guarded;
use super::memory::{cells_of, put};
use crate::batch::{Common, Message, Place, Placed};
use crate::record::STORE_TIMESTAMP_AT_V4;
use crate::sends::{self, Answers, Cutter, Parts, is_sure};

/// So many headers are known at most, none of which is longer: then they are learned anew. See `send_request.py`.
const MOST_KNOWN: usize = 4096;
const LONGEST_KEY: usize = 1024;
const MAX_PROPERTIES_LENGTH: usize = i16::MAX as usize;
/// Size and magic number of a record.
const RECORD_HEAD: usize = 8;
const UNIQUE_KEY: &[u8] = b"UNIQ_KEY\x01";

/// Answers, how many, how many bytes are dealt with, the queues that have got messages, whether `allow` may be told.
type Stored<'py> = (Bound<'py, PyBytes>, usize, usize, Bound<'py, PyList>, bool);

/// What a header means, as Python has said.
struct Target {
    topic: Vec<u8>,
    queue_id: i32,
    sys_flag: i32,
    flag: i32,
    is_batch: bool,
    queue: Py<PyAny>,
}

/// A header that isn't known, and what was cut out of it.
struct Unknown {
    key: Vec<u8>,
    opaque: i32,
    born_timestamp: i64,
    properties: Vec<u8>,
}

/// A queue's place and room during one call.
struct OpenQueue<'py> {
    queue: Bound<'py, PyAny>,
    mapping: PyBuffer<u8>,
    position: usize,
    limit: usize,
    max_offset: i64,
}

impl<'py> OpenQueue<'py> {
    /// None where it has no mapping.
    fn open(queue: &Bound<'py, PyAny>) -> PyResult<Option<OpenQueue<'py>>> {
        let mapping = queue.getattr("mapping")?;
        if mapping.is_none() {
            return Ok(None);
        }
        Ok(Some(OpenQueue {
            queue: queue.clone(),
            mapping: mapping.extract()?,
            position: queue.getattr("position")?.extract()?,
            limit: queue.getattr("limit")?.extract()?,
            max_offset: queue.getattr("max_offset")?.extract()?,
        }))
    }
}

/// The log's place and room during one call.
struct OpenLog {
    mapping: PyBuffer<u8>,
    base: i64,
    position: i64,
    limit: i64,
}

impl OpenLog {
    /// None where it has no mapping.
    fn open(log: &Bound<'_, PyAny>) -> PyResult<Option<OpenLog>> {
        let mapping = log.getattr("mapping")?;
        if mapping.is_none() {
            return Ok(None);
        }
        Ok(Some(OpenLog {
            mapping: mapping.extract()?,
            base: log.getattr("base")?.extract()?,
            position: log.getattr("position")?.extract()?,
            limit: log.getattr("limit")?.extract()?,
        }))
    }

    /// Writes whole records at the log's end, as `CommitLog.write`: the head of the first comes last, without which the
    /// log ends before it. False where they don't fit.
    fn write(&self, py: Python<'_>, records: &[u8]) -> PyResult<bool> {
        let Some((head, rest)) = records.split_at_checked(RECORD_HEAD) else { return Ok(false) };
        let Ok(start) = usize::try_from(self.position - self.base) else { return Ok(false) };
        let cells = cells_of(&self.mapping, py)?;
        let is_there = put(cells, start + RECORD_HEAD, rest);
        // Who kills the process sees memory as it was written, if the compiler keeps to the order.
        compiler_fence(Ordering::SeqCst);
        Ok(is_there && put(cells, start, head))
    }
}

/// What is looked for in frames.
struct Finders {
    cutter: Cutter,
    /// Sends with any of these among their properties are Python's, but those in which this follows each time.
    odd: Vec<(Finder<'static>, Option<Vec<u8>>)>,
    /// Batches with this among the properties of a message are, too.
    odd_in_batch: Finder<'static>,
    further_key: Finder<'static>,
}

impl Finders {
    fn has_key(&self, properties: &[u8]) -> bool {
        properties.starts_with(UNIQUE_KEY) || self.further_key.find(properties).is_some()
    }

    fn is_odd(&self, properties: &[u8]) -> bool {
        self.odd.iter().any(|(odd, usual)| match usual {
            None => odd.find(properties).is_some(),
            Some(usual) => {
                odd.find_iter(properties).any(|at| !properties[at + odd.needle().len()..].starts_with(usual))
            }
        })
    }
}

/// The sends that it was told the meaning of, and how to store and answer them. It knows bytes, and no rule.
#[pyclass]
pub struct PlainSends {
    known: HashMap<Vec<u8>, Target>,
    /// What the last call has ended before.
    unknown: Option<Unknown>,
    /// Elsewhere, as they have vectors of 32 bytes in them, for which Python's memory isn't aligned.
    finders: Box<Finders>,
    /// What each message's properties end with.
    own_properties: Vec<u8>,
    store_host: Vec<u8>,
    most_body: usize,
    most_messages: usize,
    answers: Answers,
    parts: Parts,
    placed: Placed,
}

// As Python aligns its objects.
const _: () = assert!(align_of::<PlainSends>() <= 16);

#[pymethods]
impl PlainSends {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        odd: Vec<(Vec<u8>, Option<Vec<u8>>)>,
        odd_in_batch: &[u8],
        own_properties: Vec<u8>,
        store_host: Vec<u8>,
        most: (usize, usize),
        answer_host: Vec<u8>,
        binary_answer: [Vec<u8>; 2],
        json_answer: [Vec<u8>; 5],
    ) -> PlainSends {
        PlainSends {
            known: HashMap::new(),
            unknown: None,
            finders: Box::new(Finders {
                cutter: Cutter::default(),
                odd: odd.into_iter().map(|(bytes, usual)| (Finder::new(&bytes).into_owned(), usual)).collect(),
                odd_in_batch: Finder::new(odd_in_batch).into_owned(),
                further_key: Finder::new(b"\x02UNIQ_KEY\x01"),
            }),
            own_properties,
            store_host,
            most_body: most.0,
            most_messages: most.1,
            answers: Answers { host: answer_host, binary: binary_answer, json: json_answer },
            parts: Parts::default(),
            placed: Placed::default(),
        }
    }

    /// What the header means that the last call has ended before; false where it can't be kept. Python has read these
    /// values in it.
    #[allow(clippy::too_many_arguments)]
    fn allow(
        &mut self,
        opaque: i32,
        born_timestamp: i64,
        properties: &[u8],
        topic: Vec<u8>,
        queue_id: i32,
        sys_flag: i32,
        flag: i32,
        is_batch: bool,
        queue: Py<PyAny>,
    ) -> bool {
        let Some(unknown) = self.unknown.take() else { return false };
        let is_it = (unknown.opaque, unknown.born_timestamp, unknown.properties.as_slice())
            == (opaque, born_timestamp, properties);
        // Nobody can tell empty properties from none; those of a batch aren't stored, and may be either.
        if properties.is_empty() && !is_batch {
            return false;
        }
        if !is_it || unknown.key.len() > LONGEST_KEY || !is_sure(&unknown.key) {
            return false;
        }
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.insert(unknown.key, Target { topic, queue_id, sys_flag, flag, is_batch, queue });
        true
    }

    /// Nothing is known any more.
    fn revoke(&mut self) {
        self.known.clear();
        self.unknown = None;
    }

    fn __len__(&self) -> usize {
        self.known.len()
    }

    /// Stores the messages of the frames that `data` begins with, as far as they are known, plain, whole and have room.
    ///
    /// Returns the answers, how many there are, how many bytes are dealt with, the queues that have got messages, and
    /// whether `allow` may be told of the frame that follows.
    fn handle<'py>(
        &mut self,
        py: Python<'py>,
        data: &[u8],
        log: &Bound<'py, PyAny>,
        now_ms: i64,
        born_host: &[u8],
    ) -> PyResult<Stored<'py>> {
        guarded(|| self.stored(py, data, log, now_ms, born_host))
    }
}

impl PlainSends {
    /// `handle`. Whatever ends it, log and queues are as before, or all is stored that is answered.
    fn stored<'py>(
        &mut self,
        py: Python<'py>,
        data: &[u8],
        log: &Bound<'py, PyAny>,
        now_ms: i64,
        born_host: &[u8],
    ) -> PyResult<Stored<'py>> {
        self.unknown = None;
        let mut open: Option<OpenLog> = None;
        let mut queues: Vec<OpenQueue<'py>> = Vec::new();
        let mut answers = Vec::new();
        let mut count = 0;
        let mut at = 0;
        while let Some(send) = self.finders.cutter.cut(data, at, &mut self.parts) {
            let Some(target) = self.known.get(&self.parts.key) else {
                self.unknown = Some(Unknown {
                    key: self.parts.key.clone(),
                    opaque: send.opaque,
                    born_timestamp: send.born_timestamp,
                    properties: self.parts.properties.clone(),
                });
                break;
            };
            let properties = &mut self.parts.properties;
            if properties.last() != Some(&crate::properties::END) {
                properties.push(crate::properties::END);
            }
            if send.body.len() > self.most_body || self.finders.is_odd(properties) {
                break;
            }
            if !target.is_batch {
                if !self.finders.has_key(properties) {
                    break;
                }
                properties.extend_from_slice(&self.own_properties);
            }
            if properties.len() > MAX_PROPERTIES_LENGTH {
                break;
            }
            let log = match &mut open {
                Some(log) => log,
                None => match OpenLog::open(log)? {
                    Some(found) => open.insert(found),
                    None => break,
                },
            };
            let number = match queues.iter().position(|queue| queue.queue.is(&target.queue)) {
                Some(number) => number,
                None => match OpenQueue::open(target.queue.bind(py))? {
                    Some(found) => {
                        queues.push(found);
                        queues.len() - 1
                    }
                    None => break,
                },
            };
            let queue = &mut queues[number];
            // Else a batch would be encoded here and once more in Python.
            if log.position + send.body.len() as i64 > log.limit || queue.position >= queue.limit {
                break;
            }
            let common = Common {
                queue_id: target.queue_id,
                sys_flag: target.sys_flag,
                born_timestamp: send.born_timestamp,
                born_host,
                store_host: &self.store_host,
                reconsume_times: 0,
                topic: &target.topic,
            };
            let placed = &mut self.placed;
            placed.begin(Place {
                queue_offset: queue.max_offset,
                physical_offset: log.position,
                store_timestamp: now_ms,
                timestamp_at: STORE_TIMESTAMP_AT_V4,
            });
            let is_encoded = if target.is_batch {
                placed.add_batch(&common, send.body, self.most_messages, &self.finders.odd_in_batch)
            } else {
                placed.add(&common, &Message { flag: target.flag, body: send.body, properties, end: 0 })
            };
            if is_encoded.is_none() {
                break;
            }
            let end = log.position + placed.data.len() as i64;
            if end > log.limit || queue.position + placed.units.len() > queue.limit {
                break;
            }
            // As `MessageWriter.append`: units of no record do no harm.
            if !put(cells_of(&queue.mapping, py)?, queue.position, &placed.units) || !log.write(py, &placed.data)? {
                break;
            }
            let place = sends::Place {
                physical_offsets: &placed.offsets,
                queue_id: target.queue_id,
                queue_offset: queue.max_offset,
            };
            self.answers.add(&mut answers, &self.parts.key, send.opaque, &place);
            queue.position += placed.units.len();
            queue.max_offset += placed.offsets.len() as i64;
            log.position = end;
            count += 1;
            at = send.end;
        }
        // All that needs memory comes before anybody sees a message.
        let answers = PyBytes::new(py, &answers);
        let touched: &[OpenQueue<'py>] = if at > 0 { &queues } else { &[] };
        let told = PyList::new(py, touched.iter().map(|queue| &queue.queue))?;
        if let Some(open) = open.filter(|_| at > 0) {
            for queue in touched {
                queue.queue.setattr("position", queue.position)?;
                queue.queue.setattr("max_offset", queue.max_offset)?;
            }
            // It comes last: it says that units and records are whole.
            log.setattr("position", open.position)?;
            log.setattr("store_timestamp", now_ms)?;
        }
        Ok((answers, count, at, told, self.unknown.is_some()))
    }
}
