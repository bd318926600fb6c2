//! Sends and receives that wait, over borrowed bytes.

use crate::domain::Domain;
use crate::error::Refusal;
use crate::matcher::{Completion, Outcome, Token};
use crate::payload_words::copy_words;
use isthmus_channel::{Polled, WaitMode};
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::reason::Reason;
use isthmus_layout::{EndpointAddress, reason};
use isthmus_shm::Buffer;

/// The number of polls of the channels before a receive is posted.
const POLLS_BEFORE_POST: u32 = 64;

/// A message that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The endpoint that sent the message.
    pub from: EndpointAddress,
    /// The number that the sender gave.
    pub tag: u64,
    /// The length of the message in bytes. If the buffer was shorter, it holds the first ones.
    pub len: u64,
}

impl Domain {
    /// Sends `bytes` and waits until they may change again. Completions of other operations are kept for
    /// [`Self::poll`] and [`Self::wait`].
    pub fn send_from(
        &mut self,
        from: EndpointIndex,
        to: EndpointAddress,
        tag: u64,
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        if self.inject(from, to, tag, bytes) {
            return Ok(());
        }
        let outcome = Buffer::with_borrowed_shared(bytes, |buffer| match self.send(from, to, tag, buffer) {
            Ok(token) => self.wait_for(token),
            Err((refusal, buffer)) => (buffer, Err(refusal)),
        })?;
        match outcome {
            Outcome::Failed(reason) => Err(reason.into()),
            _ => Ok(()),
        }
    }

    /// Receives the next message into `into` and waits for it.
    #[inline]
    pub fn receive_into(&mut self, at: EndpointIndex, into: &mut [u8]) -> Result<Received, Refusal> {
        match self.receive_now(at, into) {
            Some(received) => Ok(received),
            None => self.receive_posted(at, into),
        }
    }

    /// Receives a short message directly from its channel, if one comes soon and no other work is pending. The result is that of
    /// [`Self::receive_posted`], without its detours through memory.
    #[inline]
    fn receive_now(&mut self, at: EndpointIndex, into: &mut [u8]) -> Option<Received> {
        let looks = if self.waiting.wait() == WaitMode::Sleep { 1 } else { POLLS_BEFORE_POST };
        for _ in 0..looks {
            if self.core.is_child() || !self.core.has_no_pending_work() || !self.core.matcher.is_idle(at) {
                return None;
            }
            let polled = self.core.inbox.poll(&mut self.record);
            if polled == Polled::Nothing {
                continue;
            }
            if let Polled::Record(key) = polled
                && let Some((envelope, words)) = self.core.peek_eager(key, &self.record)
                && envelope.to == at
            {
                let room = into.len().min(envelope.len as usize);
                copy_words(words, &mut into[..room]);
                isthmus_shm::step!("received");
                return Some(Received { from: envelope.from, tag: envelope.tag, len: envelope.len });
            }
            self.core.handle_polled(polled, &self.record);
            self.core.finish_iteration();
            return None;
        }
        None
    }

    fn receive_posted(&mut self, at: EndpointIndex, into: &mut [u8]) -> Result<Received, Refusal> {
        let outcome = Buffer::with_borrowed(into, |buffer| match self.receive(at, buffer) {
            Ok(token) => self.wait_for(token),
            Err((refusal, buffer)) => (buffer, Err(refusal)),
        })?;
        match outcome {
            Outcome::Received { from, tag, len } => Ok(Received { from, tag, len }),
            Outcome::Failed(reason) => Err(reason.into()),
            Outcome::Sent { .. } | Outcome::Cancelled => Err(reason::Reason::EndpointClosed.into()),
        }
    }

    /// Waits for one operation.
    #[inline]
    fn wait_for(&mut self, token: Token) -> (Buffer, Result<Outcome, Refusal>) {
        let mut others = Vec::new();
        let Completion { buffer, outcome, .. } = loop {
            match self.wait(None) {
                Some(completion) if completion.token == token => break completion,
                Some(other) => others.push(other),
                // Only a child of a fork stops waiting, and it was refused when it posted.
                None => unreachable!("{}", Reason::StillAttached.summary()),
            }
        };
        if !others.is_empty() {
            self.requeue_completions(others);
        }
        (buffer, Ok(outcome))
    }
}
