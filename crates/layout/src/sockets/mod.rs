//! Streams between sockets of one host: messages, memory, boards, and the page of listeners.

mod listed;
mod memory;
mod messages;
mod variables;

pub use listed::*;
pub use memory::*;
pub use messages::*;
pub use variables::*;
