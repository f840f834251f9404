//! Parses the records of a pull response for a client (`gantrymq/client/pulled_messages.py`).

use crate::record::Record;

/// The fields that the records of a queue share, and the queue offset before the first record.
pub struct Queue<'a> {
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub last: i64,
}

/// Returns the consecutive records in `buffer` from `at` on. Stops before a record that is invalid, belongs to another
/// queue, or does not follow the previous one.
pub fn records(buffer: &[u8], mut at: usize, queue: &Queue<'_>) -> Vec<Record> {
    let mut found = Vec::new();
    let mut last = queue.last;
    while let Some(record) = Record::parse(buffer, at) {
        if record.queue_offset <= last
            || record.queue_id != queue.queue_id
            || &buffer[record.topic_at..record.topic_end] != queue.topic
            || record.has_wrong_crc(buffer)
        {
            break;
        }
        last = record.queue_offset;
        at = record.end;
        found.push(record);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::encoded;

    #[test]
    fn it_ends_before_what_is_not_of_the_queue() {
        let mut buffer = [encoded(b"one", b"A\x01b\x02"), encoded(b"two", b"")].concat();
        let size = encoded(b"one", b"A\x01b\x02").len();
        buffer[size + 27] += 1;
        let queue = Queue { topic: b"orders", queue_id: 3, last: 10 };
        let count = |buffer: &[u8], queue: &Queue<'_>| records(buffer, 0, queue).len();
        assert_eq!(count(&buffer, &queue), 2);
        assert_eq!(records(&buffer, size, &queue).len(), 1);
        assert_eq!(records(&buffer, usize::MAX, &queue).len(), 0);
        assert_eq!(count(&buffer, &Queue { last: 11, ..queue }), 0);
        assert_eq!(count(&buffer, &Queue { queue_id: 2, ..queue }), 0);
        assert_eq!(count(&buffer, &Queue { topic: b"order", ..queue }), 0);
        assert_eq!(count(&buffer[..buffer.len() - 1], &queue), 1);
        let mut same = buffer.clone();
        same[size + 27] -= 1;
        assert_eq!(count(&same, &queue), 1);
        buffer[size + 8] ^= 1;
        assert_eq!(count(&buffer, &queue), 1);
    }
}
