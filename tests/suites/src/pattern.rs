//! The content of messages: bytes that follow from a seed, so that a receiver knows each of them; and lists of lengths.

/// The byte that receive buffers are filled with before a message comes. Bytes behind the message must still be this.
pub const GUARD: u8 = 0xEE;

/// The bytes of the message with this seed. Two seeds, or two places, give different words.
pub fn fill(seed: u64, bytes: &mut [u8]) {
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        let word = word(seed, at as u64).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Returns the bytes in a new vector.
pub fn message(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(seed, &mut bytes);
    bytes
}

/// The first byte that is not as [`fill`] made it, or behind `len` is not [`GUARD`].
pub fn first_wrong(seed: u64, len: usize, bytes: &[u8]) -> Option<usize> {
    let (message, rest) = bytes.split_at(len.min(bytes.len()));
    for (at, chunk) in message.chunks(8).enumerate() {
        let right = word(seed, at as u64).to_le_bytes();
        if *chunk != right[..chunk.len()] {
            let within = chunk.iter().zip(right).position(|(&is, should)| is != should)?;
            return Some(8 * at + within);
        }
    }
    rest.iter().position(|&byte| byte != GUARD).map(|at| message.len() + at)
}

fn word(seed: u64, at: u64) -> u64 {
    let mixed = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}

/// Reads `0-200,4096,3x1048576`: ranges, single lengths, repeated lengths. A dash alone is the empty list.
pub fn lengths(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| *part != "-") {
        if let Some((times, len)) = part.split_once('x') {
            let (times, len) = (times.parse().ok()?, len.parse().ok()?);
            all.extend(std::iter::repeat_n::<usize>(len, times));
        } else if let Some((first, last)) = part.split_once('-') {
            all.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
        } else {
            all.push(part.parse().ok()?);
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_a_wrong_byte_at_any_offset() {
        for len in [0, 1, 7, 8, 9, 100] {
            let mut bytes = message(3, len);
            bytes.extend([GUARD; 5]);
            assert_eq!(first_wrong(3, len, &bytes), None);
            for at in 0..bytes.len() {
                bytes[at] ^= 1;
                assert_eq!(first_wrong(3, len, &bytes), Some(at));
                bytes[at] ^= 1;
            }
        }
    }

    #[test]
    fn parses_lists_of_lengths() {
        assert_eq!(lengths("0-3,7,2x9"), Some(vec![0, 1, 2, 3, 7, 9, 9]));
        assert_eq!(lengths("-"), Some(vec![]));
        assert_eq!(lengths("a"), None);
    }
}
