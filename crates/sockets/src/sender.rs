//! The sending side of one direction.

use isthmus_layout::sockets::StreamPath;

use crate::Violation;

/// The words of the receiver that matter for a switch. The caller fetches `taken` before it fetches the receiver's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderView {
    /// The receiver watches the rings.
    pub attached: bool,
    /// The number of switches that the receiver has taken.
    pub taken: u32,
    /// The receiver asks for TCP.
    pub tcp_please: bool,
}

/// A switch to publish: first the tail, if the path is a ring, then the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The number of switches of this direction so far, with this one. It wraps.
    pub count: u32,
    /// The position from which on the path holds.
    pub at: u64,
    /// The path from there on.
    pub path: StreamPath,
    /// The bytes of this direction that went by TCP so far.
    pub tcp_bytes: u64,
}

/// Bytes in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingBytes {
    /// The ring.
    pub path: StreamPath,
    /// The position of the first byte.
    pub at: u64,
    /// The number of bytes.
    pub len: u32,
}

/// The time after which a direction goes to TCP if its ring stays full and the receiver reads nothing. TCP takes some megabytes more.
pub const SPILL_MS: u64 = 10;

/// The sending side of one direction: its position, and where the next bytes go.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Sender {
    position: u64,
    /// The receiver's position as far as this side knows it. It is never ahead of `position`.
    head: u64,
    /// The position of the last switch.
    switched_at: u64,
    /// The position of the switch before it.
    last_switched_at: u64,
    tcp_bytes: u64,
    switches: u32,
    taken: u32,
    path: StreamPath,
    /// The path before the last switch.
    last_path: StreamPath,
    /// The receiver's words when the ring was found full, and the time.
    full_at: (u32, u32),
    full_since_ms: u64,
    /// Calls of the kernel that send on TCP now. Their number of bytes is not known yet.
    in_tcp: u32,
    /// A write found the small ring full. Programs rely on TCP to take more than that, so the large ring follows.
    was_full: bool,
    /// The ring was full for [`SPILL_MS`].
    is_stuck: bool,
    /// The large ring was stuck. The direction returns to it.
    was_large: bool,
    only_tcp: bool,
    abandoned: bool,
}

impl Sender {
    /// The number of bytes sent since the connection began.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The path of the next byte.
    pub fn path(&self) -> StreamPath {
        self.path
    }

    /// The bytes that fit into the ring, as far as this side knows. 0 on TCP.
    pub fn room(&self) -> u32 {
        match self.path {
            StreamPath::Tcp => 0,
            // While a switch is not taken, bytes before it lie elsewhere.
            ring => ring.bytes() - (self.position - self.head.max(self.switched_at)) as u32,
        }
    }

    /// The bytes in rings that the receiver has not read, as far as this side knows.
    pub fn unread(&self) -> u64 {
        match self.path {
            StreamPath::Tcp => self.switched_at.saturating_sub(self.head),
            _ => self.position - self.head,
        }
    }

    /// True if sending was given up, because the peer does not read any more.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// True if the receiver has not taken the last switch.
    pub fn is_switching(&self) -> bool {
        self.taken != self.switches
    }

    /// The number of switches that the receiver has not taken, at most 2.
    fn outstanding(&self) -> u32 {
        self.switches.wrapping_sub(self.taken)
    }

    /// Keeps this direction on TCP, or no longer.
    pub fn keep_on_tcp(&mut self, keep: bool) {
        self.only_tcp = keep;
    }

    /// True while the kernel sends on TCP for this end.
    pub fn is_in_tcp(&self) -> bool {
        self.in_tcp > 0
    }

    /// Starts a call of the kernel that sends on TCP, which is the path.
    pub fn begin_tcp(&mut self) {
        debug_assert!(self.path == StreamPath::Tcp);
        self.in_tcp += 1;
    }

    /// Ends a call of the kernel that has sent `bytes` on TCP.
    pub fn end_tcp(&mut self, bytes: u64) {
        self.in_tcp -= 1;
        self.position += bytes;
        self.tcp_bytes += bytes;
    }

    /// Counts `bytes` that were written into the ring. They are at most [`Self::room`].
    pub fn wrote(&mut self, bytes: u32) {
        debug_assert!(bytes <= self.room());
        self.position += u64::from(bytes);
        self.is_stuck = false;
    }

    /// True if the next write can send: it finds room, or takes another path. `seen` and `reads_tcp` are as in [`Self::consider`].
    pub fn can_send(&self, seen: SenderView, reads_tcp: impl Fn() -> bool) -> bool {
        let mut next = *self;
        let finds_room = |next: &mut Self| match next.consider(seen, &reads_tcp) {
            Ok(_) => next.path == StreamPath::Tcp || next.room() > 0,
            Err(_) => true, // The write reports the violation.
        };
        // A write that finds the ring full decides once more.
        finds_room(&mut next) || {
            next.was_full = true;
            finds_room(&mut next)
        }
    }

    /// Counts a write, or a wait for room, that found the ring full. `head` is the receiver's word as of now, and `now_ms` the time of any
    /// clock. Returns true if the ring was full for [`SPILL_MS`] and the receiver has read nothing.
    pub fn was_full(&mut self, head: u32, now_ms: u64) -> bool {
        let at = (head, self.taken);
        if !self.was_full || self.full_at != at {
            (self.was_full, self.full_at, self.full_since_ms) = (true, at, now_ms);
        }
        self.is_stuck = now_ms.saturating_sub(self.full_since_ms) >= SPILL_MS;
        self.is_stuck
    }

    /// Notes the number of switches that the receiver has taken.
    pub fn saw_taken(&mut self, taken: u32) -> Result<(), Violation> {
        if self.abandoned || taken == self.taken {
            return Ok(());
        }
        let left = self.switches.wrapping_sub(taken);
        if left >= self.outstanding() {
            return Err(Violation::TakenOutside);
        }
        self.taken = taken;
        // The receiver took the switch, so it has read everything before it.
        self.head = self.head.max(if left == 0 { self.switched_at } else { self.last_switched_at });
        Ok(())
    }

    /// Notes the receiver's position, low 32 bits. The caller has fetched and noted the number of switches taken before.
    ///
    /// While this side does not know that the last switch was taken, the word may be older than the switch, because the receiver does not
    /// publish what it reads from TCP. The word may also be newer. Only a position before the switch counts then.
    pub fn saw_head(&mut self, head: u32) -> Result<(), Violation> {
        let is_loose = self.is_switching() || self.path == StreamPath::Tcp;
        let end = if is_loose { self.switched_at } else { self.position };
        if self.abandoned {
            return Ok(());
        }
        let unread = u64::from((end as u32).wrapping_sub(head));
        match unread <= end - self.head {
            true => self.head = end - unread,
            false if is_loose => (),
            false => return Err(Violation::HeadOutside),
        }
        Ok(())
    }

    /// Decides about a switch before the next bytes are sent. `reads_tcp` returns whether the receiver reads TCP in a call that began without
    /// a limit. It fetches that after a fence.
    pub fn consider(
        &mut self,
        seen: SenderView,
        reads_tcp: impl FnOnce() -> bool,
    ) -> Result<Option<Announcement>, Violation> {
        self.saw_taken(seen.taken)?;
        let wanted = self.wanted(seen);
        if self.abandoned || wanted == self.path || self.in_tcp > 0 {
            return Ok(None);
        }
        let may_switch = match wanted {
            StreamPath::Tcp => self.may_go_to_tcp(reads_tcp),
            _ => self.outstanding() == 0, // The second switch is kept for the way to TCP.
        };
        Ok(may_switch.then(|| self.switch(wanted)))
    }

    /// True unless the receiver reads TCP without a limit, before a switch that it has not taken. It would take bytes behind the ring's.
    fn may_go_to_tcp(&self, reads_tcp: impl FnOnce() -> bool) -> bool {
        self.outstanding() == 0 || self.last_path != StreamPath::Tcp || !reads_tcp()
    }

    fn wanted(&self, seen: SenderView) -> StreamPath {
        match self.path {
            _ if self.only_tcp || seen.tcp_please => StreamPath::Tcp,
            StreamPath::Tcp if seen.attached && self.was_large => StreamPath::Large,
            StreamPath::Tcp if seen.attached => StreamPath::Small,
            StreamPath::Small if self.was_full && !self.is_switching() => StreamPath::Large,
            StreamPath::Small | StreamPath::Large if self.is_stuck => StreamPath::Tcp,
            path => path,
        }
    }

    fn switch(&mut self, path: StreamPath) -> Announcement {
        if self.path == StreamPath::Tcp {
            self.head = self.position; // The receiver has read all earlier rings: it took the switch to TCP.
        }
        self.switches = self.switches.wrapping_add(1);
        (self.last_switched_at, self.switched_at) = (self.switched_at, self.position);
        (self.last_path, self.path) = (self.path, path);
        self.was_large = self.is_stuck && self.last_path == StreamPath::Large;
        (self.was_full, self.is_stuck) = (false, false);
        Announcement { count: self.switches, at: self.position, path, tcp_bytes: self.tcp_bytes }
    }

    /// Sends on TCP from now on, because the receiver has left the rings. The words are its last ones. Returns the bytes that it has not
    /// read, in order. They go by TCP before all others. None if some lie before a switch to TCP, so that they cannot be sent again.
    pub fn take_back(&mut self, taken: u32, head: u32) -> Result<Option<[RingBytes; 2]>, Violation> {
        self.saw_taken(taken)?;
        self.saw_head(head)?;
        let bytes = |path, from: u64, to: u64| RingBytes { path, at: from, len: (to - from) as u32 };
        let (nothing, at) = (bytes(StreamPath::Small, self.position, self.position), self.position);
        let unread = match (self.path, self.is_switching()) {
            _ if self.abandoned => [nothing; 2],
            (StreamPath::Tcp, _) if self.unread() > 0 => {
                self.abandon();
                return Ok(None);
            }
            (StreamPath::Tcp, _) => [nothing; 2],
            (path, true) if self.last_path == StreamPath::Tcp => [bytes(path, self.switched_at, at), nothing],
            (path, true) => [bytes(self.last_path, self.head, self.switched_at), bytes(path, self.switched_at, at)],
            (path, false) => [bytes(path, self.head, at), nothing],
        };
        self.abandon();
        self.position -= unread.iter().map(|bytes| u64::from(bytes.len)).sum::<u64>();
        (self.switched_at, self.head) = (self.position, self.position);
        Ok(Some(unread))
    }

    /// Sends on TCP from now on, without an announcement, because the peer does not read any more. The caller has noted the receiver's
    /// words before; later ones are ignored.
    pub fn abandon(&mut self) {
        if self.path != StreamPath::Tcp {
            self.switched_at = self.position;
            self.path = StreamPath::Tcp;
        }
        self.abandoned = true;
    }
}

#[cfg(test)]
mod tests;
