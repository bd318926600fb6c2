//! The interface of libfabric as its headers have it: what programs, libfabric and this provider share in memory.
//!
//! Sizes and offsets are those of libfabric 1.17 to 2.x; a test compares them with the headers that are installed. Where later
//! versions have longer structures, what we allocate is longer too and zero, and what callers allocate is touched only as
//! far as 1.17 has it.

pub(crate) mod consts;
pub(crate) mod info;
pub(crate) mod objects;
pub(crate) mod requests;
pub(crate) mod tables;

#[cfg(test)]
mod tests;
