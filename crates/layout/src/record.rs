//! The records in the cells of a ring: between the libraries of two domains, or between a library and its daemon.
//!
//! A record's body starts with a [`Route`] (two words) and goes on by its kind. All words are little-endian.
//!
//! ```text
//! word 0   from endpoint (bits 0-7), to endpoint (8-15), epoch (16-31)
//! word 1   daemon path: the other domain (from the daemon: the sender, to the daemon: the receiver); on a channel 0
//! ```
//!
//! | kind | name | words after the route |
//! | --- | --- | --- |
//! | 1 | `Eager` | tag (2 words), then the whole message, at most 128 bytes |
//! | 2 | `FirstFragment` | tag (2), length (1), serial (1), fragment (2): first fragment of a message up to 32 KiB |
//! | 3 | `NextFragment` | serial (1), fragment (2): the next fragment of a started or pulled message |
//! | 4 | `Announce` | tag (2), length (2), serial (1), edges (1), fragment (2), region (2), offset (2): a message that waits at its sender |
//! | 5 | `Pull` | serial (1), bytes (2): send that part of the announced message in fragments |
//! | 6 | `Completed` | serial (1), outcome (1), bytes (2): the receiver is done with an announced message |
//! | 7 | `Switch` | nothing: this sender's next records come with the next epoch, by the other path |
//! | 8 | `Credit` | bytes (1): daemon path, that much may be sent again |
//! | 9 | `Bounce` | serial (1), reason (1): no such endpoint |
//! | 10 | `Abort` | serial (1), reason (1): nothing more comes of a pulled message |
//!
//! A *fragment* is an offset and a length in bytes of the slab of the ring it came by.

use crate::ids::{DomainId, EndpointIndex, RegionId};
use crate::limits::{INLINE_BYTES_MAX, MESSAGE_BYTES_MAX};

/// Words that any record's body has at most.
pub const BODY_WORDS_MAX: usize = crate::channel::BODY_BYTES_MAX as usize / 4;

/// Words before an eager message's bytes.
pub const EAGER_HEADER_WORDS: usize = 4;

const _: () = assert!(4 * EAGER_HEADER_WORDS + INLINE_BYTES_MAX <= 4 * BODY_WORDS_MAX);

/// The sender, the receiver, and the epoch of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The sender's endpoint.
    pub from: EndpointIndex,
    /// The receiver's endpoint.
    pub to: EndpointIndex,
    /// How often this sender has switched paths toward this receiver.
    pub epoch: u16,
    /// On the daemon path, the domain at the other end.
    pub peer: Option<DomainId>,
}

/// Message bytes in a slab, as the sender names them: not yet checked against the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// From the start of the slab.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// Names a message between its two domains while it is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serial(pub u32);

/// The whole pages of an announced message, which the receiver may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappablePages {
    /// Granted to the receiver before the record was sent, or about to be.
    pub region: RegionId,
    /// Where the body begins in the region.
    pub offset: u64,
    /// Bytes before the first whole page; they stand first in the announcement's fragment.
    pub head: u16,
    /// Bytes after the last whole page; they follow the head in the fragment.
    pub tail: u16,
}

/// How an announced message ended at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveOutcome {
    /// Copied, whole or as far as the receiver's buffer went.
    Copied,
    /// The region could not be mapped or did not hold what was announced: send it in fragments.
    NoRegion,
    /// The receiver dropped it.
    Dropped,
}

/// A record's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A whole message; the words hold its bytes, the last one padded.
    Eager {
        /// The sender's word to the receiver's program.
        tag: u64,
        /// Bytes of message.
        len: u32,
        /// The bytes as words.
        words: &'a [u32],
    },
    /// The first fragment of a message.
    FirstFragment {
        /// As for `Eager`.
        tag: u64,
        /// Bytes of the whole message.
        len: u32,
        /// Names the message in what follows.
        serial: Serial,
        /// Its first bytes.
        fragment: Fragment,
    },
    /// The next fragment of a message.
    NextFragment {
        /// Which message.
        serial: Serial,
        /// Its next bytes.
        fragment: Fragment,
    },
    /// A message that is too long for the slab, or has a sender that waits for its receipt.
    Announce {
        /// As for `Eager`.
        tag: u64,
        /// Bytes of the whole message.
        len: u64,
        /// Names the message in what follows.
        serial: Serial,
        /// Head and tail bytes where `mapped`, else empty.
        fragment: Fragment,
        /// Its pages, where the receiver may map them.
        mapped: Option<MappablePages>,
    },
    /// Send the announced message in fragments.
    Pull {
        /// Which message.
        serial: Serial,
        /// The number of bytes from the start of the message. A number beyond its length means all bytes.
        bytes: u64,
    },
    /// The receiver is done with an announced message.
    Completed {
        /// Which message.
        serial: Serial,
        /// How it ended.
        outcome: ReceiveOutcome,
        /// Bytes that went into the receiver's buffer.
        bytes: u64,
    },
    /// The next records come by the other path.
    Switch,
    /// More may be sent on the daemon path.
    Credit {
        /// Bytes given back.
        bytes: u32,
    },
    /// The endpoint is not open.
    Bounce {
        /// Which message; zero for one that had no serial.
        serial: Serial,
        /// A code of the table of reasons.
        reason: u16,
    },
    /// Nothing more comes of a message that was pulled: its sender cannot be reached any more.
    Abort {
        /// Which message.
        serial: Serial,
        /// A code of the table of reasons.
        reason: u16,
    },
}

/// A record that no correct library writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedRecord {
    /// Not one of the kinds.
    #[error("record kind {0} does not exist")]
    Kind(u8),
    /// The body is shorter or longer than its kind asks for.
    #[error("a record of kind {kind} has {bytes} body bytes")]
    Length {
        /// The kind.
        kind: u8,
        /// The number of body bytes.
        bytes: u16,
    },
    /// An endpoint number at or above the limit.
    #[error("endpoint number {0} is beyond the limit")]
    Endpoint(u8),
    /// A message longer than can be.
    #[error("a message of {0} bytes is longer than any")]
    MessageLength(u64),
    /// The serial is zero, which no sender uses.
    #[error("the serial of a message is zero")]
    Serial,
    /// Not one of the outcomes.
    #[error("outcome {0} does not exist")]
    ReceiveOutcome(u32),
    /// The first fragment is longer than its message.
    #[error("a fragment of {fragment} bytes in a message of {len}")]
    Fragment {
        /// Of the fragment.
        fragment: u32,
        /// Of the message.
        len: u64,
    },
}

mod kind {
    pub(super) const EAGER: u8 = 1;
    pub(super) const FIRST_FRAGMENT: u8 = 2;
    pub(super) const NEXT_FRAGMENT: u8 = 3;
    pub(super) const ANNOUNCE: u8 = 4;
    pub(super) const PULL: u8 = 5;
    pub(super) const COMPLETED: u8 = 6;
    pub(super) const SWITCH: u8 = 7;
    pub(super) const CREDIT: u8 = 8;
    pub(super) const BOUNCE: u8 = 9;
    pub(super) const ABORT: u8 = 10;
}

/// The words of a record, ready for a ring.
#[derive(Clone, Copy, Debug)]
pub struct EncodedRecord {
    /// The record's kind.
    pub kind: u8,
    /// Body words that the record has of its own; an eager message's bytes follow them.
    pub words: [u32; 14],
    /// How many of them count.
    pub count: usize,
}

impl Route {
    /// The two words.
    #[inline]
    pub fn emit(self) -> [u32; 2] {
        let endpoints = u32::from(self.from.number()) | u32::from(self.to.number()) << 8;
        [endpoints | u32::from(self.epoch) << 16, self.peer.map_or(0, DomainId::number)]
    }

    /// Reads the two words.
    #[inline]
    pub fn parse(words: [u32; 2]) -> Result<Self, MalformedRecord> {
        let endpoint = |number: u32| EndpointIndex::new(number as u8).ok_or(MalformedRecord::Endpoint(number as u8));
        Ok(Self {
            from: endpoint(words[0])?,
            to: endpoint(words[0] >> 8)?,
            epoch: (words[0] >> 16) as u16,
            peer: DomainId::new(words[1]),
        })
    }
}

const fn low(value: u64) -> u32 {
    value as u32
}

const fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

const fn wide(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// Returns the words before an eager message's bytes, as [`Record::emit`] does. Senders of many messages use it because it is faster.
#[inline]
pub const fn eager_header(ends: [u32; 2], tag: u64) -> [u32; EAGER_HEADER_WORDS] {
    [ends[0], ends[1], low(tag), high(tag)]
}

/// An eager message, if `kind` says that it is one and nothing speaks against it: what [`Record::parse`] finds, without the way there.
#[inline]
pub fn parse_eager(kind: u8, bytes: u16, words: &[u32]) -> Option<(Route, u64, u32, &[u32])> {
    let (&ends, rest) = words.split_first_chunk::<2>()?;
    if kind != kind::EAGER {
        return None;
    }
    let (tag, len, message) = eager_body(bytes, rest)?;
    Some((Route::parse(ends).ok()?, tag, len, message))
}

/// Tag, length and words of an eager message, from what follows the route.
#[inline]
fn eager_body(bytes: u16, rest: &[u32]) -> Option<(u64, u32, &[u32])> {
    let (&[tag_low, tag_high], message) = rest.split_first_chunk::<2>()?;
    let len = u32::from(bytes).checked_sub(4 * EAGER_HEADER_WORDS as u32)?;
    (len as usize <= INLINE_BYTES_MAX).then_some((wide(tag_low, tag_high), len, message))
}

/// The kind of an eager record.
pub const EAGER: u8 = kind::EAGER;

impl<'a> Record<'a> {
    /// The record's own words; for an eager message, those before its bytes.
    pub fn emit(&self, route: Route) -> EncodedRecord {
        let [ends, peer] = route.emit();
        let mut emitted = EncodedRecord { kind: 0, words: [0; 14], count: 0 };
        let mut put = |kind: u8, rest: &[u32]| {
            emitted.kind = kind;
            emitted.words[0] = ends;
            emitted.words[1] = peer;
            emitted.words[2..2 + rest.len()].copy_from_slice(rest);
            emitted.count = 2 + rest.len();
        };
        match *self {
            Self::Eager { tag, .. } => put(kind::EAGER, &[low(tag), high(tag)]),
            Self::FirstFragment { tag, len, serial, fragment } => {
                put(kind::FIRST_FRAGMENT, &[low(tag), high(tag), len, serial.0, fragment.offset, fragment.len]);
            }
            Self::NextFragment { serial, fragment } => {
                put(kind::NEXT_FRAGMENT, &[serial.0, fragment.offset, fragment.len])
            }
            Self::Announce { tag, len, serial, fragment, mapped } => {
                let (edges, region, offset) = match mapped {
                    Some(m) => (u32::from(m.head) | u32::from(m.tail) << 16, m.region.0, m.offset),
                    None => (0, 0, 0),
                };
                let body = [low(len), high(len), serial.0, edges, fragment.offset, fragment.len];
                let location = [low(region), high(region), low(offset), high(offset)];
                let mut words = [0; 12];
                words[..2].copy_from_slice(&[low(tag), high(tag)]);
                words[2..8].copy_from_slice(&body);
                words[8..].copy_from_slice(&location);
                put(kind::ANNOUNCE, &words);
            }
            Self::Pull { serial, bytes } => put(kind::PULL, &[serial.0, low(bytes), high(bytes)]),
            Self::Completed { serial, outcome, bytes } => {
                let outcome = match outcome {
                    ReceiveOutcome::Copied => 0,
                    ReceiveOutcome::NoRegion => 1,
                    ReceiveOutcome::Dropped => 2,
                };
                put(kind::COMPLETED, &[serial.0, outcome, low(bytes), high(bytes)]);
            }
            Self::Switch => put(kind::SWITCH, &[]),
            Self::Credit { bytes } => put(kind::CREDIT, &[bytes]),
            Self::Bounce { serial, reason } => put(kind::BOUNCE, &[serial.0, u32::from(reason)]),
            Self::Abort { serial, reason } => put(kind::ABORT, &[serial.0, u32::from(reason)]),
        }
        emitted
    }

    /// Reads a record out of a private copy of its words. `words` holds `bytes` rounded up to words.
    pub fn parse(kind: u8, bytes: u16, words: &'a [u32]) -> Result<(Route, Self), MalformedRecord> {
        let length = MalformedRecord::Length { kind, bytes };
        let (head, rest) = words.split_first_chunk::<2>().ok_or(length)?;
        let route = Route::parse(*head)?;
        let whole = usize::from(bytes) == 4 * words.len();
        let record = match (kind, rest) {
            (kind::EAGER, rest) => {
                let (tag, len, words) = eager_body(bytes, rest).ok_or(length)?;
                return Ok((route, Self::Eager { tag, len, words }));
            }
            _ if !whole => return Err(length),
            (kind::FIRST_FRAGMENT, &[tag_low, tag_high, len, number, offset, fragment_len]) => Self::FirstFragment {
                tag: wide(tag_low, tag_high),
                len,
                serial: serial(number)?,
                fragment: fragment(offset, fragment_len, u64::from(len))?,
            },
            (kind::NEXT_FRAGMENT, &[number, offset, len]) => {
                Self::NextFragment { serial: serial(number)?, fragment: Fragment { offset, len } }
            }
            (kind::ANNOUNCE, rest) => announce(rest).ok_or(length)??,
            (kind::PULL, &[number, bytes_low, bytes_high]) => {
                Self::Pull { serial: serial(number)?, bytes: wide(bytes_low, bytes_high) }
            }
            (kind::COMPLETED, &[number, outcome, bytes_low, bytes_high]) => Self::Completed {
                serial: serial(number)?,
                outcome: match outcome {
                    0 => ReceiveOutcome::Copied,
                    1 => ReceiveOutcome::NoRegion,
                    2 => ReceiveOutcome::Dropped,
                    other => return Err(MalformedRecord::ReceiveOutcome(other)),
                },
                bytes: wide(bytes_low, bytes_high),
            },
            (kind::SWITCH, &[]) => Self::Switch,
            (kind::CREDIT, &[bytes]) => Self::Credit { bytes },
            (kind::BOUNCE, &[number, reason]) => Self::Bounce { serial: Serial(number), reason: reason as u16 },
            (kind::ABORT, &[number, reason]) => Self::Abort { serial: serial(number)?, reason: reason as u16 },
            (kind::EAGER..=kind::ABORT, _) => return Err(length),
            _ => return Err(MalformedRecord::Kind(kind)),
        };
        Ok((route, record))
    }
}

fn serial(number: u32) -> Result<Serial, MalformedRecord> {
    if number == 0 { Err(MalformedRecord::Serial) } else { Ok(Serial(number)) }
}

fn fragment(offset: u32, fragment: u32, len: u64) -> Result<Fragment, MalformedRecord> {
    if u64::from(fragment) > len {
        Err(MalformedRecord::Fragment { fragment, len })
    } else {
        Ok(Fragment { offset, len: fragment })
    }
}

fn announce<'a>(words: &[u32]) -> Option<Result<Record<'a>, MalformedRecord>> {
    let &[
        tag_low,
        tag_high,
        len_low,
        len_high,
        number,
        edges,
        offset,
        fragment_len,
        region_low,
        region_high,
        at_low,
        at_high,
    ] = words
    else {
        return None;
    };
    let len = wide(len_low, len_high);
    let region = wide(region_low, region_high);
    let (head, tail) = (edges as u16, (edges >> 16) as u16);
    let mapped = MappablePages { region: RegionId(region), offset: wide(at_low, at_high), head, tail };
    Some((|| {
        if len > MESSAGE_BYTES_MAX {
            return Err(MalformedRecord::MessageLength(len));
        }
        let fragment = fragment(offset, fragment_len, len)?;
        let mapped = (region != 0).then_some(mapped);
        let edges = mapped.map_or(0, |m| u32::from(m.head) + u32::from(m.tail));
        if fragment.len != edges {
            return Err(MalformedRecord::Fragment { fragment: fragment.len, len: u64::from(edges) });
        }
        Ok(Record::Announce { tag: wide(tag_low, tag_high), len, serial: serial(number)?, fragment, mapped })
    })())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn route() -> Route {
        Route {
            from: EndpointIndex::new(3).unwrap(),
            to: EndpointIndex::new(31).unwrap(),
            epoch: 0xfffe,
            peer: DomainId::new(77),
        }
    }

    fn round_trip(record: Record<'_>, message: &[u32], bytes: usize) {
        let emitted = record.emit(route());
        let words: Vec<u32> = emitted.words[..emitted.count].iter().chain(message).copied().collect();
        let total = (4 * emitted.count + bytes) as u16;
        assert_eq!(Record::parse(emitted.kind, total, &words), Ok((route(), record)));
        let cut = Record::parse(emitted.kind, total.saturating_sub(4), &words[..words.len() - 1]);
        if !matches!(record, Record::Eager { .. }) {
            assert!(cut.is_err(), "{record:?} passes without its last word");
        }
    }

    #[test]
    fn every_record_survives_its_words() {
        let (serial, fragment) = (Serial(9), Fragment { offset: 64, len: 1000 });
        let mapped = MappablePages { region: RegionId(1 << 40), offset: 1 << 33, head: 400, tail: 600 };
        round_trip(Record::Eager { tag: u64::MAX - 1, len: 5, words: &[1, 2] }, &[1, 2], 5);
        round_trip(Record::FirstFragment { tag: 1, len: 4000, serial, fragment }, &[], 0);
        round_trip(Record::NextFragment { serial, fragment }, &[], 0);
        round_trip(Record::Announce { tag: 2, len: 3 << 30, serial, fragment, mapped: Some(mapped) }, &[], 0);
        let none = Fragment { offset: 0, len: 0 };
        round_trip(Record::Announce { tag: 2, len: 3 << 30, serial, fragment: none, mapped: None }, &[], 0);
        round_trip(Record::Pull { serial, bytes: 1 << 40 }, &[], 0);
        round_trip(Record::Completed { serial, outcome: ReceiveOutcome::NoRegion, bytes: 1 << 35 }, &[], 0);
        round_trip(Record::Switch, &[], 0);
        round_trip(Record::Credit { bytes: 8192 }, &[], 0);
        round_trip(Record::Bounce { serial, reason: 12 }, &[], 0);
        round_trip(Record::Abort { serial, reason: 12 }, &[], 0);
    }

    #[test]
    fn parse_names_each_malformed_record() {
        let parse = |kind, words: &[u32]| Record::parse(kind, 4 * words.len() as u16, words).unwrap_err();
        assert_eq!(parse(0, &[0, 0]), MalformedRecord::Kind(0));
        assert_eq!(parse(11, &[0, 0]), MalformedRecord::Kind(11));
        assert_eq!(parse(1, &[32, 0]), MalformedRecord::Endpoint(32));
        assert_eq!(parse(5, &[0, 0, 0, 1, 0]), MalformedRecord::Serial);
        assert_eq!(parse(6, &[0, 0, 1, 3, 0, 0]), MalformedRecord::ReceiveOutcome(3));
        assert_eq!(parse(2, &[0, 0, 0, 0, 10, 1, 0, 11]), MalformedRecord::Fragment { fragment: 11, len: 10 });
        assert_eq!(parse(7, &[0]), MalformedRecord::Length { kind: 7, bytes: 4 });
        assert_eq!(Record::parse(1, 13, &[0; 4]), Err(MalformedRecord::Length { kind: 1, bytes: 13 }));
        assert_eq!(parse(1, &[0; 4 + 33]), MalformedRecord::Length { kind: 1, bytes: 148 });
    }
}
