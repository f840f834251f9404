//! Selects units of a consume queue by their tags codes (`gantrymq/store/collect.py`).

pub const UNIT_SIZE: usize = 20;
pub const SIZE_AT: usize = 8;
const TAGS_CODE_AT: usize = 12;

/// Returns the unit of a record.
pub fn unit(physical_offset: i64, size: i32, tags_code: i64) -> [u8; UNIT_SIZE] {
    let mut unit = [0; UNIT_SIZE];
    unit[..SIZE_AT].copy_from_slice(&physical_offset.to_be_bytes());
    unit[SIZE_AT..TAGS_CODE_AT].copy_from_slice(&size.to_be_bytes());
    unit[TAGS_CODE_AT..].copy_from_slice(&tags_code.to_be_bytes());
    unit
}

/// Returns the indexes of the first `most` units with one of these tags codes, and these units. `codes` must be sorted.
pub fn with_codes(units: &[u8], codes: &[i64], most: usize) -> (Vec<usize>, Vec<u8>) {
    let (mut numbers, mut found) = (Vec::new(), Vec::new());
    for (number, unit) in units.chunks_exact(UNIT_SIZE).enumerate() {
        let code = unit[TAGS_CODE_AT..].try_into().map_or(0, i64::from_be_bytes);
        if codes.binary_search(&code).is_ok() {
            numbers.push(number);
            found.extend_from_slice(unit);
            if numbers.len() == most {
                break;
            }
        }
    }
    (numbers, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_of_the_codes_are_found() {
        let unit = |code: i64| [&[9; 12][..], &code.to_be_bytes()].concat();
        let units: Vec<u8> = [7, -1, 0, 7].into_iter().flat_map(unit).collect();
        let (numbers, found) = with_codes(&units, &[-1, 7], 9);
        assert_eq!((numbers, found), (vec![0, 1, 3], [&units[..40], &units[60..]].concat()));
        assert_eq!(with_codes(&units, &[-1, 7], 2), (vec![0, 1], units[..40].to_vec()));
        assert_eq!(with_codes(&units[..79], &[0, 7], 9).0, [0, 2]);
        assert_eq!(with_codes(&units, &[], 9).0.len(), 0);
    }
}
