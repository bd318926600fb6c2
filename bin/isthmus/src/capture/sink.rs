//! The file of a capture: what the daemon says, in the pcapng format, and how much of it there is.

use std::collections::BTreeMap;
use std::io::Write;

use isthmus_capture::Statistics;
use isthmus_capture::pcapng::{WriteError, Writer};
use isthmus_capture::stream::Message;
use serde::Serialize;

/// How much was captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Total {
    /// Frames that were written.
    pub(super) frames: u64,
    /// Bytes that they had.
    pub(super) bytes: u64,
    /// Frames that are missing.
    pub(super) dropped: u64,
}

/// A capture that is being written.
#[derive(Debug)]
pub(super) struct Sink<W> {
    writer: Writer<W>,
    interfaces: usize,
    most: Option<u64>,
    frames: u64,
    bytes: u64,
    statistics: BTreeMap<u16, Statistics>,
}

impl<W: Write> Sink<W> {
    /// Writes the beginning, and so many frames at most.
    pub(super) fn new(to: W, most: Option<u64>) -> Result<Self, WriteError> {
        let (interfaces, frames, bytes) = (0, 0, 0);
        Ok(Self { writer: Writer::new(to, &[])?, interfaces, most, frames, bytes, statistics: BTreeMap::new() })
    }

    /// Writes what stands in a message. True if no further frames are wanted.
    pub(super) fn take(&mut self, message: &Message<'_>) -> Result<bool, WriteError> {
        match message {
            Message::Interface(interface) => {
                self.writer.add(interface)?;
                self.interfaces += 1;
            }
            Message::Frame(record) if !self.is_full() => {
                self.writer.write(record)?;
                self.frames += 1;
                self.bytes += u64::from(record.original_bytes);
            }
            Message::Statistics(told) => drop(self.statistics.insert(told.interface.0, *told)),
            Message::Frame(_) | Message::Begin | Message::End => {}
        }
        Ok(self.is_full())
    }

    /// Nothing has come yet.
    pub(super) fn is_new(&self) -> bool {
        self.interfaces == 0
    }

    pub(super) fn total(&self) -> Total {
        let dropped = self.statistics.values().map(|told| told.dropped).sum();
        Total { frames: self.frames, bytes: self.bytes, dropped }
    }

    /// What has been written so far reaches whoever reads the other end.
    pub(super) fn flush(&mut self) -> Result<(), WriteError> {
        self.writer.flush()
    }

    /// Ends the file with how much is missing.
    pub(super) fn finish(self) -> (Total, Result<(), WriteError>) {
        let total = self.total();
        let there = |told: &Statistics| usize::from(told.interface.0) < self.interfaces;
        let statistics: Vec<Statistics> = self.statistics.values().copied().filter(there).collect();
        (total, self.writer.finish(&statistics).map(drop))
    }

    fn is_full(&self) -> bool {
        self.most.is_some_and(|most| self.frames >= most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_capture::{Direction, Interface, InterfaceIndex, Record};

    fn frame(bytes: &[u8]) -> Message<'_> {
        let (interface, direction) = (InterfaceIndex(0), Direction::Sent);
        Message::Frame(Record { time_ns: 7, interface, direction, original_bytes: 1500, bytes })
    }

    #[test]
    fn no_more_frames_than_wanted_are_written() {
        let mut sink = Sink::new(Vec::new(), Some(2)).unwrap();
        assert!(sink.is_new());
        assert!(!sink.take(&Message::Interface(Interface::new("eth0", ""))).unwrap());
        let full: Vec<bool> = (0..3).map(|_| sink.take(&frame(&[1; 60])).unwrap()).collect();
        assert_eq!(full, [false, true, true]);
        let told = |dropped| Message::Statistics(Statistics { interface: InterfaceIndex(0), seen: 9, dropped });
        sink.take(&told(3)).unwrap();
        sink.take(&told(4)).unwrap();
        let (total, finished) = sink.finish();
        assert_eq!(total, Total { frames: 2, bytes: 3000, dropped: 4 });
        finished.unwrap();
    }

    #[test]
    fn statistics_of_an_interface_that_never_came_are_no_trouble() {
        let mut sink = Sink::new(Vec::new(), None).unwrap();
        sink.take(&Message::Statistics(Statistics { interface: InterfaceIndex(9), seen: 1, dropped: 0 })).unwrap();
        sink.finish().1.unwrap();
    }

    #[test]
    fn a_frame_of_an_interface_that_never_came_is_an_error() {
        let mut sink = Sink::new(Vec::new(), None).unwrap();
        assert!(matches!(sink.take(&frame(&[])), Err(WriteError::NoInterface(0, 0))));
    }
}
