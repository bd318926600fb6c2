//! Who may connect to a socket beside its owner: an access list of its file (`acl(5)`), which an owner without privileges can write.
//!
//! A group would do, if the owner were in it; owners of daemons seldom are.

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::path::Path;

/// Where the kernel takes an access list from (linux/posix_acl_xattr.h).
const ATTRIBUTE: &str = "system.posix_acl_access";
const VERSION: u32 = 2;

// Whom an entry is for.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

const READ_AND_WRITE: u16 = 6;
const NO_ACCESS: u16 = 0;

/// Lets a user connect, as the owner may, and no others.
pub(super) fn allow_user(path: &Path, user: u32) -> Result<(), Errno> {
    let undefined_id = u32::MAX;
    let entries = [
        (OWNER, READ_AND_WRITE, undefined_id),
        (USER, READ_AND_WRITE, user),
        (GROUP, NO_ACCESS, undefined_id),
        (MASK, READ_AND_WRITE, undefined_id),
        (OTHERS, NO_ACCESS, undefined_id),
    ];
    let mut list = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    rustix::fs::setxattr(path, ATTRIBUTE, &list, XattrFlags::empty())
}
