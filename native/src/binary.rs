//! A column of bytes or texts in Arrow's memory layout: validity bits, 32-bit offsets, data.

/// The data exceeds the size of an Arrow array with 32-bit offsets.
#[derive(Debug, PartialEq)]
pub struct TooLarge;

#[derive(Debug, Default)]
pub struct Binary {
    pub offsets: Vec<i32>,
    pub data: Vec<u8>,
    /// A bit for each value, lowest bit first; empty while no value is null.
    pub validity: Vec<u8>,
    pub nulls: usize,
}

impl Binary {
    pub fn with_capacity(values: usize, bytes: usize) -> Binary {
        let mut offsets = Vec::with_capacity(values + 1);
        offsets.push(0);
        Binary { offsets, data: Vec::with_capacity(bytes), validity: Vec::new(), nulls: 0 }
    }

    pub fn count(&self) -> usize {
        self.offsets.len() - 1
    }

    #[inline]
    pub fn push(&mut self, value: &[u8]) -> Result<(), TooLarge> {
        self.data.extend_from_slice(value);
        self.end_value(true)
    }

    pub fn push_null(&mut self) -> Result<(), TooLarge> {
        self.end_value(false)
    }

    /// Ends a value whose bytes have been added to `data`.
    pub fn end_pushed(&mut self) -> Result<(), TooLarge> {
        self.end_value(true)
    }

    /// Converts the values to texts. Replaces bytes that aren't UTF-8, as Python's `decode(errors="replace")` does.
    pub fn into_texts(self) -> Result<Binary, TooLarge> {
        if self.data.is_ascii() {
            return Ok(self);
        }
        // One by one, because two invalid values can form valid UTF-8 together.
        let mut texts = Binary::with_capacity(self.count(), self.data.len());
        for ends in self.offsets.windows(2) {
            let value = &self.data[ends[0] as usize..ends[1] as usize];
            texts.push(String::from_utf8_lossy(value).as_bytes())?;
        }
        Ok(Binary { validity: self.validity, nulls: self.nulls, ..texts })
    }

    #[inline]
    fn end_value(&mut self, is_valid: bool) -> Result<(), TooLarge> {
        let number = self.count();
        if !is_valid {
            if self.nulls == 0 {
                self.validity = vec![0xFF; number / 8];
                self.validity.push((1_u16 << (number % 8)).wrapping_sub(1) as u8);
            } else if number % 8 == 0 {
                self.validity.push(0);
            }
            self.nulls += 1;
        } else if self.nulls > 0 {
            if number % 8 == 0 {
                self.validity.push(1);
            } else {
                self.validity[number / 8] |= 1 << (number % 8);
            }
        }
        self.offsets.push(i32::try_from(self.data.len()).map_err(|_| TooLarge)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nulls_have_no_bit() {
        for count in 0..40_u32 {
            for pattern in [0, 0b1, 0b10, 0xFF, 0x1_0000, 0x5555_5555, u64::MAX, 1 << (count.max(1) - 1)] {
                let mut column = Binary::with_capacity(0, 0);
                for number in 0..count {
                    if pattern >> number & 1 == 1 { column.push_null() } else { column.push(b"x") }.unwrap();
                }
                let expected: usize = (0..count).filter(|number| pattern >> number & 1 == 1).count();
                assert_eq!(column.nulls, expected);
                if expected == 0 {
                    assert!(column.validity.is_empty());
                    continue;
                }
                assert_eq!(column.validity.len(), count.div_ceil(8) as usize);
                for number in 0..count {
                    let bit = column.validity[number as usize / 8] >> (number % 8) & 1;
                    assert_eq!(u64::from(bit), 1 - (pattern >> number & 1), "{number} of {count}, {pattern:b}");
                }
            }
        }
    }

    #[test]
    fn each_text_is_utf_8_by_itself() {
        let mut column = Binary::with_capacity(0, 0);
        column.push(b"\xC3").unwrap();
        column.push_null().unwrap();
        column.push(b"\xA9x").unwrap();
        let texts = column.into_texts().unwrap();
        assert_eq!(texts.data, "\u{FFFD}\u{FFFD}x".as_bytes());
        assert_eq!((texts.offsets, texts.validity, texts.nulls), (vec![0, 3, 3, 7], vec![0b101], 1));
    }
}
