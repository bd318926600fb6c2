//! The messages between the two sides of a check, and transports for them.
//!
//! ```text
//!   threads   two ends in one process: values as they are
//!   lines     anything that reads and writes: a line of text each      grant 0000000000100000
//! ```

use super::CheckSide;
use crate::Platform;
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, Sender, channel};

/// The other side is gone, or sent an unexpected message. Its own output says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{CLOSED}: {0}")]
pub struct TransportClosed(pub String);

pub(super) const CLOSED: &str = "the other side is gone";

/// A message between the two sides.
#[derive(Debug)]
pub enum CheckMessage<P: Platform> {
    /// A barrier: when it arrives, all that its sender did before is visible.
    Barrier,
    /// A number.
    Word(u32),
    /// Memory that the other side may map.
    Grant(P::Grant),
    /// A doorbell that the other side may ring.
    DoorbellToken(P::DoorbellToken),
}

/// The way to the other side, in order and without loss.
pub trait CheckTransport<P: Platform> {
    /// Tells.
    fn send(&mut self, message: CheckMessage<P>) -> Result<(), TransportClosed>;
    /// Hears the next message, as long as that takes.
    fn receive(&mut self) -> Result<CheckMessage<P>, TransportClosed>;
}

/// One of two ends in the same process.
#[derive(Debug)]
pub struct ThreadTransport<P: Platform> {
    out: Sender<CheckMessage<P>>,
    into: Receiver<CheckMessage<P>>,
}

/// Both ends of a transport between two threads.
pub fn thread_pair<P: Platform>() -> (ThreadTransport<P>, ThreadTransport<P>) {
    let (to_other, from_one) = channel();
    let (to_one, from_other) = channel();
    (ThreadTransport { out: to_other, into: from_other }, ThreadTransport { out: to_one, into: from_one })
}

impl<P: Platform> CheckTransport<P> for ThreadTransport<P> {
    fn send(&mut self, message: CheckMessage<P>) -> Result<(), TransportClosed> {
        self.out.send(message).map_err(|_| TransportClosed("its thread ended".to_owned()))
    }

    fn receive(&mut self) -> Result<CheckMessage<P>, TransportClosed> {
        self.into.recv().map_err(|_| TransportClosed("its thread ended".to_owned()))
    }
}

/// A grant or a doorbell token that can be sent as bytes. Bytes from the other side may be anything.
pub trait WireValue: Sized {
    /// The bytes.
    fn emit(&self) -> Vec<u8>;
    /// The value; None if these bytes are none.
    fn parse(bytes: &[u8]) -> Option<Self>;
}

/// A transport over anything that carries text: a socket, a serial line, a console.
#[derive(Debug)]
pub struct LineTransport<R, W> {
    from: R,
    to: W,
}

impl<R: BufRead, W: Write> LineTransport<R, W> {
    /// Reads the other side's lines from `from`, and writes ours to `to`. Lines without our prefix are skipped, because
    /// a console carries other output, too.
    pub fn new(from: R, to: W) -> Self {
        Self { from, to }
    }
}

/// The prefix of each of our lines.
const LINE_PREFIX: &str = "@isthmus ";

impl<P, R, W> CheckTransport<P> for LineTransport<R, W>
where
    P: Platform,
    P::Grant: WireValue,
    P::DoorbellToken: WireValue,
    R: BufRead,
    W: Write,
{
    fn send(&mut self, message: CheckMessage<P>) -> Result<(), TransportClosed> {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let text = match message {
            CheckMessage::Barrier => "barrier".to_owned(),
            CheckMessage::Word(word) => format!("word {word}"),
            CheckMessage::Grant(grant) => format!("grant {}", hex(grant.emit())),
            CheckMessage::DoorbellToken(token) => format!("doorbell {}", hex(token.emit())),
        };
        let line = format!("{LINE_PREFIX}{text}\n");
        let written = self.to.write_all(line.as_bytes()).and_then(|()| self.to.flush());
        written.map_err(|error| TransportClosed(error.to_string()))
    }

    fn receive(&mut self) -> Result<CheckMessage<P>, TransportClosed> {
        loop {
            let mut line = Vec::new();
            let bytes = self.from.read_until(b'\n', &mut line).map_err(|error| TransportClosed(error.to_string()))?;
            if bytes == 0 {
                return Err(TransportClosed("the line ended".to_owned()));
            }
            let line = String::from_utf8_lossy(&line);
            if let Some(text) = line.trim().strip_prefix(LINE_PREFIX) {
                return parse(text).ok_or_else(|| TransportClosed(format!("it said {text:?}")));
            }
        }
    }
}

fn parse<P>(text: &str) -> Option<CheckMessage<P>>
where
    P: Platform,
    P::Grant: WireValue,
    P::DoorbellToken: WireValue,
{
    let (what, rest) = text.split_once(' ').unwrap_or((text, ""));
    match what {
        "barrier" => Some(CheckMessage::Barrier),
        "word" => Some(CheckMessage::Word(rest.parse().ok()?)),
        "grant" => Some(CheckMessage::Grant(P::Grant::parse(&unhex(rest)?)?)),
        "doorbell" => Some(CheckMessage::DoorbellToken(P::DoorbellToken::parse(&unhex(rest)?)?)),
        _ => None,
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()).collect()
}

impl<P: Platform> CheckSide<'_, P> {
    #[track_caller]
    pub(super) fn send(&mut self, message: CheckMessage<P>) {
        self.transport.send(message).unwrap_or_else(|closed| panic!("{closed}"));
    }

    #[track_caller]
    fn receive(&mut self) -> CheckMessage<P> {
        self.transport.receive().unwrap_or_else(|closed| panic!("{closed}"))
    }

    /// Waits until both are here.
    #[track_caller]
    pub(super) fn synchronize(&mut self) {
        self.send(CheckMessage::Barrier);
        let CheckMessage::Barrier = self.receive() else { panic!("{CLOSED}: it is in another step") };
    }

    #[track_caller]
    pub(super) fn receive_grant(&mut self) -> P::Grant {
        let CheckMessage::Grant(grant) = self.receive() else { panic!("{CLOSED}: it is in another step") };
        grant
    }

    #[track_caller]
    pub(super) fn receive_doorbell_token(&mut self) -> P::DoorbellToken {
        let CheckMessage::DoorbellToken(token) = self.receive() else { panic!("{CLOSED}: it is in another step") };
        token
    }

    #[track_caller]
    pub(super) fn receive_word(&mut self) -> u32 {
        let CheckMessage::Word(word) = self.receive() else { panic!("{CLOSED}: it is in another step") };
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Doorbell, PlatformError};
    use isthmus_layout::RegionSize;
    use isthmus_shm::{Access, Mapping};

    /// A platform of numbers, for the lines alone.
    #[derive(Debug)]
    struct Numbers;

    impl WireValue for u16 {
        fn emit(&self) -> Vec<u8> {
            self.to_be_bytes().to_vec()
        }
        fn parse(bytes: &[u8]) -> Option<Self> {
            Some(Self::from_be_bytes(bytes.try_into().ok()?))
        }
    }

    impl Platform for Numbers {
        type Peer = ();
        type Memory = ();
        type Grant = u16;
        type DoorbellToken = u16;
        type DoorbellSender = Doorbell;
        type DoorbellReceiver = Doorbell;
        fn allocate(&self, _size: RegionSize, _to: &(), _access: Access) -> Result<(), PlatformError> {
            Ok(())
        }
        fn map_own(&self, _memory: &()) -> Result<Mapping, PlatformError> {
            Ok(Mapping::private(RegionSize(4096)))
        }
        fn grant(&self, _memory: &(), _to: &(), _access: Access) -> Result<u16, PlatformError> {
            Ok(7)
        }
        fn map(&self, _grant: u16, size: RegionSize, _access: Access) -> Result<Mapping, PlatformError> {
            Ok(Mapping::private(size))
        }
        fn doorbell(&self, _for_peer: &()) -> Result<(Doorbell, u16), PlatformError> {
            Ok((Doorbell::new()?, 8))
        }
        fn doorbell_sender(&self, _bell: u16) -> Result<Doorbell, PlatformError> {
            Doorbell::new()
        }
    }

    fn received(text: &str) -> String {
        let mut lines = LineTransport::new(text.as_bytes(), Vec::new());
        let transport: &mut dyn CheckTransport<Numbers> = &mut lines;
        match transport.receive() {
            Ok(message) => format!("{message:?}"),
            Err(closed) => closed.to_string(),
        }
    }

    #[test]
    fn line_transport_carries_messages() {
        let mut lines = LineTransport::new(&b""[..], Vec::new());
        let transport: &mut dyn CheckTransport<Numbers> = &mut lines;
        for message in
            [CheckMessage::Barrier, CheckMessage::Word(77), CheckMessage::Grant(0x1234), CheckMessage::DoorbellToken(1)]
        {
            transport.send(message).unwrap();
        }
        let text = String::from_utf8(lines.to).unwrap();
        assert_eq!(text, "@isthmus barrier\n@isthmus word 77\n@isthmus grant 1234\n@isthmus doorbell 0001\n");
        let said: Vec<String> = text.lines().map(received).collect();
        assert_eq!(said, ["Barrier", "Word(77)", "Grant(4660)", "DoorbellToken(1)"]);
    }

    #[test]
    fn line_transport_closes_on_bad_messages_and_skips_other_lines() {
        assert_eq!(received("[    1.0] hello\r\n@isthmus word 5\r\n"), "Word(5)");
        for text in [
            "@isthmus",
            "@isthmus word x",
            "@isthmus grant 1",
            "@isthmus grant 123456",
            "@isthmus grant é0",
            "@isthmus x",
        ] {
            assert!(received(&format!("{text} \n")).starts_with(CLOSED), "{text}");
        }
        assert!(received("").starts_with(CLOSED));
    }
}
