//! The stream of a capture from the daemon to the capturing program: messages over a socket or pipe.
//!
//! Each message is its length, then 16 bytes with the same fields for all kinds, little-endian, then a tail:
//!
//! ```text
//!   offset 0        4      5               6             8                   12                     20
//!          length │ kind │ flag          │ small       │ number            │ wide                 │ tail
//!                 │ 1    │ 0             │ version     │ "isca"            │ 0                    │                    begin
//!                 │ 2    │ 1: an address │ name, bytes │ bytes kept        │ address, or 0        │ name, description  interface
//!                 │ 3    │ direction     │ interface   │ bytes that it had │ time, ns since 1970  │ bytes              frame
//!                 │ 4    │ 0             │ interface   │ 0                 │ frames seen          │ frames dropped     statistics
//!                 │ 5    │ 0             │ 0           │ 0                 │ 0                    │                    end
//! ```
//!
//! The length counts what follows it. Directions are 0 unknown, 1 received, 2 sent; the number of frames dropped has 8 bytes. A capture
//! is one *begin*, then interfaces and frames in any order (an interface before its frames; they are numbered as they come), then
//! statistics and one *end*. Statistics may come earlier too: later ones replace them.
//! A reader that has enough closes its sending half. It still receives the frames seen until then, and the *end*. The reading program
//! trusts the daemon, but [`parse`] checks everything: it is defined for all inputs.

use std::io::{self, Read};

use isthmus_layout::NicId;

use crate::{
    CaptureDirection, CapturedFrame, InterfaceIndex, InterfaceStatistics, PcapInterface, SNAP_BYTES_MAX, TEXT_BYTES_MAX,
};

const LENGTH_BYTES: usize = 4;
const HEAD_BYTES: usize = 20;

/// The size of the longest message in bytes.
pub const MESSAGE_BYTES_MAX: usize = HEAD_BYTES + SNAP_BYTES_MAX as usize;

/// The version of this stream format.
pub const VERSION: u16 = 1;

const MAGIC: u32 = u32::from_le_bytes(*b"isca");

const BEGIN: u8 = 1;
const INTERFACE: u8 = 2;
const FRAME: u8 = 3;
const STATISTICS: u8 = 4;
const END: u8 = 5;

/// A message of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureMessage<'a> {
    /// The first message.
    Begin,
    /// A further interface.
    Interface(PcapInterface),
    /// A frame.
    Frame(CapturedFrame<'a>),
    /// The numbers of frames seen and dropped so far.
    Statistics(InterfaceStatistics),
    /// The last message.
    End,
}

/// The reason why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedStream {
    /// The message is shorter or longer than any valid one.
    #[error("a message of {0} bytes")]
    Length(u32),
    /// The kind is unknown.
    #[error("a message of kind {0}")]
    Kind(u8),
    /// The stream does not start with the *begin* message.
    #[error("a stream that does not begin with its beginning")]
    NoBegin,
    /// The stream is not a capture.
    #[error("a stream that begins with {0:#010x} is no capture")]
    Magic(u32),
    /// The daemon is older or newer than the program.
    #[error("version {0} of the stream, where {VERSION} is known: program and daemon are not of one version")]
    Version(u16),
    /// A flag is undefined, or a field that must be zero is not.
    #[error("a message of kind {0} with a field that means nothing")]
    Field(u8),
    /// The tail is too short, too long, or not valid text.
    #[error("a message of kind {0} with a tail of {1} bytes that does not fit it")]
    Tail(u8, usize),
}

/// The 16 bytes that follow the length in all messages.
#[derive(Clone, Copy, Default)]
struct MessageHeader {
    kind: u8,
    flag: u8,
    u16_field: u16,
    u32_field: u32,
    u64_field: u64,
}

impl MessageHeader {
    fn parse(bytes: &[u8; HEAD_BYTES]) -> Self {
        let [_, _, _, _, kind, flag, s0, s1, n0, n1, n2, n3, wide @ ..] = *bytes;
        let (u16_field, u32_field) = (u16::from_le_bytes([s0, s1]), u32::from_le_bytes([n0, n1, n2, n3]));
        Self { kind, flag, u16_field, u32_field, u64_field: u64::from_le_bytes(wide) }
    }

    fn emit(self, tails: &[&[u8]], into: &mut Vec<u8>) {
        let bytes = HEAD_BYTES - LENGTH_BYTES + tails.iter().map(|tail| tail.len()).sum::<usize>();
        into.extend_from_slice(&(bytes as u32).to_le_bytes());
        into.extend_from_slice(&[self.kind, self.flag]);
        into.extend_from_slice(&self.u16_field.to_le_bytes());
        into.extend_from_slice(&self.u32_field.to_le_bytes());
        into.extend_from_slice(&self.u64_field.to_le_bytes());
        tails.iter().for_each(|tail| into.extend_from_slice(tail));
    }

    /// Returns an error unless the message's fields other than the kind are as expected.
    fn expect_header(self, expected: Self) -> Result<(), MalformedStream> {
        let same = (self.flag, self.u16_field, self.u32_field, self.u64_field)
            == (expected.flag, expected.u16_field, expected.u32_field, expected.u64_field);
        if same { Ok(()) } else { Err(MalformedStream::Field(self.kind)) }
    }
}

/// Parses the message at the start of `bytes`. Returns it and its size, or `None` if it is incomplete.
pub fn parse(bytes: &[u8]) -> Result<Option<(CaptureMessage<'_>, usize)>, MalformedStream> {
    let Some(length) = bytes.first_chunk() else { return Ok(None) };
    let whole = message_bytes(u32::from_le_bytes(*length))?;
    let Some(message) = bytes.get(..whole) else { return Ok(None) };
    let Some((head, tail)) = message.split_first_chunk() else { return Err(MalformedStream::Length(whole as u32)) };
    Ok(Some((parse_body(MessageHeader::parse(head), tail)?, whole)))
}

/// Returns the size of a message, including the length field.
fn message_bytes(length: u32) -> Result<usize, MalformedStream> {
    let whole = (length as usize).saturating_add(LENGTH_BYTES);
    if (HEAD_BYTES..=MESSAGE_BYTES_MAX).contains(&whole) { Ok(whole) } else { Err(MalformedStream::Length(length)) }
}

fn parse_body(head: MessageHeader, tail: &[u8]) -> Result<CaptureMessage<'_>, MalformedStream> {
    let wrong = MalformedStream::Tail(head.kind, tail.len());
    let empty = || if tail.is_empty() { Ok(()) } else { Err(wrong) };
    match head.kind {
        BEGIN => {
            if head.u32_field != MAGIC {
                return Err(MalformedStream::Magic(head.u32_field));
            }
            if head.u16_field != VERSION {
                return Err(MalformedStream::Version(head.u16_field));
            }
            head.expect_header(MessageHeader { u16_field: VERSION, u32_field: MAGIC, ..MessageHeader::default() })?;
            empty().map(|()| CaptureMessage::Begin)
        }
        INTERFACE => interface(head, tail).map(CaptureMessage::Interface),
        FRAME => {
            let direction = direction(head.flag).ok_or(MalformedStream::Field(FRAME))?;
            let (interface, original_bytes) = (InterfaceIndex(head.u16_field), head.u32_field);
            if tail.len() > original_bytes as usize {
                return Err(wrong);
            }
            Ok(CaptureMessage::Frame(CapturedFrame {
                time_ns: head.u64_field,
                interface,
                direction,
                original_bytes,
                bytes: tail,
            }))
        }
        STATISTICS => {
            head.expect_header(MessageHeader {
                u16_field: head.u16_field,
                u64_field: head.u64_field,
                ..MessageHeader::default()
            })?;
            let dropped = u64::from_le_bytes(tail.try_into().map_err(|_| wrong)?);
            Ok(CaptureMessage::Statistics(InterfaceStatistics {
                interface: InterfaceIndex(head.u16_field),
                seen: head.u64_field,
                dropped,
            }))
        }
        END => {
            head.expect_header(MessageHeader::default())?;
            empty().map(|()| CaptureMessage::End)
        }
        other => Err(MalformedStream::Kind(other)),
    }
}

fn interface(head: MessageHeader, tail: &[u8]) -> Result<PcapInterface, MalformedStream> {
    let wrong = MalformedStream::Tail(INTERFACE, tail.len());
    let (name, description) = tail.split_at_checked(usize::from(head.u16_field)).ok_or(wrong)?;
    if name.len() > TEXT_BYTES_MAX || description.len() > TEXT_BYTES_MAX || head.u32_field > SNAP_BYTES_MAX {
        return Err(wrong);
    }
    let text = |bytes| str::from_utf8(bytes).map_err(|_| wrong);
    let plain = PcapInterface::new(text(name)?, text(description)?).with_snap_bytes(head.u32_field);
    match (head.flag, NicId::new(head.u64_field)) {
        (0, _) if head.u64_field == 0 => Ok(plain),
        (1, Some(nic)) => Ok(plain.with_nic(nic)),
        _ => Err(MalformedStream::Field(INTERFACE)),
    }
}

const fn direction(flag: u8) -> Option<CaptureDirection> {
    match flag {
        0 => Some(CaptureDirection::Unknown),
        1 => Some(CaptureDirection::Received),
        2 => Some(CaptureDirection::Sent),
        _ => None,
    }
}

/// Appends a message. At most [`SNAP_BYTES_MAX`] bytes of a frame are included.
pub fn emit(message: &CaptureMessage<'_>, into: &mut Vec<u8>) {
    match message {
        CaptureMessage::Begin => {
            MessageHeader { kind: BEGIN, u16_field: VERSION, u32_field: MAGIC, ..MessageHeader::default() }
                .emit(&[], into)
        }
        CaptureMessage::Interface(interface) => {
            let (name, description) = (interface.name().as_bytes(), interface.description().as_bytes());
            let head = MessageHeader {
                kind: INTERFACE,
                flag: u8::from(interface.nic().is_some()),
                u16_field: name.len() as u16, // The texts of an interface are short.
                u32_field: interface.snap_bytes(),
                u64_field: interface.nic().map_or(0, NicId::number),
            };
            head.emit(&[name, description], into);
        }
        CaptureMessage::Frame(record) => {
            let flag = match record.direction {
                CaptureDirection::Unknown => 0,
                CaptureDirection::Received => 1,
                CaptureDirection::Sent => 2,
            };
            let had = u32::try_from(record.bytes.len()).unwrap_or(u32::MAX).max(record.original_bytes);
            let head = MessageHeader {
                kind: FRAME,
                flag,
                u16_field: record.interface.0,
                u32_field: had,
                u64_field: record.time_ns,
            };
            head.emit(&[&record.bytes[..record.bytes.len().min(SNAP_BYTES_MAX as usize)]], into);
        }
        CaptureMessage::Statistics(statistics) => {
            let head = MessageHeader {
                kind: STATISTICS,
                u16_field: statistics.interface.0,
                u64_field: statistics.seen,
                ..MessageHeader::default()
            };
            head.emit(&[&statistics.dropped.to_le_bytes()], into);
        }
        CaptureMessage::End => MessageHeader { kind: END, ..MessageHeader::default() }.emit(&[], into),
    }
}

/// The reason why there is no further message.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The stream ended in the middle: the daemon is gone.
    #[error("the capture stopped without an end: the daemon is gone, or dropped it")]
    Truncated,
    /// The stream contains an invalid message.
    #[error("the capture is damaged: {0}")]
    Malformed(#[from] MalformedStream),
    /// The socket or pipe failed.
    #[error("reading a capture: {0}")]
    Io(#[source] io::Error),
}

/// The reading side of a stream.
#[derive(Debug)]
pub struct CaptureReader<R> {
    from: R,
    message: Vec<u8>,
    stage: ReaderState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderState {
    /// No message has been read.
    Before,
    Within,
    /// The last message has been read.
    After,
}

impl<R: Read> CaptureReader<R> {
    /// Creates a reader. Each message takes two reads, so a socket needs a [`std::io::BufReader`] around it.
    pub fn new(from: R) -> Self {
        Self { from, message: Vec::new(), stage: ReaderState::Before }
    }

    /// Waits for the next message and returns it, without the *begin* message. Returns `None` after the end.
    pub fn message(&mut self) -> Result<Option<CaptureMessage<'_>>, ReadError> {
        if self.stage == ReaderState::Before {
            self.fill()?;
            if parse_single(&self.message)? != CaptureMessage::Begin {
                return Err(MalformedStream::NoBegin.into());
            }
            self.stage = ReaderState::Within;
        }
        if self.stage == ReaderState::After {
            return Ok(None);
        }
        self.fill()?;
        match parse_single(&self.message)? {
            CaptureMessage::Begin => Err(MalformedStream::Kind(BEGIN).into()),
            CaptureMessage::End => {
                self.stage = ReaderState::After;
                Ok(None)
            }
            message => Ok(Some(message)),
        }
    }

    /// Reads the bytes of one message.
    fn fill(&mut self) -> Result<(), ReadError> {
        let mut length = [0; LENGTH_BYTES];
        self.from.read_exact(&mut length).map_err(truncated)?;
        let bytes = message_bytes(u32::from_le_bytes(length))?;
        self.message.clear();
        self.message.extend_from_slice(&length);
        self.message.resize(bytes, 0);
        self.from.read_exact(&mut self.message[LENGTH_BYTES..]).map_err(truncated)
    }
}

/// Parses the bytes of exactly one message.
fn parse_single(bytes: &[u8]) -> Result<CaptureMessage<'_>, MalformedStream> {
    let (message, _) = parse(bytes)?.ok_or(MalformedStream::Length(bytes.len() as u32))?;
    Ok(message)
}

fn truncated(error: io::Error) -> ReadError {
    if error.kind() == io::ErrorKind::UnexpectedEof { ReadError::Truncated } else { ReadError::Io(error) }
}
