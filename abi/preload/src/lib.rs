//! `libisthmus-sockets.so`: TCP programs over shared memory, without a change to them.
//!
//! The library is preloaded. It defines calls of the C library, and each calls the C library's own definition for every descriptor that it
//! does not track.
//!
//! ```text
//!  program ─► hooks ─► table: descriptor ─► Connection ── Sender, Receiver (engine), stream memory
//!               │                              ▲   │
//!               │ epoll, poll                  │   └► Peer: the peer's board and doorbells
//!               ▼                              │
//!           interest, waiter ── board ◄────────┘            Session ◄─► daemon: show, pair
//! ```
//!
//! The library decides nothing: `isthmus-sockets` says where bytes go, and the daemon says which connections are pairs. It has no thread.
//! Handlers of the program run through a trampoline (`signals`). Whatever fails leaves the program on TCP.

mod alarm;
mod attach;
mod connection;
mod copy;
mod epoll_inner;
mod epoll_set;
mod errno;
mod fork;
pub mod hooks;
mod inside;
mod interest;
mod kernel;
mod leave;
mod lock;
mod not_here;
mod owner_bells;
mod plain;
mod private_lock;
mod real;
mod session;
mod settings;
mod shared_cell;
mod shared_state;
mod signals;
mod stream_io;
mod table;
mod test_switch;
mod wait;
mod wait_limit;
mod waiter;

/// Returns the version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn isthmus_sockets_version() -> *const core::ffi::c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
