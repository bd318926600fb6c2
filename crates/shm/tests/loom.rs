//! The promise of each lettered ordering: a model that loom explores in full, and that fails once the letter is left out.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p isthmus-shm --test loom --release`
//!
//! | letters | promise | left out: A, C, E… or B, D, F… |
//! | --- | --- | --- |
//! | A, B | a record is whole when its stamp is seen | old words are read |
//! | C, D | a cell is not written again before it was copied | both at once, found on plain cells; on atomic ones loom passes |
//! | E, F | a parked consumer is woken or sees the record | neither |
//! | G, H | a blocked producer is told or sees the room | neither |
//! | I, J | slab bytes are not written again before they were copied | both at once |
//! | K, L | a receiver that clears `SUMMARY` sees all bits set before it | a bit that is not looked for |
//! | M, N | a receiver that clears a bit sees what was published before it | old words are read |
//! | O, P | a sleeping receiver is rung or sees the bit | neither |
//! | Q, R | an entry of an arena is whole when it is open | old words are read |
//! | S, T | what is counted is open | it is not looked for again |
//! | U, V | a writer is waited for, or sees that it is shut | both at once |
//! | U, W | what was read was read while it was open | newer words are read |
//! | X, Y | what was written before a writer was out is there | both at once |
//! | S1, S2 | a byte of a stream is there when the tail is seen, and so is its switch | both at once; a byte of the wrong path |
//! | S3, S4 | a byte of a stream is not written again before it was copied | both at once |
//! | S5, S6 | a switch is whole when it is seen, and so is the old path | both at once |
//! | S7, S8 | a switch is not written before the last one was taken | both at once; an old head |
//! | S9, S10 | what was published before a change of state is there | an old tail |
//! | S11, S12 | an end of a stream that waits, for data or for room, is notified or sees the change | neither |
//!
//! Loom tries no order in which a load returns a store that comes later in time (load buffering). An ordering that
//! forbids only that, as C, D, I and J do, shows on memory that must not race: see `loom_models/words.rs`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod loom_models;
