//! Streams between sockets of one host: memory, boards, and the page of listeners.

mod listed;
mod memory;

pub use listed::*;
pub use memory::*;
