//! The interface of libibverbs as its headers have it: what programs, the library and this provider share in memory.
//!
//! Sizes and offsets are those of private ABI 34 on 64-bit Linux. Assertions beside the structures hold them, and a test compares them
//! with the headers and the library that are installed. Enumerations of C are integers here, because a program may store any number.

pub(crate) mod cm;
pub(crate) mod consts;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod objects;
pub(crate) mod operations;
pub(crate) mod queries;
pub(crate) mod requests;

#[cfg(test)]
mod tests;

/// Checks the size of a structure and the offsets of its fields while the crate is compiled.
macro_rules! assert_layout {
    ($($name:ident: $size:literal { $($field:ident: $offset:literal),* $(,)? })*) => {
        $(const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(std::mem::offset_of!($name, $field) == $offset);)*
        };)*
    };
}
pub(crate) use assert_layout;
