//! The file of a capture: the messages of the daemon in the pcapng format, and their totals.

use std::collections::BTreeMap;
use std::io::Write;

use isthmus_capture::InterfaceStatistics;
use isthmus_capture::pcapng::{WriteError, Writer};
use isthmus_capture::stream::CaptureMessage;
use serde::Serialize;

/// The totals of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct CaptureTotals {
    /// Frames that were written.
    pub(super) frames: u64,
    /// The bytes of these frames.
    pub(super) bytes: u64,
    /// Frames that are missing.
    pub(super) dropped: u64,
}

/// A capture that is being written.
#[derive(Debug)]
pub(super) struct Sink<W> {
    writer: Writer<W>,
    interfaces: usize,
    frames_max: Option<u64>,
    frames: u64,
    bytes: u64,
    statistics: BTreeMap<u16, InterfaceStatistics>,
}

impl<W: Write> Sink<W> {
    /// Writes the header. At most `frames_max` frames follow.
    pub(super) fn new(to: W, frames_max: Option<u64>) -> Result<Self, WriteError> {
        let (interfaces, frames, bytes) = (0, 0, 0);
        Ok(Self { writer: Writer::new(to, &[])?, interfaces, frames_max, frames, bytes, statistics: BTreeMap::new() })
    }

    /// Writes the content of a message. Returns true if no further frames are wanted.
    pub(super) fn handle_message(&mut self, message: &CaptureMessage<'_>) -> Result<bool, WriteError> {
        match message {
            CaptureMessage::Interface(interface) => {
                self.writer.add(interface)?;
                self.interfaces += 1;
            }
            CaptureMessage::Frame(record) if !self.is_full() => {
                self.writer.write(record)?;
                self.frames += 1;
                self.bytes += u64::from(record.original_bytes);
            }
            CaptureMessage::Statistics(statistics) => {
                self.statistics.insert(statistics.interface.0, *statistics);
            }
            CaptureMessage::Frame(_) | CaptureMessage::Begin | CaptureMessage::End => {}
        }
        Ok(self.is_full())
    }

    /// Returns whether no interface has arrived yet.
    pub(super) fn is_new(&self) -> bool {
        self.interfaces == 0
    }

    pub(super) fn total(&self) -> CaptureTotals {
        let dropped = self.statistics.values().map(|statistics| statistics.dropped).sum();
        CaptureTotals { frames: self.frames, bytes: self.bytes, dropped }
    }

    /// Flushes the written frames, so that a reader gets them.
    pub(super) fn flush(&mut self) -> Result<(), WriteError> {
        self.writer.flush()
    }

    /// Ends the file with the statistics.
    pub(super) fn finish(self) -> (CaptureTotals, Result<(), WriteError>) {
        let total = self.total();
        let there = |statistics: &InterfaceStatistics| usize::from(statistics.interface.0) < self.interfaces;
        let statistics: Vec<InterfaceStatistics> = self.statistics.values().copied().filter(there).collect();
        (total, self.writer.finish(&statistics).map(drop))
    }

    fn is_full(&self) -> bool {
        self.frames_max.is_some_and(|frames_max| self.frames >= frames_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_capture::{CaptureDirection, CapturedFrame, InterfaceIndex, PcapInterface};

    fn frame(bytes: &[u8]) -> CaptureMessage<'_> {
        let (interface, direction) = (InterfaceIndex(0), CaptureDirection::Sent);
        CaptureMessage::Frame(CapturedFrame { time_ns: 7, interface, direction, original_bytes: 1500, bytes })
    }

    #[test]
    fn no_more_frames_than_wanted_are_written() {
        let mut sink = Sink::new(Vec::new(), Some(2)).unwrap();
        assert!(sink.is_new());
        assert!(!sink.handle_message(&CaptureMessage::Interface(PcapInterface::new("eth0", ""))).unwrap());
        let full: Vec<bool> = (0..3).map(|_| sink.handle_message(&frame(&[1; 60])).unwrap()).collect();
        assert_eq!(full, [false, true, true]);
        let statistics = |dropped| {
            CaptureMessage::Statistics(InterfaceStatistics { interface: InterfaceIndex(0), seen: 9, dropped })
        };
        sink.handle_message(&statistics(3)).unwrap();
        sink.handle_message(&statistics(4)).unwrap();
        let (total, finished) = sink.finish();
        assert_eq!(total, CaptureTotals { frames: 2, bytes: 3000, dropped: 4 });
        finished.unwrap();
    }

    #[test]
    fn statistics_of_an_unknown_interface_are_ignored() {
        let mut sink = Sink::new(Vec::new(), None).unwrap();
        sink.handle_message(&CaptureMessage::Statistics(InterfaceStatistics {
            interface: InterfaceIndex(9),
            seen: 1,
            dropped: 0,
        }))
        .unwrap();
        sink.finish().1.unwrap();
    }

    #[test]
    fn frame_of_an_unknown_interface_is_an_error() {
        let mut sink = Sink::new(Vec::new(), None).unwrap();
        assert!(matches!(sink.handle_message(&frame(&[])), Err(WriteError::NoInterface(0, 0))));
    }
}
