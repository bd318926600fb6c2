//! The grant as it is sent to the peer: the references of its pages, or the reference of a list of them (docs/spec/xen.md).

use crate::directory::{ListError, PAGES_MAX};
use crate::{Domid, GrantRef};
use isthmus_platform::conformance::WireValue;
use isthmus_shm::Access;

/// The maximum number of references in the grant itself. This suffices for rings and single pages; most regions need lists.
pub const INLINE_MAX: usize = 16;

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 8;
const WRITABLE: u8 = 1;
const LISTED: u8 = 2;

/// A grant as the peer states it. The hypervisor checks it only when it is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XenGrant {
    /// The granting domain. The bytes do not contain it, because the receiver knows the sender.
    pub from: Domid,
    /// The permitted access.
    pub access: Access,
    /// The number of pages.
    pub pages: u32,
    /// The references of the pages.
    pub refs: GrantRefs,
}

/// The way in which a grant names its pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantRefs {
    /// The references of all pages.
    Inline(Vec<GrantRef>),
    /// The reference of the first list ([`crate::directory`]).
    Listed(GrantRef),
}

/// Bytes that are not a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XenGrantError {
    /// The bytes are no grant, or one of another version.
    #[error("no grant that we can read")]
    Unknown,
    /// The number of references differs from the number stated.
    #[error("a grant of another length than it says")]
    Length,
    /// A list of references is invalid.
    #[error(transparent)]
    List(#[from] ListError),
}

impl XenGrant {
    /// Returns the encoded grant.
    pub fn emit(&self) -> Vec<u8> {
        let (flag, refs) = match &self.refs {
            GrantRefs::Inline(refs) => (0, refs.as_slice()),
            GrantRefs::Listed(first) => (LISTED, std::slice::from_ref(first)),
        };
        let writable = if self.access == Access::ReadWrite { WRITABLE } else { 0 };
        let mut bytes = vec![b'G', VERSION, writable | flag, 0];
        bytes.extend(self.pages.to_le_bytes());
        bytes.extend(refs.iter().flat_map(|reference| reference.0.to_le_bytes()));
        bytes
    }

    /// Parses a grant of `from`.
    pub fn parse(bytes: &[u8], from: Domid) -> Result<Self, XenGrantError> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(XenGrantError::Unknown)?;
        let &[b'G', VERSION, flags, 0, ref pages @ ..] = head else { return Err(XenGrantError::Unknown) };
        if flags & !(WRITABLE | LISTED) != 0 {
            return Err(XenGrantError::Unknown);
        }
        let pages = u32::from_le_bytes([pages[0], pages[1], pages[2], pages[3]]);
        if pages == 0 || pages > PAGES_MAX {
            return Err(ListError::Pages(pages).into());
        }
        let (words, []) = rest.as_chunks::<4>() else { return Err(XenGrantError::Length) };
        let refs: Vec<GrantRef> =
            words.iter().take(INLINE_MAX + 1).map(|word| GrantRef(u32::from_le_bytes(*word))).collect();
        let refs = match (flags & LISTED != 0, refs.as_slice()) {
            (true, &[first]) => GrantRefs::Listed(first),
            (false, all) if all.len() == pages as usize && all.len() <= INLINE_MAX => GrantRefs::Inline(refs),
            _ => return Err(XenGrantError::Length),
        };
        let access = if flags & WRITABLE != 0 { Access::ReadWrite } else { Access::Read };
        Ok(Self { from, access, pages, refs })
    }
}

/// The encoding between the two sides of the conformance suite, which also covers grants of a third domain: the domain's number, two bytes,
/// precedes the grant.
impl WireValue for XenGrant {
    fn emit(&self) -> Vec<u8> {
        [&self.from.number().to_le_bytes()[..], &self.emit()].concat()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (from, bytes) = bytes.split_first_chunk::<2>()?;
        Self::parse(bytes, Domid::new(u16::from_le_bytes(*from))?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one() -> Domid {
        Domid::new(1).unwrap()
    }

    #[test]
    fn a_grant_begins_as_the_specification_says() {
        let refs = vec![GrantRef(11), GrantRef(10)];
        let grant = XenGrant { from: one(), access: Access::ReadWrite, pages: 2, refs: GrantRefs::Inline(refs) };
        assert_eq!(grant.emit(), b"G\x01\x01\0\x02\0\0\0\x0b\0\0\0\x0a\0\0\0");
        let listed = XenGrant { from: one(), access: Access::Read, pages: 70, refs: GrantRefs::Listed(GrantRef(258)) };
        assert_eq!(listed.emit(), b"G\x01\x02\0\x46\0\0\0\x02\x01\0\0");
    }

    #[test]
    fn rejects_inconsistent_grants() {
        let parse = |bytes: &[u8]| XenGrant::parse(bytes, one());
        assert_eq!(parse(b"G\x01\x01\0\x02\0\0\0\x0b\0\0\0"), Err(XenGrantError::Length));
        assert_eq!(parse(b"G\x01\x01\0\x01\0\0\0\x0b\0\0"), Err(XenGrantError::Length));
        assert_eq!(parse(b"G\x01\x02\0\x02\0\0\0"), Err(XenGrantError::Length));
        assert_eq!(parse(b"G\x01\x01\0\0\0\0\0"), Err(ListError::Pages(0).into()));
        assert_eq!(parse(b"G\x01\x02\0\xff\xff\xff\xff\x0b\0\0\0"), Err(ListError::Pages(u32::MAX).into()));
        for unknown in
            [&b""[..], b"G\x01\x01\0\x01\0\0", b"G\x02\x01\0\x01\0\0\0\x0b\0\0\0", b"G\x01\x04\0\x01\0\0\0\x0b\0\0\0"]
        {
            assert_eq!(parse(unknown), Err(XenGrantError::Unknown));
        }
    }

    proptest! {
        #[test]
        fn grants_round_trip(
            write: bool, listed: bool, pages in 1..=PAGES_MAX, refs in prop::collection::vec(any::<u32>(), 1..=INLINE_MAX),
        ) {
            let access = if write { Access::ReadWrite } else { Access::Read };
            let refs: Vec<GrantRef> = refs.into_iter().map(GrantRef).collect();
            let (pages, refs) = match listed {
                true => (pages, GrantRefs::Listed(refs[0])),
                false => (refs.len() as u32, GrantRefs::Inline(refs)),
            };
            let grant = XenGrant { from: one(), access, pages, refs };
            prop_assert_eq!(XenGrant::parse(&grant.emit(), one()), Ok(grant));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), valid_head: bool) {
            let mut bytes = bytes;
            if valid_head && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(b"G\x01\x03\0");
            }
            if let Ok(grant) = XenGrant::parse(&bytes, one()) {
                prop_assert_eq!(grant.emit(), bytes);
            }
        }
    }
}
