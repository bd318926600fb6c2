//! Addresses at which no program of this host uses streams, as far as one connection has shown. Later connections to them are not shown for a
//! while. Addresses are remembered only where the listed page names all of them, because an exact page says it better.

use core::hash::{Hash as _, Hasher as _};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::hash::DefaultHasher;

use crate::kernel;

/// Milliseconds for which an address is remembered.
const REMEMBERED_MS: u64 = 60_000;

/// Addresses have one of these places each. A later one takes the place of an earlier one.
const PLACES: usize = 256;

/// The upper half of a place is that of a mark, the lower half the time in units of [`UNIT_MS`].
static PLACES_OF_MARKS: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

const UNIT_MS: u64 = 256;

/// Returns the mark of an address.
pub(crate) fn mark(address: SocketAddr) -> u64 {
    let mut hasher = DefaultHasher::new();
    address.hash(&mut hasher);
    hasher.finish()
}

fn place(mark: u64) -> &'static AtomicU64 {
    &PLACES_OF_MARKS[mark as usize % PLACES]
}

fn upper(word: u64) -> u64 {
    word >> 32
}

/// Remembers an address by its mark.
pub(crate) fn add(mark: u64) {
    add_at(mark, kernel::now_ms());
}

/// Returns whether an address is remembered.
pub(crate) fn has(address: SocketAddr) -> bool {
    has_at(mark(address), kernel::now_ms())
}

fn add_at(mark: u64, now_ms: u64) {
    let time = (now_ms / UNIT_MS) & u64::from(u32::MAX);
    place(mark).store(upper(mark) << 32 | time, Ordering::Relaxed);
}

fn has_at(mark: u64, now_ms: u64) -> bool {
    let word = place(mark).load(Ordering::Relaxed);
    let age = ((now_ms / UNIT_MS) as u32).wrapping_sub(word as u32);
    word != 0 && upper(word) == upper(mark) && u64::from(age) * UNIT_MS < REMEMBERED_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_remembered_for_a_minute() {
        let [here, there] = ["10.0.0.1:80", "10.0.0.1:81"].map(|text| mark(text.parse().unwrap()));
        assert!(!has_at(here, 0) && !has_at(here, 5_000));
        add_at(here, 1_000_000);
        assert!(has_at(here, 1_000_000) && has_at(here, 1_059_000) && !has_at(there, 1_000_000));
        assert!(!has_at(here, 1_061_000) && !has_at(here, 900_000));
        add_at(there, 1_061_000);
        assert!(has_at(there, 1_061_000) && !has_at(here, 1_061_000));
    }
}
