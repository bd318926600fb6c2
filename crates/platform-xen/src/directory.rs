//! Grants of many pages: lists of references in granted pages (docs/spec/xen.md).
//!
//! ```text
//!  up to 1020 pages           grant ──► leaf: 1020 references ──► pages
//!  more                       grant ──► root: references of leaves ──► leaves ──► pages
//! ```
//!
//! How many pages there are the receiver knows before it looks, and with that how many lists of which length: lists only confirm it.
//! Each is copied once, by whoever maps it, and the copy is read here. Whoever writes lists can write anything, at any time.

use crate::GrantRef;
use crate::kernel::PAGE_BYTES;

/// Words of a page.
const WORDS: usize = PAGE_BYTES as usize / 4;
/// Words before a list's references.
const HEAD_WORDS: usize = 4;
/// References in one list.
pub const REFS_MAX: usize = WORDS - HEAD_WORDS;

/// Pages in one grant: 1 GiB. A list of lists would have room for four times as many.
pub const PAGES_MAX: u32 = 1 << 18;
const _: () = assert!(PAGES_MAX as usize <= REFS_MAX * REFS_MAX);

/// "ISGD", as bytes in memory.
const MAGIC: u32 = u32::from_le_bytes(*b"ISGD");
const VERSION: u32 = 1;

/// What stands in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// References of the pages themselves.
    Leaf,
    /// References of leaves.
    Root,
}

impl Level {
    /// What the first list of so many pages is.
    pub const fn first(pages: u32) -> Self {
        if pages as usize <= REFS_MAX { Self::Leaf } else { Self::Root }
    }
}

/// Leaves that so many pages need.
pub const fn leaves(pages: u32) -> u32 {
    pages.div_ceil(REFS_MAX as u32)
}

/// Which list this is, by what its reader knows already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPosition {
    /// What stands in it.
    pub level: Level,
    /// Pages of the whole grant.
    pub pages: u32,
    /// For a leaf, which one.
    pub leaf: u32,
}

impl ListPosition {
    /// References that a list in this place has.
    pub fn len(self) -> usize {
        match self.level {
            Level::Root => leaves(self.pages) as usize,
            Level::Leaf => {
                let before = u64::from(self.leaf) * REFS_MAX as u64;
                u64::from(self.pages).saturating_sub(before).min(REFS_MAX as u64) as usize
            }
        }
    }

    /// True of places that no grant has.
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

/// A list is not what its place says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// No list of references, or of another version.
    #[error("no list of grant references that we can read")]
    Unknown,
    /// A list for another place, or of another grant.
    #[error("a list of grant references for another place")]
    WrongPosition,
    /// No grant has so many pages, or none.
    #[error("a grant of {0} pages; there are 1 to {PAGES_MAX}")]
    Pages(u32),
}

/// The bytes of a list.
///
/// # Panics
///
/// If these are not as many as its place has.
pub fn emit(position: ListPosition, refs: &[GrantRef]) -> [u8; PAGE_BYTES as usize] {
    assert_eq!(refs.len(), position.len()); // Ours.
    let mut page = [0; PAGE_BYTES as usize];
    let words = position.head().into_iter().chain(refs.iter().map(|reference| reference.0));
    for (bytes, word) in page.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    page
}

/// The references of a list that should be in this place, from our copy of it.
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
