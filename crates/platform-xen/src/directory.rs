//! Grants of many pages: lists of references in granted pages (docs/spec/xen.md).
//!
//! ```text
//!  up to 1020 pages           grant ──► leaf: 1020 references ──► pages
//!  more                       grant ──► root: references of leaves ──► leaves ──► pages
//! ```
//!
//! The receiver knows the number of pages before it reads the lists, and with that the number and length of the lists. The contents only
//! confirm this. The mapping side copies each list once and parses the copy, because the granting side can write any value at any time.

use crate::GrantRef;
use crate::kernel::PAGE_BYTES;

/// The number of 32-bit words in a page.
const WORDS: usize = PAGE_BYTES as usize / 4;
/// The number of words before a list's references.
const HEAD_WORDS: usize = 4;
/// The maximum number of references in one list.
pub const REFS_MAX: usize = WORDS - HEAD_WORDS;

/// The maximum number of pages in one grant: 1 GiB. Two levels of lists could hold four times as many.
pub const PAGES_MAX: u32 = 1 << 18;
const _: () = assert!(PAGES_MAX as usize <= REFS_MAX * REFS_MAX);

/// "ISGD", as bytes in memory.
const MAGIC: u32 = u32::from_le_bytes(*b"ISGD");
const VERSION: u32 = 1;

/// The contents of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// References of the pages themselves.
    Leaf,
    /// References of leaves.
    Root,
}

impl Level {
    /// The level of the first list of a grant of `pages` pages.
    pub const fn first(pages: u32) -> Self {
        if pages as usize <= REFS_MAX { Self::Leaf } else { Self::Root }
    }
}

/// The number of leaves for a grant of `pages` pages.
pub const fn leaves(pages: u32) -> u32 {
    pages.div_ceil(REFS_MAX as u32)
}

/// The position of a list in a grant, as its reader already knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPosition {
    /// The contents of the list.
    pub level: Level,
    /// The number of pages of the whole grant.
    pub pages: u32,
    /// The index of a leaf; 0 for the root.
    pub leaf: u32,
}

impl ListPosition {
    /// The number of references in the list at this position.
    pub fn len(self) -> usize {
        match self.level {
            Level::Root => leaves(self.pages) as usize,
            Level::Leaf => {
                let before = u64::from(self.leaf) * REFS_MAX as u64;
                u64::from(self.pages).saturating_sub(before).min(REFS_MAX as u64) as usize
            }
        }
    }

    /// True for a position that no grant has.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    fn head(self) -> [u32; HEAD_WORDS] {
        let level = match self.level {
            Level::Leaf => 0,
            Level::Root => 1,
        };
        [MAGIC, VERSION | level << 16, self.pages, self.leaf]
    }
}

/// A list that does not match its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// The page holds no list of references, or one of another version.
    #[error("no list of grant references that we can read")]
    Unknown,
    /// The list belongs to another position or to another grant.
    #[error("a list of grant references for another place")]
    WrongPosition,
    /// The number of pages is 0 or above the limit.
    #[error("a grant of {0} pages; there are 1 to {PAGES_MAX}")]
    Pages(u32),
}

/// Returns the bytes of a list.
///
/// # Panics
///
/// Panics if the number of references differs from the length at this position.
pub fn emit(position: ListPosition, refs: &[GrantRef]) -> [u8; PAGE_BYTES as usize] {
    assert_eq!(refs.len(), position.len()); // A bug of the caller, not of a peer.
    let mut page = [0; PAGE_BYTES as usize];
    let words = position.head().into_iter().chain(refs.iter().map(|reference| reference.0));
    for (bytes, word) in page.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    page
}

/// Returns the references of the list at this position, from our copy of the page.
pub fn parse(position: ListPosition, page: &[u8; PAGE_BYTES as usize]) -> Result<Vec<GrantRef>, ListError> {
    if position.pages == 0 || position.pages > PAGES_MAX || position.is_empty() {
        return Err(ListError::Pages(position.pages));
    }
    let mut words = page.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word));
    let head: [u32; HEAD_WORDS] = core::array::from_fn(|_| words.next().unwrap_or(0));
    let expected = position.head();
    if head[..2] != expected[..2] {
        return Err(ListError::Unknown);
    }
    if head != expected {
        return Err(ListError::WrongPosition);
    }
    Ok(words.take(position.len()).map(GrantRef).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refs(from: usize, count: usize) -> Vec<GrantRef> {
        (from..from + count).rev().map(|number| GrantRef(number as u32)).collect()
    }

    #[test]
    fn counts_lists_for_a_number_of_pages() {
        let counted = |pages| (Level::first(pages), leaves(pages));
        assert_eq!(
            [1, 1020, 1021, 2040, 2041].map(counted),
            [(Level::Leaf, 1), (Level::Leaf, 1), (Level::Root, 2), (Level::Root, 2), (Level::Root, 3)]
        );
        assert_eq!(ListPosition { level: Level::Leaf, pages: 1021, leaf: 1 }.len(), 1);
        assert_eq!(ListPosition { level: Level::Leaf, pages: 1021, leaf: 2 }.len(), 0);
    }

    #[test]
    fn a_list_begins_as_the_specification_says() {
        let page = emit(ListPosition { level: Level::Root, pages: 1021, leaf: 0 }, &[GrantRef(9), GrantRef(8)]);
        assert_eq!(page[..28], *b"ISGD\x01\0\x01\0\xfd\x03\0\0\0\0\0\0\x09\0\0\0\x08\0\0\0\0\0\0\0");
    }

    #[test]
    fn rejects_a_list_for_another_position() {
        let position = ListPosition { level: Level::Leaf, pages: 3000, leaf: 1 };
        let page = emit(position, &refs(0, 1020));
        assert_eq!(parse(ListPosition { leaf: 0, ..position }, &page), Err(ListError::WrongPosition));
        assert_eq!(parse(ListPosition { pages: 2999, ..position }, &page), Err(ListError::WrongPosition));
        assert_eq!(parse(ListPosition { level: Level::Root, ..position }, &page), Err(ListError::Unknown));
        for bad in [0, PAGES_MAX + 1, u32::MAX] {
            assert_eq!(parse(ListPosition { pages: bad, leaf: 0, ..position }, &page), Err(ListError::Pages(bad)));
        }
        assert_eq!(parse(position, &[0; 4096]), Err(ListError::Unknown));
    }

    proptest! {
        #[test]
        fn lists_round_trip(pages in 1..=PAGES_MAX, leaf in 0..300_u32, root: bool) {
            let level = if root { Level::Root } else { Level::Leaf };
            let position = ListPosition { level, pages, leaf: if root { 0 } else { leaf } };
            prop_assume!(!position.is_empty() && position.len() <= REFS_MAX);
            let refs = refs(7, position.len());
            prop_assert_eq!(parse(position, &emit(position, &refs)), Ok(refs));
        }

        #[test]
        fn no_page_panics(
            head in prop::array::uniform16(any::<u8>()), pages: u32, leaf: u32, root: bool, valid_head: bool, fill: u8,
        ) {
            let position = ListPosition { level: if root { Level::Root } else { Level::Leaf }, pages, leaf };
            let mut page = [fill; 4096];
            page[..16].copy_from_slice(&head);
            if valid_head {
                for (at, word) in position.head().into_iter().enumerate() {
                    page[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
                }
            }
            if let Ok(refs) = parse(position, &page) {
                prop_assert!(refs.len() <= REFS_MAX);
            }
        }
    }
}
