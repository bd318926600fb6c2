//! Files of captured frames in the pcapng format (draft-ietf-opsawg-pcapng), little-endian, one section.
//!
//! ```text
//!   section header │ interface description… │ enhanced packet… │ interface statistics…
//! ```
//!
//! Interfaces may also come later, between packets. Times are in nanoseconds. Written by ourselves: these are four kinds of
//! blocks, and the crate that writes them has not seen a release since 2023. What is written is read back with Wireshark's own
//! tools in this crate's tests.

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

/// The power of ten that a unit of time is: nanoseconds.
const NANOSECONDS: u8 = 9;

/// Why something was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A record or statistics of an interface that was not added.
    #[error("interface {0} of {1}")]
    NoInterface(u16, usize),
    /// More interfaces than there are numbers.
    #[error("no more than 65536 interfaces in a capture")]
    TooManyInterfaces,
    /// The file or pipe refuses.
    #[error("writing a capture: {0}")]
    Io(#[from] io::Error),
}

/// What is remembered of an interface.
#[derive(Debug)]
struct InterfaceState {
    snap_bytes: u32,
    /// Of its first frame and its last one.
    times: Option<(u64, u64)>,
}

/// A capture that is being written.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    interfaces: Vec<InterfaceState>,
    block: Block,
}

impl<W: Write> Writer<W> {
    /// Begins a capture. Each write is one block: a file wants a [`std::io::BufWriter`] around it.
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

    /// Another interface.
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

    /// A frame. What is longer than its interface keeps is cut.
    pub fn write(&mut self, record: &CapturedFrame<'_>) -> Result<(), WriteError> {
        self.write_commented(record, "")
    }

    /// A frame, and a word on it. No word if the comment is empty; 65535 bytes of it at most.
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

    /// What has been written so far reaches whoever reads the other end.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        Ok(self.to.flush()?)
    }

    /// Ends the capture with how much of it is missing.
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

/// The direction's two bits.
const fn flags(direction: CaptureDirection) -> u32 {
    match direction {
        CaptureDirection::Unknown => 0,
        CaptureDirection::Received => 1,
        CaptureDirection::Sent => 2,
    }
}

/// One block at a time: its type, twice its length, and between them what it says.
#[derive(Debug, Default)]
struct Block(Vec<u8>);

/// The longest block is a packet with a comment: its length fits.
const _: () = assert!((SNAP_BYTES_MAX as u64) + (u16::MAX as u64) + 128 < u32::MAX as u64);

impl Block {
    fn begin(&mut self, kind: u32) -> &mut Self {
        self.0.clear();
        self.u32(kind).u32(0)
    }

    /// The block's bytes, complete.
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

    /// Times stand with their upper half first.
    fn time(&mut self, time_ns: u64) -> &mut Self {
        self.u32((time_ns >> 32) as u32).u32(time_ns as u32)
    }

    /// Bytes, and zeros up to the next multiple of four.
    fn padded(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// `value` has no more bytes than an option can say: texts are cut before they come here.
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
