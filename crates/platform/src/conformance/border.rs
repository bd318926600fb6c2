//! What the two sides of a check tell one another, and ways for it to go.
//!
//! ```text
//!   threads   two ends in one process: values as they are
//!   Lines     anything that reads and writes: a line of text each      grant 0000000000100000
//! ```

use super::Party;
use crate::Platform;
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, Sender, channel};

/// The other side is gone, or says what it should not. Its own output says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{CLOSED}: {0}")]
pub struct BorderClosed(pub String);

pub(super) const CLOSED: &str = "the other side is gone";

/// What is told.
#[derive(Debug)]
pub enum Message<P: Platform> {
    /// I am here: whoever hears it has all that I did before.
    Here,
    /// A number.
    Word(u32),
    /// Memory that the other side may map.
    Grant(P::Grant),
    /// A doorbell that the other side may ring.
    Bell(P::Bell),
}

/// The way to the other side, in order and without loss.
pub trait Border<P: Platform> {
    /// Tells.
    fn send(&mut self, message: Message<P>) -> Result<(), BorderClosed>;
    /// Hears the next message, as long as that takes.
    fn receive(&mut self) -> Result<Message<P>, BorderClosed>;
}

/// One of two ends in the same process.
#[derive(Debug)]
pub struct Thread<P: Platform> {
    out: Sender<Message<P>>,
    into: Receiver<Message<P>>,
}

/// Both ends of a border between two threads.
pub fn threads<P: Platform>() -> (Thread<P>, Thread<P>) {
    let (to_other, from_one) = channel();
    let (to_one, from_other) = channel();
    (Thread { out: to_other, into: from_other }, Thread { out: to_one, into: from_one })
}

impl<P: Platform> Border<P> for Thread<P> {
    fn send(&mut self, message: Message<P>) -> Result<(), BorderClosed> {
        self.out.send(message).map_err(|_| BorderClosed("its thread ended".to_owned()))
    }

    fn receive(&mut self) -> Result<Message<P>, BorderClosed> {
        self.into.recv().map_err(|_| BorderClosed("its thread ended".to_owned()))
    }
}

/// A grant or a bell that can be said in bytes. Bytes from the other side may be anything.
pub trait Portable: Sized {
    /// The bytes.
    fn emit(&self) -> Vec<u8>;
    /// The value; None if these bytes are none.
    fn parse(bytes: &[u8]) -> Option<Self>;
}

/// A border over anything that carries text: a socket, a serial line, a console.
#[derive(Debug)]
pub struct Lines<R, W> {
    from: R,
    to: W,
}

impl<R: BufRead, W: Write> Lines<R, W> {
    /// Reads the other side's lines from `from`, writes ours to `to`. Lines that begin otherwise are somebody else's and are passed over:
    /// a console carries more than this.
    pub fn new(from: R, to: W) -> Self {
        Self { from, to }
    }
}

/// What each of our lines begins with.
const MARK: &str = "@border ";

impl<P, R, W> Border<P> for Lines<R, W>
where
    P: Platform,
    P::Grant: Portable,
    P::Bell: Portable,
    R: BufRead,
    W: Write,
{
    fn send(&mut self, message: Message<P>) -> Result<(), BorderClosed> {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let text = match message {
            Message::Here => "here".to_owned(),
            Message::Word(word) => format!("word {word}"),
            Message::Grant(grant) => format!("grant {}", hex(grant.emit())),
            Message::Bell(bell) => format!("bell {}", hex(bell.emit())),
        };
        let line = format!("{MARK}{text}\n");
        let written = self.to.write_all(line.as_bytes()).and_then(|()| self.to.flush());
        written.map_err(|error| BorderClosed(error.to_string()))
    }

    fn receive(&mut self) -> Result<Message<P>, BorderClosed> {
        loop {
            let mut line = Vec::new();
            let bytes = self.from.read_until(b'\n', &mut line).map_err(|error| BorderClosed(error.to_string()))?;
            if bytes == 0 {
                return Err(BorderClosed("the line ended".to_owned()));
            }
            let line = String::from_utf8_lossy(&line);
            if let Some(text) = line.trim().strip_prefix(MARK) {
                return parse(text).ok_or_else(|| BorderClosed(format!("it said {text:?}")));
            }
        }
    }
}

fn parse<P>(text: &str) -> Option<Message<P>>
where
    P: Platform,
    P::Grant: Portable,
    P::Bell: Portable,
{
    let (what, rest) = text.split_once(' ').unwrap_or((text, ""));
    match what {
        "here" => Some(Message::Here),
        "word" => Some(Message::Word(rest.parse().ok()?)),
        "grant" => Some(Message::Grant(P::Grant::parse(&unhex(rest)?)?)),
        "bell" => Some(Message::Bell(P::Bell::parse(&unhex(rest)?)?)),
        _ => None,
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()).collect()
}

impl<P: Platform> Party<'_, P> {
    #[track_caller]
    pub(super) fn tell(&mut self, message: Message<P>) {
        self.border.send(message).unwrap_or_else(|closed| panic!("{closed}"));
    }

    #[track_caller]
    fn hear(&mut self) -> Message<P> {
        self.border.receive().unwrap_or_else(|closed| panic!("{closed}"))
    }

    /// Waits until both are here.
    #[track_caller]
    pub(super) fn meet(&mut self) {
        self.tell(Message::Here);
        let Message::Here = self.hear() else { panic!("{CLOSED}: it is in another step") };
    }

    #[track_caller]
    pub(super) fn grant(&mut self) -> P::Grant {
        let Message::Grant(grant) = self.hear() else { panic!("{CLOSED}: it is in another step") };
        grant
    }

    #[track_caller]
    pub(super) fn bell(&mut self) -> P::Bell {
        let Message::Bell(bell) = self.hear() else { panic!("{CLOSED}: it is in another step") };
        bell
    }

    #[track_caller]
    pub(super) fn word(&mut self) -> u32 {
        let Message::Word(word) = self.hear() else { panic!("{CLOSED}: it is in another step") };
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

    impl Portable for u16 {
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
        type Bell = u16;
        type Ringer = Doorbell;
        type Listener = Doorbell;
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
        fn ringer(&self, _bell: u16) -> Result<Doorbell, PlatformError> {
            Doorbell::new()
        }
    }

    fn heard(text: &str) -> String {
        let mut lines = Lines::new(text.as_bytes(), Vec::new());
        let border: &mut dyn Border<Numbers> = &mut lines;
        match border.receive() {
            Ok(message) => format!("{message:?}"),
            Err(closed) => closed.to_string(),
        }
    }

    #[test]
    fn lines_carry_what_was_said() {
        let mut lines = Lines::new(&b""[..], Vec::new());
        let border: &mut dyn Border<Numbers> = &mut lines;
        for message in [Message::Here, Message::Word(77), Message::Grant(0x1234), Message::Bell(1)] {
            border.send(message).unwrap();
        }
        let text = String::from_utf8(lines.to).unwrap();
        assert_eq!(text, "@border here\n@border word 77\n@border grant 1234\n@border bell 0001\n");
        let said: Vec<String> = text.lines().map(heard).collect();
        assert_eq!(said, ["Here", "Word(77)", "Grant(4660)", "Bell(1)"]);
    }

    #[test]
    fn what_is_no_message_closes_the_border_and_other_lines_are_passed_over() {
        assert_eq!(heard("[    1.0] hello\r\n@border word 5\r\n"), "Word(5)");
        for text in
            ["@border", "@border word x", "@border grant 1", "@border grant 123456", "@border grant é0", "@border x"]
        {
            assert!(heard(&format!("{text} \n")).starts_with(CLOSED), "{text}");
        }
        assert!(heard("").starts_with(CLOSED));
    }
}
