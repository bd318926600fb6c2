//! The binary interface of libfabric: the structures that programs, libfabric and this provider share.
//!
//! Sizes and offsets are those of libfabric 1.17 to 2.x. A test compares them with the installed headers. Some
//! structures are longer in later versions. The provider allocates the longer size, zeroed, and accesses only the
//! fields of 1.17 in structures that a caller allocates.

pub(crate) mod consts;
pub(crate) mod info;
pub(crate) mod objects;
pub(crate) mod requests;
pub(crate) mod tables;

#[cfg(test)]
mod tests;
