//! Message bytes as a record carries them: in words.

/// Copies message words, as they came in a record, into bytes; as many as there is room for.
#[inline]
pub fn copy_words(words: &[u32], into: &mut [u8]) {
    let (whole, rest) = into.as_chunks_mut::<4>();
    for (bytes, word) in whole.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    if let Some(word) = words.get(whole.len()) {
        rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_fill_bytes_of_any_length() {
        let words = [u32::from_le_bytes(*b"abcd"), u32::from_le_bytes(*b"efgh")];
        for len in 0..=8 {
            let mut bytes = vec![0; len];
            copy_words(&words, &mut bytes);
            assert_eq!(bytes, b"abcdefgh"[..len]);
        }
    }
}
