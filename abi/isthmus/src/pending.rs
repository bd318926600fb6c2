//! Operations under way: the program's pointer for each, which the client library knows nothing of.

use isthmus_client::{EndpointIndex, Token};
use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{BuildHasherDefault, Hasher};

/// Operations under way, by the numbers of their tokens.
pub(crate) type Pending = HashMap<u64, Operation, BuildHasherDefault<TokenHasher>>;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) token: Token,
    pub(crate) endpoint: EndpointIndex,
    pub(crate) context: Context,
}

/// The program's pointer, which is never followed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context(pub(crate) *mut c_void);

// SAFETY: it is only kept and given back, to whichever thread asks.
unsafe impl Send for Context {}

/// Tokens are consecutive numbers of ours: one multiplication spreads them, and no peer can choose them to collide.
#[derive(Default)]
pub(crate) struct TokenHasher(u64);

impl Hasher for TokenHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
