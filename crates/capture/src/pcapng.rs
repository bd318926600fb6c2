//! Files of captured frames in the pcapng format (draft-ietf-opsawg-pcapng), little-endian, one section.
//!
//! ```text
//!   section header │ interface description… │ enhanced packet… │ interface statistics…
//! ```
//!
//! Interfaces may also follow later, between packets. Times are in nanoseconds. This crate has its own writer, because only four kinds of
//! blocks are needed and the existing crate has had no release since 2023. The tests of this crate read the files back with Wireshark's own
//! tools.

use std::io::{self, Write};

use crate::{CaptureDirection, CapturedFrame, InterfaceIndex, InterfaceStatistics, PcapInterface, SNAP_BYTES_MAX};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;

const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_MACADDR: u16 = 6;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_STARTTIME: u16 = 2;
const ISB_ENDTIME: u16 = 3;
const ISB_IFRECV: u16 = 4;
const ISB_OSDROP: u16 = 7;

/// The resolution of times as a negative power of ten: nanoseconds.
const NANOSECONDS: u8 = 9;

/// The reason why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A record or statistics of an interface that was not added.
    #[error("interface {0} of {1}")]
    NoInterface(u16, usize),
    /// The capture has the maximum number of interfaces.
    #[error("no more than 65536 interfaces in a capture")]
    TooManyInterfaces,
    /// The file or pipe failed.
    #[error("writing a capture: {0}")]
    Io(#[from] io::Error),
}

/// The state of an interface.
#[derive(Debug)]
struct InterfaceState {
    snap_bytes: u32,
    /// The times of the first and of the last frame.
    times: Option<(u64, u64)>,
}

/// A writer of one capture.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    interfaces: Vec<InterfaceState>,
    block: Block,
}

impl<W: Write> Writer<W> {
    /// Begins a capture. Each write is one block, so a file needs a [`std::io::BufWriter`] around it.
    pub fn new(to: W, interfaces: &[PcapInterface]) -> Result<Self, WriteError> {
        let mut writer = Self { to, interfaces: Vec::new(), block: Block::default() };
        let block = writer.block.begin(SECTION_HEADER);
        block.u32(BYTE_ORDER_MAGIC).u16(1).u16(0).u64(u64::MAX); // version 1.0; the section's length is not known
        block.option(SHB_USERAPPL, b"isthmus").end_of_options();
        writer.put()?;
        for interface in interfaces {
            writer.add(interface)?;
        }
        Ok(writer)
    }

    /// Adds an interface.
    pub fn add(&mut self, interface: &PcapInterface) -> Result<InterfaceIndex, WriteError> {
        let index = u16::try_from(self.interfaces.len()).map_err(|_| WriteError::TooManyInterfaces)?;
        let block = self.block.begin(INTERFACE_DESCRIPTION);
        block.u16(LINKTYPE_ETHERNET).u16(0).u32(interface.snap_bytes());
        block.option(IF_NAME, interface.name().as_bytes());
        if !interface.description().is_empty() {
            block.option(IF_DESCRIPTION, interface.description().as_bytes());
        }
        if let Some(nic) = interface.nic() {
            block.option(IF_MACADDR, &nic.number().to_be_bytes()[2..]);
        }
        block.option(IF_TSRESOL, &[NANOSECONDS]).end_of_options();
        self.put()?;
        self.interfaces.push(InterfaceState { snap_bytes: interface.snap_bytes(), times: None });
        Ok(InterfaceIndex(index))
    }

    /// Writes a frame, cut to the limit of its interface.
    pub fn write(&mut self, record: &CapturedFrame<'_>) -> Result<(), WriteError> {
        self.write_commented(record, "")
    }

    /// Writes a frame with a comment of at most 65535 bytes. An empty comment is left out.
    pub fn write_commented(&mut self, record: &CapturedFrame<'_>, comment: &str) -> Result<(), WriteError> {
        let known = Self::interface_state(&mut self.interfaces, record.interface)?;
        let kept = &record.bytes[..record.bytes.len().min(known.snap_bytes as usize)];
        let had = u32::try_from(record.bytes.len()).unwrap_or(u32::MAX).max(record.original_bytes);
        let (first, last) = known.times.unwrap_or((record.time_ns, record.time_ns));
        known.times = Some((first.min(record.time_ns), last.max(record.time_ns)));
        let block = self.block.begin(ENHANCED_PACKET);
        block.u32(u32::from(record.interface.0)).time(record.time_ns).u32(kept.len() as u32).u32(had);
        block.padded(kept).option(EPB_FLAGS, &flags(record.direction).to_le_bytes());
        if !comment.is_empty() {
            block.option(OPT_COMMENT, &comment.as_bytes()[..comment.floor_char_boundary(usize::from(u16::MAX))]);
        }
        block.end_of_options();
        self.put()
    }

    /// Flushes the output, so that everything written so far reaches the reader.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        Ok(self.to.flush()?)
    }

    /// Ends the capture with the numbers of seen and dropped frames.
    pub fn finish(mut self, statistics: &[InterfaceStatistics]) -> Result<W, WriteError> {
        for one in statistics {
            let (first, last) = Self::interface_state(&mut self.interfaces, one.interface)?.times.unwrap_or((0, 0));
            let block = self.block.begin(INTERFACE_STATISTICS);
            block.u32(u32::from(one.interface.0)).time(last);
            block.timed_option(ISB_STARTTIME, first).timed_option(ISB_ENDTIME, last);
            block.option(ISB_IFRECV, &one.seen.to_le_bytes()).option(ISB_OSDROP, &one.dropped.to_le_bytes());
            block.end_of_options();
            self.put()?;
        }
        self.flush()?;
        Ok(self.to)
    }

    fn interface_state(
        interfaces: &mut [InterfaceState],
        index: InterfaceIndex,
    ) -> Result<&mut InterfaceState, WriteError> {
        let there = interfaces.len();
        interfaces.get_mut(usize::from(index.0)).ok_or(WriteError::NoInterface(index.0, there))
    }

    fn put(&mut self) -> Result<(), WriteError> {
        Ok(self.to.write_all(self.block.end())?)
    }
}

/// Returns the two bits of a direction.
const fn flags(direction: CaptureDirection) -> u32 {
    match direction {
        CaptureDirection::Unknown => 0,
        CaptureDirection::Received => 1,
        CaptureDirection::Sent => 2,
    }
}

/// A block: its type, its length, its contents, its length again.
#[derive(Debug, Default)]
struct Block(Vec<u8>);

/// The longest block is a packet with a comment, and its length fits in 32 bits.
const _: () = assert!((SNAP_BYTES_MAX as u64) + (u16::MAX as u64) + 128 < u32::MAX as u64);

impl Block {
    fn begin(&mut self, kind: u32) -> &mut Self {
        self.0.clear();
        self.u32(kind).u32(0)
    }

    /// Completes the block and returns its bytes.
    fn end(&mut self) -> &[u8] {
        let bytes = self.0.len() as u32 + 4;
        self.0[4..8].copy_from_slice(&bytes.to_le_bytes());
        self.u32(bytes);
        &self.0
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Appends a time, the upper half first.
    fn time(&mut self, time_ns: u64) -> &mut Self {
        self.u32((time_ns >> 32) as u32).u32(time_ns as u32)
    }

    /// Appends bytes, padded with zeros to a multiple of four.
    fn padded(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Appends an option. `value` is short enough for its length field, because texts are cut beforehand.
    fn option(&mut self, code: u16, value: &[u8]) -> &mut Self {
        self.u16(code).u16(value.len() as u16).padded(value)
    }

    fn timed_option(&mut self, code: u16, time_ns: u64) -> &mut Self {
        self.u16(code).u16(8).time(time_ns)
    }

    fn end_of_options(&mut self) {
        self.u32(0);
    }
}
