//! A cache of limited size for the headers of plain sends (`gantrymq/broker/send/fast_path.py`).

use std::collections::HashMap;

/// Memory of an entry in addition to its data: the entry of the table and its allocations.
const ENTRY_SIZE: usize = 256;

/// Values by header, in two generations of at most half the size each. If the younger one is full, the older one is
/// dropped. The order of use would cost each lookup a write.
pub struct HeaderCache<T> {
    young: HashMap<Vec<u8>, T>,
    old: HashMap<Vec<u8>, T>,
    young_size: usize,
    most_size: usize,
}

impl<T> HeaderCache<T> {
    /// Returns an empty cache of at most `most_size` bytes.
    pub fn new(most_size: usize) -> HeaderCache<T> {
        HeaderCache { young: HashMap::new(), old: HashMap::new(), young_size: 0, most_size }
    }

    pub fn get(&self, header: &[u8]) -> Option<&T> {
        self.young.get(header).or_else(|| self.old.get(header))
    }

    /// Adds a header that is not in the cache. The memory behind `value` has `value_size` bytes.
    pub fn insert(&mut self, header: Vec<u8>, value: T, value_size: usize) {
        let size = header.len() + value_size + ENTRY_SIZE;
        if self.young_size + size > self.most_size / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_size = 0;
        }
        self.young_size += size;
        self.young.insert(header, value);
    }

    pub fn clear(&mut self) {
        *self = HeaderCache::new(self.most_size);
    }

    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_half_always_stays_and_the_size_is_limited() {
        let mut cache = HeaderCache::new(20 * (ENTRY_SIZE + 10));
        for number in 0..100_u8 {
            assert_eq!(cache.get(&[number; 6]), None);
            cache.insert(vec![number; 6], number, 4);
            assert!(cache.len() <= 20);
            for last in number.saturating_sub(9)..=number {
                assert_eq!(cache.get(&[last; 6]), Some(&last));
            }
        }
        assert!(cache.len() > 10);
        assert_eq!(cache.get(&[70; 6]), None);
        cache.clear();
        assert_eq!((cache.len(), cache.get(&[99; 6])), (0, None));
        cache.insert(vec![0; 100_000], 1, 0);
        assert_eq!(cache.len(), 1);
    }
}
