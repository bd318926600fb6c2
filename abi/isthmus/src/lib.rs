//! `libisthmus.so.0`: the client library for C programs, with the header `include/isthmus.h`.
//!
//! ```text
//!   program.c ──► isth_… (here: null pointers, C strings, panics) ──► isthmus_client::Domain
//!
//!   types ──── what the header shows: options, addresses, completions
//!   domain ─── the handle: its lock, the fork, the panic, the last error
//!   attach, message, wait ── the calls
//!   text ───── reasons in words
//! ```
//!
//! This crate translates and decides nothing. What it adds is what C needs and [`isthmus_client`] leaves to Rust's types: a lock,
//! because nothing keeps a C program from using a domain in two threads; the program's context pointer for each
//! operation; and an answer instead of an unwinding stack. It has no thread, no signal handler and no `exit` of its own.
//!
//! `include/isthmus.h` is printed from these sources by `UPDATE=1 cargo test -p isthmus-abi`; the library is linked by
//! `cargo xtask link-abi isthmus-abi --map abi/isthmus/libisthmus.map --out libisthmus.so`.
//!
//! ```
//! use std::ffi::CStr;
//!
//! // SAFETY: null is allowed, and is answered.
//! let refused = unsafe { isthmus_abi::isth_close(std::ptr::null_mut(), 0) };
//! // SAFETY: a reason's name is a constant string.
//! let name = unsafe { CStr::from_ptr(isthmus_abi::isth_reason_name(refused)) };
//! assert_eq!(name, c"request-invalid");
//! ```

mod attach;
mod domain;
mod message;
mod pending;
mod text;
mod types;
mod wait;

pub use attach::{isth_attach, isth_detach, isth_domain_id, isth_domain_name, isth_options_init};
pub use domain::Handle;
pub use message::{isth_cancel, isth_close, isth_lookup, isth_open, isth_receive, isth_send};
pub use text::{isth_last_error, isth_reason_name, isth_reason_remedy, isth_strerror, isth_version};
pub use types::{
    ISTH_CANCELLED, ISTH_ENDPOINT_ANY, ISTH_FAILED, ISTH_NO_AUTOSTART, ISTH_NO_CHANNELS, ISTH_NO_REGCACHE,
    ISTH_RECEIVED, ISTH_SENT, ISTH_VERSION, ISTH_VERSION_MAJOR, ISTH_VERSION_MINOR, ISTH_WAIT_ADAPTIVE,
    ISTH_WAIT_DEFAULT, ISTH_WAIT_SLEEP, ISTH_WAIT_SPIN, IsthAddress, IsthCompletion, IsthOptions,
};
pub use wait::{isth_arm, isth_fd, isth_poll, isth_wait};
