//! The procedure of a caller: which words it loads and stores, and in which order. Callers of the engine follow it.
//!
//! Each `pause` is a place where the other end may act, or where the process may die. The procedure holds the lock of its end except in calls of
//! the kernel that it began with `begin_tcp`; it loads every word while it holds the lock.
//!
//! * The receiver loads TAIL before SWITCHES, and SWITCH_AT and SWITCH_PATH after it.
//! * A receiver that reads TCP without a limit sets READS_TCP first, loads the words once more, and clears it after the last such call.
//! * The sender loads TAKEN before HEAD.
//! * The sender publishes TAIL before it announces a switch to a ring. The receiver publishes HEAD before TAKEN.
//! * A receiver believes a FIN, or an error of the kernel, when it has loaded the words once more behind it, the ring is empty,
//!   and no other call reads TCP.
//! * An end attaches while no call reads TCP, and its later reads of TCP do not block in the kernel. If it sends no more, it says so first.
//! * A sender that finds no room checks whether the kernel's connection has hung up. An end that has seen a FIN keeps sending on TCP, and an end
//!   that has lost its peer abandons its ring, so that the kernel answers the next write.
//!   The daemon reports deaths that the kernel does not tell of.

use isthmus_layout::sockets::StreamPath;
use isthmus_sockets::{AtFin, Receive, SenderView, at_fin};

use crate::kernel::{Errno, Received, Run, Sent};
use crate::simulation::Simulation;

/// The process of an end died within a call.
pub(crate) struct Killed;

pub(crate) type Step<T> = Result<T, Killed>;

/// The result of a program's non-blocking read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Bytes(u64),
    WouldBlock,
    Eof,
    Reset,
}

/// The result of a program's non-blocking write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Bytes(u64),
    WouldBlock,
    Error,
}

impl Simulation {
    /// Sets ATTACHED. Returns false if that has to wait for a call.
    pub(crate) fn attach(&mut self, end: usize) -> Step<bool> {
        if self.ends[end].receiver.is_in_tcp() {
            return Ok(false);
        }
        self.ends[end].is_attached = true;
        self.words[end].half_closed = self.ends[end].is_shut;
        self.pause(end)?;
        self.words[end].attached = true;
        Ok(true)
    }

    pub(crate) fn write(&mut self, end: usize, len: u64) -> Step<Written> {
        if self.ends[end].is_shut {
            let sent = self.send(end, len);
            assert!(matches!(sent, Sent::Error(_)), "{sent:?}");
            return Ok(Written::Error);
        }
        if self.goes_by_ring(end)? && self.makes_room(end, len)? {
            return match self.ends[end].sender.room() {
                0 => Ok(Written::WouldBlock),
                room => self.write_ring(end, len.min(room.into())),
            };
        }
        self.ends[end].sender.begin_tcp();
        let sent = self.send(end, len);
        self.ends[end].sender.end_tcp(if let Sent::Bytes(bytes) = sent { bytes } else { 0 });
        Ok(match sent {
            Sent::Bytes(bytes) => Written::Bytes(bytes),
            Sent::WouldBlock => Written::WouldBlock,
            Sent::Error(_) => Written::Error,
        })
    }

    /// Switches the path of the next byte if that is due. Returns false if the byte goes by TCP.
    pub(crate) fn goes_by_ring(&mut self, end: usize) -> Step<bool> {
        if !self.ends[end].is_attached {
            return Ok(false);
        }
        let state = self.words[1 - end];
        self.pause(end)?;
        if state.closed {
            self.abandon(end)?;
            return Ok(false);
        }
        let taken = self.words[1 - end].taken;
        self.pause(end)?;
        let reads_tcp = self.words[1 - end].reads_tcp;
        self.pause(end)?;
        let view = SenderView { attached: state.attached, taken, tcp_please: state.tcp_please };
        let announced = self.ends[end].sender.consider(view, || reads_tcp).unwrap();
        if let Some(announced) = announced {
            self.count_switch(announced.path);
            self.counts.seconds += u64::from(announced.count.wrapping_sub(taken) == 2);
            if announced.path != StreamPath::Tcp {
                self.words[end].tail = announced.at as u32;
                self.pause(end)?;
            }
            let slot = announced.count as usize % 2;
            self.words[end].switch_at[slot] = announced.at as u32;
            self.words[end].switch_path[slot] = announced.path as u32;
            self.pause(end)?;
            self.words[end].switches = announced.count;
            self.pause(end)?;
        }
        Ok(self.ends[end].sender.path() != StreamPath::Tcp)
    }

    /// Notes what the receiver has read, and what a full ring means. Returns false if the bytes go by TCP.
    fn makes_room(&mut self, end: usize, len: u64) -> Step<bool> {
        if u64::from(self.ends[end].sender.room()) < len {
            self.note_head(end)?;
        }
        if self.ends[end].sender.room() > 0 {
            return Ok(true);
        }
        let (head, now) = (self.words[1 - end].head, self.now_ms());
        self.pause(end)?;
        self.ends[end].sender.was_full(head, now);
        if self.kernel.has_hung_up(end) {
            self.pause(end)?;
            match self.words[1 - end].half_closed {
                true => self.ends[end].sender.keep_on_tcp(true),
                false => self.abandon(end)?,
            }
        }
        self.goes_by_ring(end)
    }

    fn write_ring(&mut self, end: usize, len: u64) -> Step<Written> {
        let run = Run { at: self.ends[end].sender.position(), len };
        assert_eq!(run.at, self.ends[end].sent);
        let path = self.ends[end].sender.path();
        self.rings[end].write(path, run);
        self.pause(end)?;
        self.ends[end].sender.wrote(len as u32);
        self.words[end].tail = self.ends[end].sender.position() as u32;
        self.has_sent(end, len);
        self.pause(end)?;
        Ok(Written::Bytes(len))
    }

    fn note_head(&mut self, end: usize) -> Step<()> {
        let head = self.words[1 - end].head;
        self.pause(end)?;
        self.ends[end].sender.saw_head(head).unwrap();
        Ok(())
    }

    fn note_receiver(&mut self, end: usize) -> Step<()> {
        let taken = self.words[1 - end].taken;
        self.pause(end)?;
        self.ends[end].sender.saw_taken(taken).unwrap();
        self.note_head(end)
    }

    /// Gives up the ring, because the peer is gone.
    pub(crate) fn abandon(&mut self, end: usize) -> Step<()> {
        if !self.ends[end].sender.is_abandoned() {
            self.note_receiver(end)?;
            self.ends[end].sender.abandon();
        }
        Ok(())
    }

    pub(crate) fn read(&mut self, end: usize, len: u64) -> Step<Read> {
        let mut is_over = false;
        loop {
            if self.ends[end].is_attached {
                self.refresh(end)?;
                if self.take(end)? {
                    continue;
                }
            }
            match self.ends[end].receiver.next() {
                Receive::Ring { available: 1.., .. } => return self.read_ring(end, len),
                Receive::Ring { .. } if is_over => return self.read_end(end),
                Receive::Ring { .. } if self.kernel.has_hung_up(end) => is_over = true,
                Receive::Ring { .. } | Receive::Tcp { limit: 0 } => return Ok(Read::WouldBlock),
                Receive::Tcp { .. } => {
                    let Some(limit) = self.begin_tcp(end)? else { continue };
                    let (bytes, received) = self.recv(end, len.min(limit));
                    self.end_tcp(end, bytes);
                    match received {
                        Received::Bytes(_) => return Ok(Read::Bytes(bytes)),
                        Received::WouldBlock => return Ok(Read::WouldBlock),
                        // Bytes that another thread has read are not counted yet, and a switch may lie behind them.
                        _ if self.ends[end].receiver.is_in_tcp() => return Ok(Read::WouldBlock),
                        Received::Eof | Received::Error(_) if is_over => return self.read_end(end),
                        Received::Eof | Received::Error(_) => is_over = true,
                    }
                }
            }
            self.pause(end)?;
        }
    }

    /// Starts a call that reads TCP. Returns its limit, or None if it must not begin: a switch is due, or another call reads up to one.
    pub(crate) fn begin_tcp(&mut self, end: usize) -> Step<Option<u64>> {
        if self.ends[end].is_attached && self.ends[end].receiver.reads_without_limit() {
            self.words[end].reads_tcp = true;
            self.pause(end)?;
            self.refresh(end)?;
        }
        let limit = match self.ends[end].receiver.next() {
            Receive::Tcp { limit: limit @ 1.. } => Some(limit),
            _ => None,
        };
        match limit {
            Some(_) => self.ends[end].receiver.begin_tcp(),
            None if !self.ends[end].receiver.is_in_tcp() => self.words[end].reads_tcp = false,
            None => {}
        }
        Ok(limit)
    }

    /// Ends a call that has read `bytes` from TCP.
    pub(crate) fn end_tcp(&mut self, end: usize, bytes: u64) {
        self.ends[end].receiver.end_tcp(bytes);
        if bytes > 0 && self.ends[end].is_attached {
            self.words[end].head = self.ends[end].receiver.position() as u32;
        }
        if !self.ends[end].receiver.is_in_tcp() {
            self.words[end].reads_tcp = false;
        }
    }

    fn refresh(&mut self, end: usize) -> Step<()> {
        let tail = self.words[1 - end].tail;
        self.pause(end)?;
        let switches = self.words[1 - end].switches;
        self.pause(end)?;
        let peer = self.words[1 - end];
        self.ends[end]
            .receiver
            .refresh(tail, switches, |count| {
                let slot = count as usize % 2;
                (peer.switch_at[slot], peer.switch_path[slot])
            })
            .unwrap();
        Ok(())
    }

    fn take(&mut self, end: usize) -> Step<bool> {
        let Some(count) = self.ends[end].receiver.take() else { return Ok(false) };
        self.words[end].head = self.ends[end].receiver.position() as u32;
        self.pause(end)?;
        self.words[end].taken = count;
        self.pause(end)?;
        Ok(true)
    }

    fn read_ring(&mut self, end: usize, len: u64) -> Step<Read> {
        let Receive::Ring { path, at, available } = self.ends[end].receiver.next() else { unreachable!() };
        let run = Run { at, len: len.min(available.into()) };
        self.rings[1 - end].check(path, run);
        self.has_received(end, &[run]);
        self.pause(end)?;
        self.ends[end].receiver.read(run.len as u32);
        self.words[end].head = self.ends[end].receiver.position() as u32;
        self.pause(end)?;
        Ok(Read::Bytes(run.len))
    }

    /// The peer's bytes are over. Says how.
    fn read_end(&mut self, end: usize) -> Step<Read> {
        // Not SO_ERROR: behind a FIN, recv() returns EOF although an RST came later.
        let error = match self.kernel.peek(end) {
            Received::Error(error) => Some(error),
            _ => self.ends[end].error.take(),
        };
        self.ends[end].sender.keep_on_tcp(true);
        if !self.ends[end].is_attached {
            return Ok(if error == Some(Errno::Reset) { Read::Reset } else { Read::Eof });
        }
        let half_closed = self.words[1 - end].half_closed;
        self.pause(end)?;
        self.note_receiver(end)?;
        let at_fin = at_fin(half_closed, self.ends[end].sender.unread());
        if at_fin != AtFin::HalfClosed {
            self.abandon(end)?;
        }
        Ok(if error == Some(Errno::Reset) || at_fin == AtFin::Reset { Read::Reset } else { Read::Eof })
    }

    pub(crate) fn shutdown(&mut self, end: usize) -> Step<()> {
        self.ends[end].is_shut = true;
        if self.ends[end].is_attached {
            self.words[end].half_closed = true;
            self.pause(end)?;
        }
        self.kernel.shutdown(end);
        self.reference.shutdown(end);
        Ok(())
    }

    /// Marks the end before close(), with or without a reset.
    pub(crate) fn close(&mut self, end: usize, resets: bool) -> Step<()> {
        if self.ends[end].is_attached {
            self.words[end].closed = true;
            self.pause(end)?;
        }
        self.leave(end, resets);
        Ok(())
    }
}
