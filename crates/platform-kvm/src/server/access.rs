//! Grants another user than the owner access to a socket: an access control list of its file (`acl(5)`), which an owner without privileges
//! can set.
//!
//! A group is no alternative, because the owner of a daemon is seldom a member of it.

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::path::Path;

/// The attribute with the access control list (linux/posix_acl_xattr.h).
const ATTRIBUTE: &str = "system.posix_acl_access";
const VERSION: u32 = 2;

// The kinds of entries.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

const READ_AND_WRITE: u16 = 6;
const NO_ACCESS: u16 = 0;

/// Allows a user to connect with the rights of the owner, and no others.
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
