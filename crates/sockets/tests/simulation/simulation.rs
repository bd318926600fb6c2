//! Two ends of a connection, and what both must be given.
//!
//! The rule. Beside the stream runs a *reference*: a TCP connection with endless queues, to which each end does the same at the same time.
//!
//! 1. Each byte is received once and in order, and no earlier than it was sent.
//! 2. A read says *would block* only if the reference had nothing to read when the read began.
//! 3. The bytes end as those of the reference do, in EOF or ECONNRESET, with these freedoms:
//!    * A survivor that wrote after its peer was gone may get either. The bytes were in flight when the connection ended.
//!    * If the peer died within a read, the read may have happened or not, so the survivor may get either.
//!    * If the kernel discarded bytes or the FIN of the peer with an RST, the survivor gets ECONNRESET, by a read or by a write.
//!
//!    EOF without an error means that all bytes of the peer were received.
//! 4. Writes fail only after shutdown() or when the peer is gone. When it is gone, they fail once the queues and rings are full, at the latest.
//! 5. While both ends live, bytes get through, and streams that nothing keeps on TCP use a ring.

use isthmus_layout::sockets::StreamPath;
use isthmus_sockets::{Receiver, SPILL_MS, Sender};

use crate::actions;
use crate::driver::{Killed, Read, Step, Written};
use crate::kernel::{Connection, Errno, Received, Run, Sent};
use crate::memory::{Block, Rings};
use crate::random::Random;

/// A call of the kernel by one thread, while others go on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Send {
        len: u64,
    },
    Sent {
        bytes: u64,
    },
    /// If it `blocks`, it returns when there is something to return.
    Recv {
        len: u64,
        blocks: bool,
    },
    Received {
        bytes: u64,
    },
}

#[derive(Debug, Default)]
pub(crate) struct End {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    pub(crate) calls: Vec<Call>,
    pub(crate) is_attached: bool,
    pub(crate) is_shut: bool,
    /// The socket is closed: by the program, or because the process died.
    pub(crate) is_gone: bool,
    pub(crate) has_died: bool,
    has_died_in_call: bool,
    /// The error that a call has taken from the kernel and a read has to return.
    pub(crate) error: Option<Errno>,
    /// Bytes, from the position at which the simulation began.
    pub(crate) sent: u64,
    received: u64,
    ending: Option<Read>,
    wrote_late: bool,
    was_told: bool,
}

/// How often the interesting things happened, so that a test can check that they do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) to_small: u64,
    pub(crate) to_large: u64,
    pub(crate) to_tcp: u64,
    /// Switches that were announced before the last one was taken.
    pub(crate) seconds: u64,
    pub(crate) eofs: u64,
    pub(crate) resets: u64,
    pub(crate) deaths_in_calls: u64,
    pub(crate) actions_in_pauses: u64,
}

/// The chances per million: the first two in a pause between loads and stores of an action.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pauses {
    /// The other end acts.
    pub(crate) action: u64,
    /// The process dies.
    pub(crate) death: u64,
    /// An action ends something.
    pub(crate) leave: u64,
}

#[derive(Debug)]
pub(crate) struct Simulation {
    pub(crate) ends: [End; 2],
    pub(crate) words: [Block; 2],
    pub(crate) rings: [Rings; 2],
    pub(crate) kernel: Connection,
    pub(crate) reference: Connection,
    pub(crate) random: Random,
    pub(crate) pauses: Pauses,
    pub(crate) counts: Counts,
    is_paused: bool,
    now_ms: u64,
}

impl Simulation {
    pub(crate) fn new() -> Self {
        Self {
            ends: Default::default(),
            words: Default::default(),
            rings: [Rings::new(), Rings::new()],
            kernel: Connection::new(0),
            reference: Connection::new(u64::MAX),
            random: Random::new(0),
            pauses: Pauses::default(),
            counts: Counts::default(),
            is_paused: false,
            now_ms: 0,
        }
    }

    /// The time. It stands still, or goes on by more than a ring may be full.
    pub(crate) fn now_ms(&mut self) -> u64 {
        self.now_ms += self.random.choose(&[0, 0, 2 * SPILL_MS]);
        self.now_ms
    }

    /// Begins again with a new connection. `starts` are the bytes of each direction that were exchanged before.
    pub(crate) fn restart(&mut self, seed: u64, queue_bytes: u64, starts: [u64; 2], pauses: Pauses) {
        (self.ends, self.words) = Default::default();
        for (end, start) in starts.into_iter().enumerate() {
            self.ends[end].sender.begin_tcp();
            self.ends[end].sender.end_tcp(start);
            self.ends[1 - end].receiver.begin_tcp();
            self.ends[1 - end].receiver.end_tcp(start);
            (self.ends[end].sent, self.ends[1 - end].received) = (start, start);
        }
        (self.kernel, self.reference) = (Connection::new(queue_bytes), Connection::new(u64::MAX));
        (self.random, self.pauses, self.is_paused) = (Random::new(seed), pauses, false);
    }

    /// A place where the other end may act, or the process of this one may die.
    pub(crate) fn pause(&mut self, end: usize) -> Step<()> {
        if !self.is_paused && self.random.chance(self.pauses.action) {
            self.is_paused = true;
            for _ in 0..self.random.choose(&[1, 1, 2, 4]) {
                self.counts.actions_in_pauses += 1;
                actions::act(self, 1 - end);
            }
            self.is_paused = false;
        }
        if self.random.chance(self.pauses.death) {
            return Err(Killed);
        }
        Ok(())
    }

    /// Lets the end do something that it may not survive.
    pub(crate) fn run<T>(&mut self, end: usize, action: impl FnOnce(&mut Self, usize) -> Step<T>) -> Option<T> {
        let result = action(self, end);
        if result.is_err() {
            self.counts.deaths_in_calls += 1;
            self.ends[end].has_died_in_call = true;
            self.die(end);
        }
        result.ok()
    }

    pub(crate) fn die(&mut self, end: usize) {
        self.ends[end].has_died = true;
        self.leave(end, false);
    }

    /// The kernel closes the socket.
    pub(crate) fn leave(&mut self, end: usize, resets: bool) {
        self.ends[end].calls.clear();
        self.ends[end].is_gone = true;
        for connection in [&mut self.kernel, &mut self.reference] {
            if resets { connection.abort(end) } else { connection.close(end) }
        }
    }

    /// Sends on TCP.
    pub(crate) fn send(&mut self, end: usize, len: u64) -> Sent {
        let sent = self.kernel.send(end, Run { at: self.ends[end].sent, len });
        match sent {
            Sent::Bytes(bytes) => self.has_sent(end, bytes),
            Sent::WouldBlock => (),
            Sent::Error(_) => {
                self.ends[end].was_told = true;
                self.ends[end].wrote_late |= self.ends[1 - end].is_gone;
                assert!(self.ends[end].is_shut || self.ends[1 - end].is_gone, "a write failed");
            }
        }
        sent
    }

    /// Receives from TCP.
    pub(crate) fn recv(&mut self, end: usize, len: u64) -> (u64, Received) {
        let received = self.kernel.recv(end, len);
        let bytes = match &received {
            Received::Bytes(runs) => self.has_received(end, runs),
            _ => 0,
        };
        if let Received::Error(error) = received {
            self.ends[end].error = Some(error);
        }
        (bytes, received)
    }

    pub(crate) fn has_sent(&mut self, end: usize, len: u64) {
        let run = Run { at: self.ends[end].sent, len };
        self.ends[end].sent += len;
        self.ends[end].wrote_late |= self.ends[1 - end].is_gone;
        let sent = self.reference.send(end, run);
        assert!(sent == Sent::Bytes(len) || self.ends[1 - end].is_gone, "sent {run:?}: {sent:?}");
    }

    /// Rule 1.
    pub(crate) fn has_received(&mut self, end: usize, runs: &[Run]) -> u64 {
        for run in runs {
            assert_eq!(run.at, self.ends[end].received, "bytes in order");
            self.ends[end].received += run.len;
            let expected = self.reference.recv(end, run.len);
            assert_eq!(expected, Received::Bytes(vec![*run]), "bytes that were sent");
        }
        runs.iter().map(|run| run.len).sum()
    }

    /// A program's read, with rules 2 and 3.
    pub(crate) fn program_reads(&mut self, end: usize, len: u64) -> Step<Read> {
        let is_alone = !self.ends[end].receiver.is_in_tcp();
        let must_return = is_alone && self.reference.peek(end) != Received::WouldBlock;
        let read = self.read(end, len)?;
        match read {
            Read::Bytes(_) => assert_eq!(self.ends[end].ending, None, "bytes behind the end"),
            Read::WouldBlock => assert!(!must_return, "nothing was read, but {:?}", self.reference.peek(end)),
            Read::Eof | Read::Reset => {
                if self.ends[end].ending.is_none() {
                    self.check_ending(end, read);
                    self.ends[end].ending = Some(read);
                }
            }
        }
        Ok(read)
    }

    /// Rule 3.
    fn check_ending(&mut self, end: usize, read: Read) {
        let (own, peer) = (&self.ends[end], &self.ends[1 - end]);
        let has_lost = self.kernel.has_lost(1 - end);
        let is_free = own.wrote_late || peer.has_died_in_call;
        let missing = self.reference.readable(end);
        let expected = self.reference.ending(end);
        let facts = format!("{read:?} with {missing} missing, expected {expected:?}; free {is_free}, lost {has_lost}");
        if read == Read::Eof {
            self.counts.eofs += 1;
            assert!(missing == 0 || (has_lost && own.was_told), "{facts}");
            assert!(expected == Received::Eof || is_free, "{facts}");
        } else {
            self.counts.resets += 1;
            assert!(peer.is_gone && (missing == 0 || has_lost), "{facts}");
            assert!(expected == Received::Error(Errno::Reset) || is_free || has_lost, "{facts}");
        }
    }

    pub(crate) fn count_switch(&mut self, path: StreamPath) {
        match path {
            StreamPath::Tcp => self.counts.to_tcp += 1,
            StreamPath::Small => self.counts.to_small += 1,
            StreamPath::Large => self.counts.to_large += 1,
        }
    }

    /// Ends a script: calls return, everything is read, and the rules that hold at the end are checked.
    pub(crate) fn finish(&mut self) {
        self.pauses = Pauses::default();
        for end in [0, 1] {
            for call in (0..self.ends[end].calls.len()).rev() {
                (0..2).for_each(|_| actions::advance(self, end, call));
            }
        }
        match [self.ends[0].is_gone, self.ends[1].is_gone] {
            [false, false] => self.finish_both(),
            [false, true] => self.finish_survivor(0),
            [true, false] => self.finish_survivor(1),
            [true, true] => (),
        }
    }

    /// Rule 5.
    fn finish_both(&mut self) {
        [0, 1].into_iter().for_each(|end| self.release(end));
        for turn in 0..3 {
            for end in [0, 1] {
                let written = self.run(end, |simulation, end| simulation.write(end, 10));
                let has_failed = written == Some(Written::Error);
                assert_eq!(has_failed, self.ends[end].is_shut, "{written:?}");
                self.drain(1 - end);
                assert_eq!(self.ends[end].sent, self.ends[1 - end].received, "all bytes are received");
                let is_stuck = written == Some(Written::WouldBlock) && turn > 0;
                assert!(!is_stuck, "everything was read, and a write would block");
            }
        }
        let attached = self.words.iter().all(|words| words.attached);
        for end in [0, 1] {
            let is_shut = self.ends[end].is_shut || self.kernel.has_hung_up(end);
            let on_ring = self.ends[end].sender.path() != StreamPath::Tcp;
            assert!(on_ring == attached || is_shut, "attached {attached}, on a ring {on_ring}");
        }
    }

    /// Keeps nothing on TCP any more, unless the peer has sent its last byte.
    pub(crate) fn release(&mut self, end: usize) {
        self.words[end].tcp_please = false;
        self.ends[end].sender.keep_on_tcp(self.kernel.has_hung_up(end));
    }

    fn drain(&mut self, end: usize) -> Option<Read> {
        loop {
            match self.run(end, |simulation, end| simulation.program_reads(end, 1 << 20)) {
                Some(Read::Bytes(_)) => (),
                other => return other,
            }
        }
    }

    /// Rule 4. If the peer's process died, the daemon may say so. It must in two cases. A peer that had ended its sending sends no other FIN,
    /// which matters if a switch is or gets pending. And the FIN may lie behind bytes that the program does not read.
    fn finish_survivor(&mut self, end: usize) {
        let peer = &self.ends[1 - end];
        let is_silent = !self.kernel.has_hung_up(end);
        let own = &self.ends[end];
        let may_switch = own.sender.path() == StreamPath::Tcp && own.ending.is_none();
        let must_hear = is_silent || (peer.is_shut && (own.sender.is_switching() || may_switch));
        if peer.has_died && self.ends[end].is_attached && (must_hear || self.random.chance(500_000)) {
            self.run(end, Self::abandon);
        }
        if self.random.chance(500_000) {
            self.drain_to_end(end);
        }
        // After its end is known, the kernel answers the first write with RST. Before, writes fill the queues and rings.
        let attempts = if self.ends[end].ending.is_some() { 3 } else { 40 };
        let fails = |_| self.run(end, |simulation, end| simulation.write(end, 100_000)) == Some(Written::Error);
        assert!((0..attempts).any(fails), "writes to a peer that is gone succeed");
        self.drain_to_end(end);
    }

    fn drain_to_end(&mut self, end: usize) {
        let is_over = matches!(self.drain(end), Some(Read::Eof | Read::Reset));
        assert!(is_over, "the peer is gone, and a read would block");
    }
}
