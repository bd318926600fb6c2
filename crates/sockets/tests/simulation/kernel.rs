//! A model of a TCP connection as the programs of one host see it.
//!
//! ```text
//! send() ─► send queue ─► receive queue of the other side ─► recv()
//! ```
//!
//! Delivery is immediate while the receive queue has room, and a FIN follows the last byte. As in Linux: close() with bytes unread sends
//! RST, and so do bytes that arrive after close(). RST discards the send queues and keeps what was received. recv() returns bytes first, then
//! the FIN, then the error. Bytes are runs of their positions, so a lost or repeated byte shows.

use std::collections::VecDeque;

/// Bytes with consecutive positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) at: u64,
    pub(crate) len: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errno {
    /// ECONNRESET
    Reset,
    /// EPIPE
    Pipe,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Bytes(Vec<Run>),
    Eof,
    WouldBlock,
    Error(Errno),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Bytes(u64),
    WouldBlock,
    Error(Errno),
}

#[derive(Clone, Debug, Default)]
struct Queue(VecDeque<Run>);

impl Queue {
    fn len(&self) -> u64 {
        self.0.iter().map(|run| run.len).sum()
    }

    fn push(&mut self, run: Run) {
        match self.0.back_mut() {
            Some(last) if last.at + last.len == run.at => last.len += run.len,
            _ => self.0.push_back(run),
        }
    }

    fn pop(&mut self, max: u64) -> Option<Run> {
        let first = self.0.front_mut().filter(|_| max > 0)?;
        let run = Run { len: first.len.min(max), ..*first };
        *first = Run { at: first.at + run.len, len: first.len - run.len };
        self.0.retain(|run| run.len > 0);
        Some(run)
    }
}

#[derive(Clone, Debug, Default)]
struct Side {
    send: Queue,
    receive: Queue,
    /// Sends no more.
    shut: bool,
    /// Receives no more.
    closed: bool,
    fin_received: bool,
    /// RST was sent or received.
    is_reset: bool,
    error: Option<Errno>,
    /// Bytes or a FIN of this side were discarded.
    lost: bool,
}

/// A connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    sides: [Side; 2],
    queue_bytes: u64,
}

impl Connection {
    pub(crate) fn new(queue_bytes: u64) -> Self {
        Self { sides: Default::default(), queue_bytes }
    }

    pub(crate) fn send(&mut self, side: usize, run: Run) -> Sent {
        let room = self.queue_bytes - self.sides[side].send.len();
        let own = &mut self.sides[side];
        if let Some(error) = own.error.take() {
            return Sent::Error(error);
        }
        if own.is_reset || own.shut {
            return Sent::Error(Errno::Pipe);
        }
        let len = run.len.min(room);
        if len == 0 {
            return Sent::WouldBlock;
        }
        own.send.push(Run { len, ..run });
        self.deliver();
        Sent::Bytes(len)
    }

    pub(crate) fn recv(&mut self, side: usize, max: u64) -> Received {
        let own = &mut self.sides[side];
        let (mut runs, mut left) = (Vec::new(), max);
        while let Some(run) = own.receive.pop(left) {
            left -= run.len;
            runs.push(run);
        }
        if !runs.is_empty() {
            self.deliver();
            return Received::Bytes(runs);
        }
        match self.peek(side) {
            Received::Error(error) => {
                self.sides[side].error = None;
                Received::Error(error)
            }
            other => other,
        }
    }

    /// Returns what recv() with MSG_PEEK returns.
    pub(crate) fn peek(&self, side: usize) -> Received {
        let own = &self.sides[side];
        match own.receive.len() {
            0 => self.ending(side),
            _ => Received::Bytes(own.receive.0.iter().copied().collect()),
        }
    }

    /// Returns what recv() would return behind the bytes.
    pub(crate) fn ending(&self, side: usize) -> Received {
        let own = &self.sides[side];
        match own.error {
            _ if own.fin_received => Received::Eof,
            Some(error) => Received::Error(error),
            None if own.is_reset => Received::Eof,
            None => Received::WouldBlock,
        }
    }

    /// The bytes that recv() can return.
    pub(crate) fn readable(&self, side: usize) -> u64 {
        self.sides[side].receive.len()
    }

    /// POLLRDHUP, POLLHUP or POLLERR.
    pub(crate) fn has_hung_up(&self, side: usize) -> bool {
        self.sides[side].fin_received || self.sides[side].is_reset
    }

    /// Returns true if the kernel discarded bytes or the FIN of this side.
    pub(crate) fn has_lost(&self, side: usize) -> bool {
        self.sides[side].lost
    }

    pub(crate) fn shutdown(&mut self, side: usize) {
        self.sides[side].shut = true;
        self.deliver();
    }

    pub(crate) fn close(&mut self, side: usize) {
        if self.readable(side) > 0 && !self.sides[side].is_reset {
            return self.abort(side);
        }
        self.sides[side].closed = true;
        self.shutdown(side);
    }

    /// close() with SO_LINGER of 0 s.
    pub(crate) fn abort(&mut self, side: usize) {
        self.sides[side].closed = true;
        self.reset_by(side);
    }

    fn reset_by(&mut self, side: usize) {
        if self.sides[side].is_reset {
            return;
        }
        self.discard(side);
        let peer = &mut self.sides[1 - side];
        if !peer.is_reset {
            peer.error = Some(if peer.fin_received && !peer.shut { Errno::Pipe } else { Errno::Reset });
            self.discard(1 - side);
        }
    }

    fn discard(&mut self, side: usize) {
        let has_pending_fin = self.sides[side].shut && !self.sides[1 - side].fin_received;
        let own = &mut self.sides[side];
        own.lost |= has_pending_fin || own.send.len() > 0;
        own.send = Queue::default();
        own.is_reset = true;
    }

    fn deliver(&mut self) {
        for side in [0, 1] {
            let room = self.queue_bytes - self.sides[1 - side].receive.len();
            if self.sides[side].is_reset {
                continue;
            }
            if self.sides[side].send.len() > 0 && self.sides[1 - side].closed {
                self.reset_by(1 - side);
                continue;
            }
            let mut room = room;
            while let Some(run) = self.sides[side].send.pop(room) {
                room -= run.len;
                self.sides[1 - side].receive.push(run);
            }
            if self.sides[side].shut && self.sides[side].send.len() == 0 {
                self.sides[1 - side].fin_received = true;
            }
        }
    }
}

#[test]
fn a_write_after_the_peer_has_closed_succeeds_once() {
    let mut connection = Connection::new(100);
    connection.close(1);
    assert_eq!(connection.recv(0, 10), Received::Eof);
    assert_eq!(connection.send(0, Run { at: 0, len: 5 }), Sent::Bytes(5));
    assert_eq!(connection.send(0, Run { at: 5, len: 5 }), Sent::Error(Errno::Pipe));
    assert_eq!(connection.recv(0, 10), Received::Eof);
}

#[test]
fn close_with_unread_bytes_resets_and_keeps_what_was_received() {
    let mut connection = Connection::new(100);
    connection.send(0, Run { at: 0, len: 5 });
    connection.send(1, Run { at: 0, len: 7 });
    connection.close(1);
    assert_eq!(connection.recv(0, 10), Received::Bytes(vec![Run { at: 0, len: 7 }]));
    assert_eq!(connection.recv(0, 10), Received::Error(Errno::Reset));
    assert_eq!(connection.recv(0, 10), Received::Eof);
    assert_eq!(connection.send(0, Run { at: 5, len: 5 }), Sent::Error(Errno::Pipe));
}

#[test]
fn a_fin_waits_for_the_bytes_before_it() {
    let mut connection = Connection::new(10);
    assert_eq!(connection.send(0, Run { at: 0, len: 15 }), Sent::Bytes(10));
    assert_eq!(connection.send(0, Run { at: 10, len: 15 }), Sent::Bytes(10));
    connection.close(0);
    assert!(!connection.has_hung_up(1));
    assert_eq!(connection.recv(1, 12), Received::Bytes(vec![Run { at: 0, len: 10 }]));
    assert!(connection.has_hung_up(1));
    assert_eq!(connection.recv(1, 12), Received::Bytes(vec![Run { at: 10, len: 10 }]));
    assert_eq!(connection.recv(1, 12), Received::Eof);
}
