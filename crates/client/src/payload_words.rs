//! Message bytes as a record carries them: in words.

/// Copies message words, as they came in a record, into bytes; as many as there is room for.
#[inline]
pub fn copy_words(words: &[u32], into: &mut [u8]) {
    // For eight bytes, which many messages have, a call to copy them would take longer than the copy.
    if let (Ok(eight), [low, high, ..]) = (<&mut [u8; 8]>::try_from(&mut *into), words) {
        *eight = (u64::from(*low) | u64::from(*high) << 32).to_le_bytes();
        return;
    }
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
