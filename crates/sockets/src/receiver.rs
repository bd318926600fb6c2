//! The receiving side of one direction.

use isthmus_layout::sockets::StreamPath;

use crate::Violation;

/// The bytes that TCP may hold in flight, at most: 1 GiB in the receiver's window, and 2 GiB in the sender's buffer. A switch further
/// ahead is a violation.
const TCP_IN_FLIGHT_MAX: u32 = 3 << 30;

/// Where the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receive {
    /// In the kernel's connection: read at most `limit` bytes.
    Tcp {
        /// The bytes up to the next switch.
        limit: u64,
    },
    /// In a ring.
    Ring {
        /// The ring.
        path: StreamPath,
        /// The position of the first byte.
        at: u64,
        /// The bytes that can be read now.
        available: u32,
    },
}

/// The receiving side of one direction: its position, and where the next bytes are.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Receiver {
    position: u64,
    /// The sender's position, as far as this side knows it.
    tail: u64,
    /// The position and path of a switch that was announced and not taken.
    next_at: u64,
    next_path: StreamPath,
    has_next: bool,
    /// The switch behind it leads to TCP. This is its position.
    second_at: u64,
    has_second: bool,
    path: StreamPath,
    taken: u32,
    /// Calls of the kernel that read from TCP now. Their number of bytes is not known yet.
    in_tcp: u32,
    /// This end reads TCP only, and the sender sends what it had not read there.
    left: bool,
}

impl Receiver {
    /// The number of bytes received since the connection began.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The path of the next byte.
    pub fn path(&self) -> StreamPath {
        self.path
    }

    /// The number of switches taken.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// The number of switches and the position, if the sender's words alone say whether the program can read: it can once a tail is
    /// another position. None on TCP, and before a switch that is known.
    pub fn awaited(&self) -> Option<(u32, u32)> {
        (self.path != StreamPath::Tcp && !self.has_next).then_some((self.taken, self.position as u32))
    }

    /// True if a call that reads from TCP would have no limit.
    pub fn reads_without_limit(&self) -> bool {
        self.path == StreamPath::Tcp && !self.has_next
    }

    /// True while the kernel reads from TCP for this end.
    pub fn is_in_tcp(&self) -> bool {
        self.in_tcp > 0
    }

    /// The bytes in the ring that can be read, as far as this side knows.
    pub fn available(&self) -> u32 {
        match self.next() {
            Receive::Tcp { .. } => 0,
            Receive::Ring { available, .. } => available,
        }
    }

    /// The bytes in rings that were not read, also behind switches. `tail` is the sender's position, low 32 bits, which the caller fetches
    /// after the words of [`Self::refresh`].
    pub fn unread(&self, tail: u32) -> u32 {
        match self.path {
            StreamPath::Tcp if !self.has_next => 0,
            // Both paths of TCP, before and behind the ring, are the kernel's to count.
            StreamPath::Tcp if self.has_second => (self.second_at - self.next_at) as u32,
            StreamPath::Tcp => {
                let behind = tail.wrapping_sub(self.next_at as u32);
                if behind <= self.next_path.bytes() { behind } else { 0 } // The next refresh of the ring reports a violation.
            }
            _ => (self.tail - self.position) as u32,
        }
    }

    /// Returns where the next bytes are.
    pub fn next(&self) -> Receive {
        let until_switch = if self.has_next { self.next_at.saturating_sub(self.position) } else { u64::MAX };
        match self.path {
            // Another call reads up to the switch, and bytes behind it may be on TCP already.
            StreamPath::Tcp if self.has_next && self.in_tcp > 0 => Receive::Tcp { limit: 0 },
            StreamPath::Tcp => Receive::Tcp { limit: until_switch },
            path => {
                let available = (self.tail - self.position).min(until_switch) as u32;
                Receive::Ring { path, at: self.position, available }
            }
        }
    }

    /// Notes the sender's words: its position, low 32 bits, and its number of switches. The caller fetches `tail` before `switches`, so a
    /// position behind a switch never comes without that switch. `fetch` returns the position, low 32 bits, and the path of the switch with a number.
    pub fn refresh(&mut self, tail: u32, switches: u32, fetch: impl Fn(u32) -> (u32, u32)) -> Result<(), Violation> {
        if self.left {
            return Ok(());
        }
        self.saw_switches(switches, fetch)?;
        if self.path == StreamPath::Tcp {
            // The tail says nothing here. A read that began before the switch was known may find bytes that a peer sent behind it.
            let is_beyond = self.has_next && self.position > self.next_at;
            return if is_beyond { Err(Violation::SwitchOutside) } else { Ok(()) };
        }
        let ahead = u64::from(tail.wrapping_sub(self.position as u32));
        let limit = match self.has_next {
            true => self.next_at - self.position + u64::from(self.next_path.bytes()),
            false => u64::from(self.path.bytes()),
        };
        if ahead < self.tail - self.position || ahead > limit {
            return Err(Violation::TailOutside);
        }
        self.tail = self.position + ahead;
        Ok(())
    }

    fn saw_switches(&mut self, count: u32, fetch: impl Fn(u32) -> (u32, u32)) -> Result<(), Violation> {
        let known = u32::from(self.has_next) + u32::from(self.has_second);
        let announced = count.wrapping_sub(self.taken);
        if announced < known || announced > 2 {
            return Err(Violation::SwitchOutOfTurn);
        }
        if announced >= 1 && !self.has_next {
            let (at, path) = see_switch(self.position, self.path, fetch(self.taken.wrapping_add(1)))?;
            (self.next_at, self.next_path, self.has_next) = (at, path, true);
        }
        if announced == 2 && !self.has_second {
            if self.next_path == StreamPath::Tcp {
                return Err(Violation::SwitchOutOfTurn);
            }
            let (at, path) = see_switch(self.next_at, self.next_path, fetch(count))?;
            if path != StreamPath::Tcp {
                return Err(Violation::SwitchOutOfTurn);
            }
            (self.second_at, self.has_second) = (at, true);
        }
        Ok(())
    }

    /// Takes the announced switch if everything before it was read. Returns the number of switches taken, which the caller publishes after
    /// the position.
    pub fn take(&mut self) -> Option<u32> {
        if !self.has_next || self.position != self.next_at || self.in_tcp > 0 {
            return None;
        }
        self.path = self.next_path;
        (self.next_at, self.next_path, self.has_next) = (self.second_at, StreamPath::Tcp, self.has_second);
        self.has_second = false;
        self.taken = self.taken.wrapping_add(1);
        self.tail = self.tail.max(self.position);
        Some(self.taken)
    }

    /// Leaves the rings: the next byte and all others come by TCP. Returns false, and changes nothing, if bytes are unread before a switch to
    /// TCP, because the sender cannot send them again.
    pub fn leave(&mut self) -> bool {
        let before_tcp = match (self.has_next, self.has_second, self.path) {
            (true, true, StreamPath::Tcp) => self.second_at - self.next_at,
            (true, true, _) => self.second_at - self.position,
            (true, false, _) if self.next_path == StreamPath::Tcp => self.next_at - self.position,
            _ => 0,
        };
        if before_tcp > 0 {
            return false;
        }
        (self.path, self.left) = (StreamPath::Tcp, true);
        (self.has_next, self.has_second) = (false, false);
        true
    }

    /// Starts a call of the kernel that reads from TCP, which is the path.
    pub fn begin_tcp(&mut self) {
        debug_assert!(self.path == StreamPath::Tcp);
        self.in_tcp += 1;
    }

    /// Ends a call of the kernel that has read `bytes` from TCP.
    pub fn end_tcp(&mut self, bytes: u64) {
        self.in_tcp -= 1;
        self.position += bytes;
    }

    /// Counts `bytes` that were read from the ring. They are at most [`Self::available`].
    pub fn read(&mut self, bytes: u32) {
        debug_assert!(bytes <= self.available());
        self.position += u64::from(bytes);
    }
}

/// Checks a switch from `path`, of which the bytes from `from` on are not read. Returns its position and its path.
fn see_switch(from: u64, path: StreamPath, (at, to): (u32, u32)) -> Result<(u64, StreamPath), Violation> {
    let to = StreamPath::from_word(to).filter(|to| *to != path).ok_or(Violation::PathUnknown)?;
    let ahead = at.wrapping_sub(from as u32);
    let limit = if path == StreamPath::Tcp { TCP_IN_FLIGHT_MAX } else { path.bytes() };
    if ahead > limit {
        return Err(Violation::SwitchOutside);
    }
    Ok((from + u64::from(ahead), to))
}

#[cfg(test)]
mod tests;
