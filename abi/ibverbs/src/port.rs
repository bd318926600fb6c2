//! The port: everything that arrives for an open device, and everything that is over, passes here on its way to the engine.
//!
//! Nothing is sent from in here. Packets wait in the engine until the [`Adapter`](crate::adapter::Adapter) has the domain again.

use crate::memory::ProgramMemory;
use isthmus_client::{
    Buffer, Completion, DomainId, EndpointIndex, Envelope, Matcher, Outcome, PollBudget, Posted, Reason, Token,
    Unexpected, UnexpectedState,
};
use isthmus_verbs::{Engine, PAYLOAD_TAG, PayloadTarget, SHORT_BYTES_MAX};

/// Marks the token of a payload that is collected in memory of ours.
const COLLECT: u64 = 1 << 63;

/// The token of refusals for queue pairs that do not exist. The engine has no such token.
pub(crate) const STRAY: u64 = 7 << 60;

/// Refusals that wait in the client library, at most. Further ones are dropped.
const STRAYS_MAX: u32 = 1024;

/// The token of payloads that are discarded.
const DISCARD: Token = Token::new(0);

/// The engine, behind the client library.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) engine: Engine,
    pub(crate) memory: ProgramMemory,
    /// The completions that a progress call may find.
    pub(crate) budget: PollBudget,
    /// Refusals that wait in the client library.
    strays: u32,
}

impl Port {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine, memory: ProgramMemory, budget: PollBudget::default(), strays: 0 }
    }

    /// Counts a refusal that is to wait in the client library. False if too many do.
    pub(crate) fn queue_stray(&mut self) -> bool {
        let has_room = self.strays < STRAYS_MAX;
        self.strays += u32::from(has_room);
        has_room
    }

    /// A progress call begins.
    #[inline]
    pub(crate) fn begin_progress(&mut self) {
        self.budget.begin(self.engine.completions());
    }

    /// A progress call ends.
    #[inline]
    pub(crate) fn end_progress(&mut self) {
        self.budget.end(self.engine.completions());
    }

    /// True if the engine still waits for the payload of a receive.
    pub(crate) fn wants_payload(&self, token: Token) -> bool {
        self.engine.wants_payload(token.number() & !COLLECT)
    }
}

impl Matcher for Port {
    #[inline]
    fn try_receive_eager(&mut self, envelope: &Envelope, words: &[u32]) -> bool {
        #[cfg(target_endian = "big")]
        let words =
            &std::array::from_fn::<u32, { SHORT_BYTES_MAX / 4 }, _>(|at| words.get(at).map_or(0, |word| word.to_le()))
                [..];
        // SAFETY: words are bytes, as many as there are, in the order in which they were sent.
        let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(words)) };
        let len = (envelope.len as usize).min(bytes.len());
        self.engine.receive(envelope.from, envelope.tag, &bytes[..len], &mut self.memory);
        true
    }

    fn match_message(&mut self, envelope: &Envelope) -> Option<Posted> {
        if envelope.tag != PAYLOAD_TAG {
            return None;
        }
        let (token, buffer) = match self.engine.payload_target(envelope.from, envelope.len) {
            PayloadTarget::Range { addr, token } => {
                // SAFETY: the range lies in a region that the program has registered for writing, and has as many bytes as the payload:
                // the engine has checked both. A receive request, or a region's rights, lend it until the request is over.
                let buffer = unsafe { Buffer::from_raw_parts(addr as *mut u8, envelope.len as usize) };
                (Token::new(token), buffer)
            }
            PayloadTarget::Collect { token } => {
                (Token::new(token | COLLECT), Buffer::from(vec![0; envelope.len as usize]))
            }
            PayloadTarget::Discard => (DISCARD, Buffer::from(Vec::new())),
        };
        Some(Posted { token, buffer })
    }

    fn store_unexpected(&mut self, message: Unexpected) {
        // A message to this domain itself comes this way.
        if let UnexpectedState::Whole(bytes) = &message.state
            && bytes.len() <= SHORT_BYTES_MAX
        {
            self.engine.receive(message.envelope.from, message.envelope.tag, bytes, &mut self.memory);
        }
    }

    fn unexpected_complete(&mut self, _envelope: &Envelope, _bytes: Vec<u8>) {}

    fn next_match(&mut self, _endpoint: EndpointIndex) -> Option<(Posted, Unexpected)> {
        None
    }

    #[inline]
    fn complete(&mut self, completion: Completion) {
        let token = completion.token.number();
        if token == STRAY {
            self.strays = self.strays.saturating_sub(1);
            return;
        }
        match completion.outcome {
            Outcome::Sent { .. } => self.engine.sent(token),
            Outcome::Received { .. } => {
                let collected = (token & COLLECT != 0).then(|| completion.buffer.as_slice());
                self.engine.payload_received(token & !COLLECT, collected, &mut self.memory);
            }
            Outcome::Failed(reason) => {
                let peer_ended = matches!(reason, Reason::PeerConnectionLost | Reason::PeerDetached);
                self.engine.failed(token & !COLLECT, peer_ended);
            }
            Outcome::Cancelled => self.engine.failed(token & !COLLECT, false),
        }
    }

    #[inline]
    fn is_busy(&self) -> bool {
        self.budget.is_used_up(self.engine.completions())
    }

    /// Nothing is held here: a payload that had begun to arrive fails by its token. One that had not begun comes by another path, so
    /// connections go on.
    fn forget(&mut self, _peer: DomainId) {}

    fn peer_gone(&mut self, peer: DomainId) {
        self.engine.peer_gone(peer);
    }

    fn close(&mut self, _endpoint: EndpointIndex) -> (Vec<Posted>, Vec<Unexpected>) {
        (Vec::new(), Vec::new())
    }
}
