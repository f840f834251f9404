//! Plain sends for Python: `gantrymq/broker/send/fast_path.py`.

use std::collections::HashMap;
use std::ops::Range;

use memchr::memchr;
use memchr::memmem::Finder;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::guard::guarded;
use super::memory::{cells_of, put};
use crate::batch::{Common, Message, Place, Placed};
use crate::header_cache::HeaderCache;
use crate::record::STORE_TIMESTAMP_AT_V4;
use crate::sends::{self, Answers, Cutter, Parts, is_sure};

/// Maximum size of a cached header.
const LONGEST_KEY: usize = 1024;
const MAX_PROPERTIES_LENGTH: usize = i16::MAX as usize;
const UNIQUE_KEY: &[u8] = b"UNIQ_KEY\x01";

/// Responses, their number by request code, number of handled bytes, queues with new messages, and whether `allow` may
/// register the next header.
type Stored<'py> = (Bound<'py, PyBytes>, Vec<(i32, usize)>, usize, Bound<'py, PyList>, bool);
/// A topic, whether its messages have the marked property, their bytes, and their number by size.
type Taken<'py> = (Bound<'py, PyBytes>, bool, i64, Vec<i64>);

/// The meaning of a header, as Python has registered it.
struct Target {
    topic: Vec<u8>,
    queue_id: i32,
    sys_flag: i32,
    flag: i32,
    is_batch: bool,
    code: i32,
    /// The index of the topic's counts.
    count: usize,
    queue: Py<PyAny>,
}

/// The messages of one topic that were stored since the last `take_counts`.
#[derive(Clone, Default)]
struct Count {
    bytes: i64,
    /// Number of messages by their mean size in a request: one range more than bounds. Empty without messages.
    sizes: Vec<i64>,
}

impl Count {
    fn add(&mut self, messages: i64, bytes: i64, bounds: &[i64]) {
        self.bytes += bytes;
        self.sizes.resize(bounds.len() + 1, 0);
        self.sizes[bounds.partition_point(|&bound| bound < bytes / messages)] += messages;
    }
}

/// A header that isn't registered, and the parts that were removed from it.
struct Unknown {
    key: Vec<u8>,
    opaque: i32,
    born_timestamp: i64,
    properties: Vec<u8>,
}

/// The position and free space of a queue during one call, and the start of this call's units.
struct OpenQueue<'py> {
    queue: Bound<'py, PyAny>,
    mapping: PyBuffer<u8>,
    begin: usize,
    position: usize,
    limit: usize,
    max_offset: i64,
}

impl<'py> OpenQueue<'py> {
    /// Returns None if the queue has no mapping.
    fn open(queue: &Bound<'py, PyAny>) -> PyResult<Option<OpenQueue<'py>>> {
        let mapping = queue.getattr("mapping")?;
        if mapping.is_none() {
            return Ok(None);
        }
        let position = queue.getattr("position")?.extract()?;
        Ok(Some(OpenQueue {
            queue: queue.clone(),
            mapping: mapping.extract()?,
            begin: position,
            position,
            limit: queue.getattr("limit")?.extract()?,
            max_offset: queue.getattr("max_offset")?.extract()?,
        }))
    }

    /// Removes the units of this call.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        put(cells_of(&self.mapping, py)?, self.begin, &vec![0; self.position - self.begin]);
        Ok(())
    }
}

/// The searches in frames.
struct Finders {
    cutter: Cutter,
    /// Python handles sends with any of these properties, unless each occurrence is followed by the given bytes.
    odd: Vec<(Finder<'static>, Option<Vec<u8>>)>,
    /// Python also handles batches with this property in a message.
    odd_in_batch: Finder<'static>,
    further_key: Finder<'static>,
    /// The property whose messages are counted separately, after a separator.
    marked: Finder<'static>,
}

impl Finders {
    /// Returns the range of the unique id in properties that end with a separator; None without one.
    fn unique_id(&self, properties: &[u8]) -> Option<Range<usize>> {
        let start = match properties.starts_with(UNIQUE_KEY) {
            true => UNIQUE_KEY.len(),
            false => self.further_key.find(properties)? + 1 + UNIQUE_KEY.len(),
        };
        Some(start..start + memchr(crate::properties::END, &properties[start..])?)
    }

    fn is_marked(&self, properties: &[u8]) -> bool {
        properties.starts_with(&self.marked.needle()[1..]) || self.marked.find(properties).is_some()
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

/// The registered headers, and the data to store their messages and to encode responses. It contains no rules.
#[pyclass]
pub struct PlainSends {
    known: HeaderCache<Target>,
    /// The header at which the last call stopped.
    unknown: Option<Unknown>,
    /// Boxed, because they contain vectors of 32 bytes, for which Python's memory isn't aligned.
    finders: Box<Finders>,
    /// The end of the properties of each message.
    own_properties: Vec<u8>,
    store_host: Vec<u8>,
    most_body: usize,
    most_messages: usize,
    answers: Answers,
    /// Upper bounds of the sizes by which requests are counted. If empty, nothing is counted.
    size_bounds: Vec<i64>,
    /// The index of each topic in `counts`, which has the messages without and with the marked property.
    topics: HashMap<Vec<u8>, usize>,
    counts: Vec<[Count; 2]>,
    // The memory is reused.
    parts: Parts,
    placed: Placed,
    records: Vec<u8>,
    /// For each request of a call: index in `counts`, whether it is marked, number of messages and bytes.
    counted: Vec<(usize, bool, i64, i64)>,
}

// The alignment of Python's objects.
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
        most: (usize, usize, usize),
        answer_host: Vec<u8>,
        binary_answer: [Vec<u8>; 2],
        json_answer: [Vec<u8>; 5],
        counting: (Vec<u8>, Vec<i64>),
    ) -> PlainSends {
        PlainSends {
            known: HeaderCache::new(most.2),
            unknown: None,
            finders: Box::new(Finders {
                cutter: Cutter::default(),
                odd: odd.into_iter().map(|(bytes, usual)| (Finder::new(&bytes).into_owned(), usual)).collect(),
                odd_in_batch: Finder::new(odd_in_batch).into_owned(),
                further_key: Finder::new(b"\x02UNIQ_KEY\x01"),
                marked: Finder::new(&[b"\x02", counting.0.as_slice()].concat()).into_owned(),
            }),
            own_properties,
            store_host,
            most_body: most.0,
            most_messages: most.1,
            answers: Answers { host: answer_host, binary: binary_answer, json: json_answer },
            size_bounds: counting.1,
            topics: HashMap::new(),
            counts: Vec::new(),
            parts: Parts::default(),
            placed: Placed::default(),
            records: Vec::new(),
            counted: Vec::new(),
        }
    }

    /// Registers the meaning of the header at which the last call stopped. Returns false if it can't be cached. The
    /// values are those that Python has decoded from the header.
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
        code: i32,
        queue: Py<PyAny>,
    ) -> bool {
        let Some(unknown) = self.unknown.take() else { return false };
        let is_it = (unknown.opaque, unknown.born_timestamp, unknown.properties.as_slice())
            == (opaque, born_timestamp, properties);
        // Empty properties can't be distinguished from missing ones. In a batch this is irrelevant: they aren't stored.
        if properties.is_empty() && !is_batch {
            return false;
        }
        if !is_it || unknown.key.len() > LONGEST_KEY || !is_sure(&unknown.key) {
            return false;
        }
        let count = match self.size_bounds.is_empty() {
            true => 0,
            false => *self.topics.entry(topic.clone()).or_insert_with(|| {
                self.counts.push(Default::default());
                self.counts.len() - 1
            }),
        };
        let size = topic.len();
        let target = Target { topic, queue_id, sys_flag, flag, is_batch, code, count, queue };
        self.known.insert(unknown.key, target, size);
        true
    }

    /// Returns the messages that were stored since the last call, by topic.
    fn take_counts<'py>(&mut self, py: Python<'py>) -> Vec<Taken<'py>> {
        let mut taken = Vec::new();
        for (topic, &number) in &self.topics {
            for (is_marked, count) in [false, true].into_iter().zip(&mut self.counts[number]) {
                if !count.sizes.is_empty() {
                    let Count { bytes, sizes } = std::mem::take(count);
                    taken.push((PyBytes::new(py, topic), is_marked, bytes, sizes));
                }
            }
        }
        taken
    }

    /// Drops all headers and counts. Call `take_counts` first.
    fn revoke(&mut self) {
        self.known.clear();
        self.unknown = None;
        self.topics.clear();
        self.counts.clear();
    }

    fn __len__(&self) -> usize {
        self.known.len()
    }

    /// Stores the messages of the frames at the start of `data`. Stops at a frame that is incomplete, not plain or has
    /// an unknown header, and if no space is left.
    ///
    /// Returns the responses, their number, the number of handled bytes, the queues with new messages, and whether
    /// `allow` may register the header of the next frame.
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
    /// Implements `handle`. If it fails, log and queues are unchanged, or all messages with a response are stored.
    fn stored<'py>(
        &mut self,
        py: Python<'py>,
        data: &[u8],
        log: &Bound<'py, PyAny>,
        now_ms: i64,
        born_host: &[u8],
    ) -> PyResult<Stored<'py>> {
        self.unknown = None;
        self.records.clear();
        self.counted.clear();
        // The end of the log, and the end of its free space.
        let mut open: Option<(i64, i64)> = None;
        let mut queues: Vec<OpenQueue<'py>> = Vec::new();
        let mut answers = Vec::new();
        let mut codes: Vec<(i32, usize)> = Vec::new();
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
            let is_marked = !self.size_bounds.is_empty() && self.finders.is_marked(properties);
            let mut unique_id = 0..0;
            if !target.is_batch {
                match self.finders.unique_id(properties) {
                    Some(found) if Answers::takes(&self.parts.key, &properties[found.clone()]) => unique_id = found,
                    _ => break,
                }
                properties.extend_from_slice(&self.own_properties);
            }
            if properties.len() > MAX_PROPERTIES_LENGTH {
                break;
            }
            let (position, limit) = match &mut open {
                Some(open) => open,
                None => open.insert((log.getattr("position")?.extract()?, log.getattr("limit")?.extract()?)),
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
            // Otherwise a batch would be encoded here and again in Python.
            if *position + send.body.len() as i64 > *limit || queue.position >= queue.limit {
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
                physical_offset: *position,
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
            let end = *position + placed.data.len() as i64;
            if end > *limit || queue.position + placed.units.len() > queue.limit {
                break;
            }
            if !put(cells_of(&queue.mapping, py)?, queue.position, &placed.units) {
                break;
            }
            self.records.extend_from_slice(&placed.data);
            let place = sends::Place {
                physical_offsets: &placed.offsets,
                queue_id: target.queue_id,
                queue_offset: queue.max_offset,
                unique_id: &self.parts.properties[unique_id],
            };
            self.answers.add(&mut answers, &self.parts.key, send.opaque, &place);
            queue.position += placed.units.len();
            queue.max_offset += placed.offsets.len() as i64;
            *position = end;
            match codes.iter_mut().find(|(code, _)| *code == target.code) {
                Some((_, count)) => *count += 1,
                None => codes.push((target.code, 1)),
            }
            if !self.size_bounds.is_empty() {
                self.counted.push((target.count, is_marked, placed.offsets.len() as i64, placed.data.len() as i64));
            }
            at = send.end;
        }
        // All allocations precede the point at which messages become visible.
        let answers = PyBytes::new(py, &answers);
        let touched: &[OpenQueue<'py>] = if at > 0 { &queues } else { &[] };
        let told = PyList::new(py, touched.iter().map(|queue| &queue.queue))?;
        if let Some((position, _)) = open.filter(|_| at > 0) {
            if let Err(e) = log.call_method1("write", (PyBytes::new(py, &self.records),)) {
                queues.iter().try_for_each(|queue| queue.clear(py))?;
                return Err(e);
            }
            for queue in touched {
                queue.queue.setattr("position", queue.position)?;
                queue.queue.setattr("max_offset", queue.max_offset)?;
            }
            // Set last, because it marks units and records as complete.
            log.setattr("position", position)?;
            log.setattr("store_timestamp", now_ms)?;
            for &(count, is_marked, messages, bytes) in &self.counted {
                self.counts[count][usize::from(is_marked)].add(messages, bytes, &self.size_bounds);
            }
        }
        Ok((answers, codes, at, told, self.unknown.is_some()))
    }
}
