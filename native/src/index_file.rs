//! Writes entries to a file of the key index. `gantrymq/store/index_file.py` defines the layout.

use std::cell::Cell;

use crate::keys::Entry;

const HEADER_SIZE: usize = 40;
const ENTRY_SIZE: usize = 20;

/// A mapped index file and its number of slots.
pub struct IndexFile<'a> {
    pub mapping: &'a [Cell<u8>],
    pub hash_slots: usize,
}

/// A position is outside the file.
#[derive(Debug, PartialEq)]
pub struct Outside;

impl IndexFile<'_> {
    /// Writes entries, the first one as number `number`. Returns the number of slots that were empty before. `begin` is
    /// the file's begin timestamp, which entry 1 sets.
    pub fn put(&self, entries: &[Entry], mut number: i32, mut begin: i64) -> Result<usize, Outside> {
        let entries_at =
            self.hash_slots.checked_mul(4).and_then(|size| size.checked_add(HEADER_SIZE)).ok_or(Outside)?;
        let mut new_slots = 0;
        for entry in entries {
            let slot_at = HEADER_SIZE + place(entry.hash)?.checked_rem(self.hash_slots).ok_or(Outside)? * 4;
            let mut previous = i32::from_be_bytes(self.get(slot_at)?);
            if !(0 < previous && previous < number) {
                previous = 0;
                new_slots += 1;
            }
            // The first entry is relative to the end of the previous file, as in Java.
            let seconds = if begin > 0 { entry.timestamp.saturating_sub(begin).max(0) / 1000 } else { 0 };
            let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
            let at = place(number)?.checked_mul(ENTRY_SIZE).and_then(|at| at.checked_add(entries_at)).ok_or(Outside)?;
            self.set(at, entry.hash.to_be_bytes())?;
            self.set(at + 4, entry.physical_offset.to_be_bytes())?;
            self.set(at + 12, seconds.to_be_bytes())?;
            self.set(at + 16, previous.to_be_bytes())?;
            self.set(slot_at, number.to_be_bytes())?;
            if number == 1 {
                begin = entry.timestamp;
            }
            number = number.wrapping_add(1);
        }
        Ok(new_slots)
    }

    fn get(&self, at: usize) -> Result<[u8; 4], Outside> {
        let cells = self.mapping.get(at..at + 4).ok_or(Outside)?;
        Ok(std::array::from_fn(|i| cells[i].get()))
    }

    fn set<const N: usize>(&self, at: usize, bytes: [u8; N]) -> Result<(), Outside> {
        let cells = at.checked_add(N).and_then(|end| self.mapping.get(at..end)).ok_or(Outside)?;
        for (cell, byte) in cells.iter().zip(bytes) {
            cell.set(byte);
        }
        Ok(())
    }
}

fn place(number: i32) -> Result<usize, Outside> {
    usize::try_from(number).map_err(|_| Outside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_slot_are_a_chain() {
        let mut bytes = [0; HEADER_SIZE + 4 * 4 + 6 * ENTRY_SIZE];
        let file = IndexFile { mapping: Cell::from_mut(&mut bytes[..]).as_slice_of_cells(), hash_slots: 4 };
        let entry = |hash: i32, timestamp: i64| Entry { hash, physical_offset: i64::from(hash) * 100, timestamp };
        assert_eq!(file.put(&[entry(1, 10_000), entry(5, 12_500), entry(2, 9_000)], 1, 0), Ok(2));
        assert_eq!(file.put(&[entry(9, i64::MAX)], 4, 10_000), Ok(0));
        assert_eq!(file.put(&[entry(1, 0)], 6, 10_000), Err(Outside));
        assert_eq!(bytes[HEADER_SIZE..HEADER_SIZE + 16], [0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 0]);
        let entries: Vec<&[u8]> = bytes[HEADER_SIZE + 16..].chunks(ENTRY_SIZE).collect();
        assert_eq!(entries[1], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(entries[2], [0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 1, 0xF4, 0, 0, 0, 2, 0, 0, 0, 1]);
        assert_eq!(entries[3][12..], [0; 8]);
        assert_eq!(entries[4][12..], [0x7F, 0xFF, 0xFF, 0xFF, 0, 0, 0, 2]);
    }

    #[test]
    fn places_near_the_end_of_the_numbers_are_outside() {
        let mut bytes = [0; HEADER_SIZE + 4 * 4 + 6 * ENTRY_SIZE];
        let mapping = Cell::from_mut(&mut bytes[..]).as_slice_of_cells();
        let entry = Entry { hash: 1, physical_offset: 0, timestamp: 0 };
        for (hash_slots, number) in [(usize::MAX, 1), (usize::MAX / 4, 1), (4, i32::MAX), (4, i32::MIN)] {
            assert_eq!(IndexFile { mapping, hash_slots }.put(&[entry], number, 0), Err(Outside));
        }
    }
}
