//! Sends one list of messages and receives another at the same time, and checks all that comes.
//!
//! Message number `k` of a list with seed `s` has tag `s + k` and the bytes of [`pattern`] for that tag: order,
//! length, sender and content of each are known to both sides beforehand.

use crate::pattern::{self, GUARD};
use isthmus_client::{Completion, Domain, EndpointAddress, EndpointIndex, Outcome, Token};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The buffers with the bytes to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// A new vector for each message, freed when it is over: the allocator gives the same addresses again.
    Fresh,
    /// Vectors that all messages share, one after the other.
    Reused,
}

/// Bytes of a receive buffer, for a message of `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// As many.
    Exact,
    /// Half as many.
    Less,
    /// Some more, which must stay as they were.
    More,
}

/// Messages to send.
#[derive(Clone, Debug)]
pub struct Sends {
    /// The receiver.
    pub to: EndpointAddress,
    /// Tag of the first.
    pub seed: u64,
    /// The lengths of the messages.
    pub lengths: Vec<usize>,
    /// The number of messages in flight at once.
    pub window: usize,
    /// The kind of buffers to send from.
    pub buffers: Buffers,
}

/// Messages to receive.
#[derive(Clone, Debug)]
pub struct Receives {
    /// Tag of the first.
    pub seed: u64,
    /// The lengths of the messages.
    pub lengths: Vec<usize>,
    /// The number of receives posted at once.
    pub window: usize,
    /// The size of the receive buffers.
    pub room: Room,
}

/// Both, at one endpoint.
#[derive(Debug)]
pub struct Exchange {
    at: EndpointIndex,
    sends: Sends,
    receives: Receives,
    sending: HashMap<Token, u64>,
    receiving: HashMap<Token, u64>,
    next_send: usize,
    next_receive: usize,
    /// Messages sent and received so far.
    pub sent: usize,
    /// See `sent`.
    pub received: usize,
    spare: HashMap<usize, Vec<Vec<u8>>>,
}

impl Exchange {
    /// Nothing has been posted yet.
    pub fn new(at: EndpointIndex, sends: Sends, receives: Receives) -> Self {
        let (sending, receiving, spare) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { at, sends, receives, sending, receiving, next_send: 0, next_receive: 0, sent: 0, received: 0, spare }
    }

    /// Runs it to its end. An error says what went wrong first, and where.
    pub fn run(&mut self, domain: &mut Domain, limit: Duration) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        while !self.is_over() {
            self.post(domain)?;
            let left = deadline.saturating_duration_since(Instant::now());
            match domain.wait(Some(left)) {
                Some(completion) => self.take(completion)?,
                None if left.is_zero() => return Err(format!("late: {}", self.progress())),
                None => {}
            }
        }
        Ok(())
    }

    /// After a failure: takes receives back, and waits until every send is over. An error says what is left.
    pub fn drain(&mut self, domain: &mut Domain, limit: Duration) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        for &token in self.receiving.keys() {
            domain.cancel(self.at, token);
        }
        while !(self.sending.is_empty() && self.receiving.is_empty()) {
            let left = deadline.saturating_duration_since(Instant::now());
            match domain.wait(Some(left)) {
                Some(completion) => self.forget(&completion)?,
                None if left.is_zero() => {
                    let lengths: Vec<_> = self.sending.values().map(|&at| self.sends.lengths[at as usize]).collect();
                    return Err(format!("stuck: sends of {lengths:?} bytes, {} receives", self.receiving.len()));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Looks at nothing of a completion but whether it is one of ours.
    pub fn forget(&mut self, completion: &Completion) -> Result<(), String> {
        let known = self.sending.remove(&completion.token).or(self.receiving.remove(&completion.token));
        known.map(drop).ok_or_else(|| format!("a completion of an unknown operation: {:?}", completion.outcome))
    }

    /// How far it is.
    pub fn progress(&self) -> String {
        let Self { sent, received, .. } = self;
        format!("sent {sent} of {} received {received} of {}", self.sends.lengths.len(), self.receives.lengths.len())
    }

    /// True when everything was sent and received.
    pub fn is_over(&self) -> bool {
        self.sent == self.sends.lengths.len() && self.received == self.receives.lengths.len()
    }

    /// Posts as many as the windows allow.
    pub fn post(&mut self, domain: &mut Domain) -> Result<(), String> {
        while self.receiving.len() < self.receives.window && self.next_receive < self.receives.lengths.len() {
            let (len, number) = (self.receives.lengths[self.next_receive], self.next_receive as u64);
            let room = match self.receives.room {
                Room::Exact => len,
                Room::Less => len / 2,
                Room::More => len + 13,
            };
            let posted = domain.receive(self.at, vec![GUARD; room].into());
            let token = posted.map_err(|(refusal, _)| format!("receive {number} refused: {refusal}"))?;
            self.receiving.insert(token, number);
            self.next_receive += 1;
        }
        while self.sending.len() < self.sends.window && self.next_send < self.sends.lengths.len() {
            let (len, number) = (self.sends.lengths[self.next_send], self.next_send as u64);
            let tag = self.sends.seed.wrapping_add(number);
            let mut bytes = self.spare.get_mut(&len).and_then(Vec::pop).unwrap_or_else(|| vec![0; len]);
            pattern::fill(tag, &mut bytes);
            let posted = domain.send(self.at, self.sends.to, tag, bytes.into());
            let token = posted.map_err(|(refusal, _)| format!("send {number} refused: {refusal}"))?;
            self.sending.insert(token, number);
            self.next_send += 1;
        }
        Ok(())
    }

    /// Looks at a completion.
    pub fn take(&mut self, completion: Completion) -> Result<(), String> {
        let Completion { token, buffer, outcome, .. } = completion;
        if let Some(number) = self.sending.remove(&token) {
            return self.take_sent(number, buffer.into_vec().unwrap_or_default(), outcome);
        }
        match self.receiving.remove(&token) {
            Some(number) => self.take_received(number, buffer.as_slice(), outcome),
            None => Err(format!("a completion of an unknown operation: {token:?} {outcome:?}")),
        }
    }

    fn take_sent(&mut self, number: u64, bytes: Vec<u8>, outcome: Outcome) -> Result<(), String> {
        match outcome {
            Outcome::Sent { .. } => {}
            Outcome::Failed(reason) => {
                return Err(format!("failed {}: send {number}, {}", reason.name(), self.progress()));
            }
            other => return Err(format!("send {number} ended as {other:?}")),
        }
        let tag = self.sends.seed.wrapping_add(number);
        if let Some(at) = pattern::first_wrong(tag, bytes.len(), &bytes) {
            return Err(format!("send {number}: byte {at} of its buffer was changed"));
        }
        self.sent += 1;
        if self.sends.buffers == Buffers::Reused {
            self.spare.entry(bytes.len()).or_default().push(bytes);
        }
        Ok(())
    }

    fn take_received(&mut self, number: u64, bytes: &[u8], outcome: Outcome) -> Result<(), String> {
        let (from, tag, len) = match outcome {
            Outcome::Received { from, tag, len } => (from, tag, len),
            Outcome::Failed(reason) => {
                return Err(format!("failed {}: receive {number}, {}", reason.name(), self.progress()));
            }
            other => return Err(format!("receive {number} ended as {other:?}")),
        };
        let right = (self.sends.to, self.receives.seed.wrapping_add(number), self.receives.lengths[number as usize]);
        if (from, tag, len) != (right.0, right.1, right.2 as u64) {
            return Err(format!(
                "receive {number}: {tag} of {len} bytes from {from}, not {} of {} from {}",
                right.1, right.2, right.0
            ));
        }
        if let Some(at) = pattern::first_wrong(tag, len as usize, bytes) {
            return Err(format!("receive {number} of {len} bytes: byte {at} of {} is wrong", bytes.len()));
        }
        self.received += 1;
        Ok(())
    }
}
