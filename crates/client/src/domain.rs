//! A domain: the program's side of its daemon.

use crate::connect;
use crate::control::Control;
use crate::core::{Core, LocalIdentity};
use crate::error::{AttachError, Refusal};
use crate::inorder::InOrder;
use crate::matcher::{Completion, Matcher, Outcome, Posted, Token, Unexpected};
use crate::options::Options;
use crate::peer::{ChannelState, Peer};
use crate::status::ChannelStatus;
use isthmus_channel::{AdaptiveSpin, WaitMode};
use isthmus_layout::control::{Attach, CloseEndpoint, Detach, Lookup, Name, OpenEndpoint, ToClient, Topic};
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::reason::Reason;
use isthmus_layout::{DomainId, EndpointAddress};
use isthmus_shm::{Buffer, ForkGuard, RecordBuffer};
use rustix::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// The program's side of its daemon. Used by one thread at a time; nothing happens outside its calls.
///
/// A process that forks leaves its domain to the parent: every call of the child is refused with
/// [`Reason::StillAttached`], and it may attach anew.
///
/// The [`Matcher`] decides which receive takes a message. With [`InOrder`], which is what most programs want, the domain
/// returns completions; a protocol with a matcher of its own gets them there.
#[derive(Debug)]
pub struct Domain<M: Matcher = InOrder> {
    pub(crate) record: RecordBuffer,
    pub(crate) waiting: AdaptiveSpin,
    pub(crate) core: Core<M>,
}

/// A message to send; see [`Domain::post`].
#[derive(Debug)]
pub struct Message {
    /// The caller's number for the message, which its completion carries.
    pub token: Token,
    /// The endpoint that sends the message.
    pub from: EndpointIndex,
    /// The endpoint that receives the message.
    pub to: EndpointAddress,
    /// A number for the receiver, which the library does not interpret.
    pub tag: u64,
    /// The bytes of the message.
    pub buffer: Buffer,
    /// True if the send is over only when a receive has taken the message, however short it is.
    pub sync: bool,
}

impl<M: Matcher> Domain<M> {
    /// Attaches with a matcher of the caller's; see [`Domain::attach_with`].
    pub fn attach_matching(options: &Options, matcher: M) -> Result<Self, AttachError> {
        let (socket, socket_path) = connect::connect(options)?;
        let mut control = Control::open(socket)?;
        let attach = Attach { name: options.name.clone(), resume: None };
        let mut notification = control.request(attach.into(), &[])?;
        let ToClient::Welcome(welcome) = notification.message.clone() else {
            return Err(Refusal::from(Reason::NotIsthmus).into());
        };
        let me = LocalIdentity::of(&welcome);
        let guard = ForkGuard::new().map_err(|_| Refusal::from(Reason::OutOfAddressSpace))?;
        let mut core = Core::new(me, socket_path, options, guard, matcher)?;
        if !welcome.channels {
            core.no_channels = Some(Reason::ChannelsForbidden);
        }
        core.open_domain_ring(&welcome, &mut notification).map_err(Refusal::from)?;
        core.sleeper.watch_control(&control);
        core.control = Some(control);
        Ok(Self { record: RecordBuffer::default(), waiting: AdaptiveSpin::new(options.wait), core })
    }

    /// The number of this domain.
    pub fn id(&self) -> DomainId {
        self.core.identity.domain
    }

    /// The name of this domain.
    pub fn name(&self) -> &str {
        self.core.identity.name.as_str()
    }

    /// Opens an endpoint: the given one, or the lowest that is free.
    pub fn open(&mut self, index: Option<EndpointIndex>, label: &str) -> Result<EndpointIndex, Refusal> {
        let label = match label {
            "" => None,
            label => Some(Name::new(label).map_err(|error| Refusal::new(Reason::NameInvalid, error.to_string()))?),
        };
        let notification = self.core.request(OpenEndpoint { index, label: label.clone() }.into())?;
        match notification.message {
            ToClient::EndpointOpened(opened) => {
                self.core.endpoints.open(opened.index, label);
                Ok(opened.index)
            }
            _ => Err(Reason::NotIsthmus.into()),
        }
    }

    /// Closes an endpoint. Its posted receives complete as cancelled; messages that waited for them are dropped.
    pub fn close(&mut self, index: EndpointIndex) -> Result<(), Refusal> {
        self.core.check_alive()?;
        if !self.core.close_endpoint(index) {
            return Err(Reason::EndpointClosed.into());
        }
        match self.core.request(CloseEndpoint { index }.into()) {
            // A new daemon may never have known the endpoint.
            Err(refusal) if !matches!(refusal.reason, Reason::EndpointClosed | Reason::DaemonConnectionLost) => {
                Err(refusal)
            }
            _ => Ok(()),
        }
    }

    /// Looks up a domain by its name, or by its number as in `d7`.
    pub fn lookup(&mut self, name: &str) -> Result<DomainId, Refusal> {
        let name = Name::new(name).map_err(|error| Refusal::new(Reason::NameInvalid, error.to_string()))?;
        match self.core.request(Lookup { name }.into())?.message {
            ToClient::Found(found) => Ok(found.domain),
            _ => Err(Reason::NotIsthmus.into()),
        }
    }

    /// Sends a message. From its completion on, the buffer may be used again: at once for messages up to 32 KiB on a channel; when
    /// the receiver has them for longer ones and those with `sync`. A refusal returns the buffer.
    pub fn post(&mut self, message: Message) -> Result<(), (Refusal, Buffer)> {
        let Message { token, from, to, tag, buffer, sync } = message;
        match self.core.check_alive() {
            Ok(()) => self.core.post_send(token, from, to, tag, buffer, sync),
            Err(refusal) => Err((refusal, buffer)),
        }
    }

    /// Sends a message of at most 128 bytes if that is possible at once: there is a channel with room, and no message waits before it.
    /// True if the message was sent; there is no completion.
    #[inline(always)]
    pub fn inject(&mut self, from: EndpointIndex, to: EndpointAddress, tag: u64, bytes: &[u8]) -> bool {
        self.core.check_alive().is_ok() && self.core.send_now(from, to, tag, bytes)
    }

    /// The matcher.
    #[inline]
    pub fn matcher(&self) -> &M {
        &self.core.matcher
    }

    /// The matcher, to post receives to, or to take what it has.
    #[inline]
    pub fn matcher_mut(&mut self) -> &mut M {
        &mut self.core.matcher
    }

    /// Delivers a message that the matcher held to a receive: at once, or over time if its sender still has the bytes.
    ///
    /// # Panics
    ///
    /// If the message is [`Arriving`](crate::UnexpectedState::Arriving): it can be delivered when it is complete.
    pub fn deliver_held(&mut self, posted: Posted, message: Unexpected) {
        if self.core.check_alive().is_ok() {
            self.core.deliver_held(posted, message);
        }
    }

    /// Discards a message that the matcher held, without a receive. If its sender waits, it is notified that the message was received
    /// and that no byte of it was wanted.
    pub fn discard_held(&mut self, message: &Unexpected) {
        if self.core.check_alive().is_ok() {
            self.core.refuse_announced(message, isthmus_layout::record::ReceiveOutcome::Copied);
        }
    }

    /// Runs one iteration of all work of the domain; never waits.
    #[inline]
    pub fn progress(&mut self) {
        if !self.core.is_child() {
            self.core.progress(&mut self.record);
        }
    }

    /// True if [`Self::progress`] would find nothing to do; counts as a call of it. For callers that poll in a loop.
    #[inline(always)]
    pub fn is_idle(&mut self) -> bool {
        !self.core.is_child() && self.core.has_no_pending_work() && self.core.inbox.is_idle()
    }

    /// The number of records received from the daemon so far; all others came by channels. Waiting for such a record is waiting for the daemon.
    #[inline]
    pub fn daemon_records(&self) -> u64 {
        self.core.daemon_records
    }

    /// Waits until the matcher is busy, for `limit` at most. False if the limit has passed, or in the child of a fork.
    pub fn wait_busy(&mut self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        while self.core.check_alive().is_ok() {
            let Self { record, waiting, core } = self;
            let came = waiting.spin(|| {
                core.progress(record);
                core.matcher.is_busy()
            });
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if came || left.is_some_and(|left| left.is_zero()) {
                return came;
            }
            if self.waiting.wait() != WaitMode::Spin && self.core.prepare_sleep() {
                let notification = self.core.sleeper.sleep(left);
                self.core.end_sleep(notification);
            }
            self.progress();
            if self.core.matcher.is_busy() {
                return true;
            }
        }
        false
    }

    /// Releases all buffers that callers have lent for operations with a peer. Messages to the peer go on from copies. Messages from
    /// it that have a receive are dropped, and those receives never complete. For callers that need their memory back before an
    /// operation is over.
    pub fn release_borrowed_buffers(&mut self, peer: DomainId) {
        self.release_borrowed_buffers_except(peer, |_, _| false);
    }

    /// Like [`Self::release_borrowed_buffers`]. Messages from the peer go on if `keep` picks out their receive.
    pub fn release_borrowed_buffers_except(&mut self, peer: DomainId, keep: impl Fn(&M, Token) -> bool) {
        if let Some(at) = self.core.find_peer(peer) {
            let Core { peers, matcher, .. } = &mut self.core;
            peers[at].release_borrowed_buffers(|token| keep(matcher, token));
        }
    }

    /// Gives up a send that is not over. A message that has not begun to leave is removed, without a completion; any other one goes on from a
    /// copy. In both cases the buffer is the caller's again.
    pub fn abandon_send(&mut self, token: Token) {
        self.core.peers.iter_mut().for_each(|peer| peer.abandon_send(token));
    }

    /// True while a send is not over.
    pub fn has_unsent(&self) -> bool {
        self.core.has_unsent()
    }

    /// Prepares for a sleep of the program on [`Self::fd`]. False if there is work already; the program has to poll first.
    pub fn arm(&mut self) -> bool {
        if self.core.is_child() {
            return false;
        }
        self.core.progress(&mut self.record);
        !self.core.matcher.is_busy() && self.core.prepare_sleep()
    }

    /// A descriptor that becomes readable when a poll may find work, once [`Self::arm`] has returned true. It may also become readable
    /// without work. For epoll, poll or any event loop; programs must not read from it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.core.sleeper.as_fd()
    }

    /// The tag (`epoll_event.data`) of events of [`Self::fd`], which is an epoll set, for notifications of the daemon. All other events
    /// of the domain have tag 0.
    pub const NOTIFICATIONS: u64 = crate::sleep::NOTIFICATIONS;

    /// Ends a sleep on [`Self::fd`] after [`Self::arm`], if the caller has taken its events, so that the next poll need not take them.
    /// `notification` is true if an event had the tag [`Self::NOTIFICATIONS`].
    pub fn woke_up(&mut self, notification: bool) {
        if !self.core.is_child() {
            self.core.woke_up(notification);
        }
    }

    /// The paths to all peers that this domain has communicated with.
    pub fn channels(&mut self) -> Vec<ChannelStatus> {
        let Core { peers, inbox, .. } = &mut self.core;
        let status = |peer: &Peer| {
            let sent = match peer.channel_state {
                ChannelState::Made { key, .. } => inbox.channel(key).map(|channel| channel.sent()),
                _ => None,
            };
            ChannelStatus::of(peer, sent.unwrap_or_default())
        };
        peers.iter().map(status).collect()
    }

    /// A report of the daemon, as JSON.
    pub fn query(&mut self, topic: Topic, arguments: &[&str]) -> Result<String, Refusal> {
        self.core.request_or_retry(|control| crate::query::query(control, topic, arguments))
    }

    /// True while the daemon answers. Channels keep working without it.
    pub fn is_connected(&self) -> bool {
        self.core.control.is_some()
    }

    /// Detaches in order: sent messages are delivered, within `limit`. Receives that are still posted then complete as cancelled, and
    /// sends that are not over fail with [`Reason::ClosedLocally`]. Meanwhile `before_close` is called each time that the matcher may
    /// have become busy; it has to take the matcher's results so that the matcher is no longer busy.
    pub fn leave(&mut self, limit: Duration, mut before_close: impl FnMut(&mut M)) {
        let deadline = Instant::now() + limit;
        if self.core.check_alive().is_ok() {
            before_close(&mut self.core.matcher);
            while self.core.has_unsent() && Instant::now() < deadline {
                self.progress_or_sleep(deadline);
                before_close(&mut self.core.matcher);
            }
            let _ = self.core.request(Detach {}.into());
        }
        self.core.cancel_all();
    }

    /// Runs one iteration, and sleeps if there was nothing to do in it.
    pub(crate) fn progress_or_sleep(&mut self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_millis(10));
        self.progress();
        if self.core.has_unsent() && self.core.prepare_sleep() {
            let notification = self.core.sleeper.sleep(Some(left));
            self.core.end_sleep(notification);
        }
    }
}

impl Domain {
    /// Attaches with the options of the environment.
    pub fn attach() -> Result<Self, AttachError> {
        Self::attach_with(&Options::from_environment()?)
    }

    /// Attaches to the daemon. Starts a daemon for this user if none answers and `options` do not forbid it.
    pub fn attach_with(options: &Options) -> Result<Self, AttachError> {
        Self::attach_matching(options, InOrder::default())
    }

    /// Sends the bytes of `buffer`. The completion gives it back: for messages up to 32 KiB on a channel that is at once,
    /// longer ones when the receiver has them. A buffer that could not be posted comes back with the refusal.
    #[inline]
    pub fn send(
        &mut self,
        from: EndpointIndex,
        to: EndpointAddress,
        tag: u64,
        buffer: Buffer,
    ) -> Result<Token, (Refusal, Buffer)> {
        let token = self.core.matcher.next_token();
        if self.inject(from, to, tag, buffer.as_slice()) {
            let outcome = Outcome::Sent { taken: buffer.len() as u64 };
            self.core.matcher.complete(Completion { token, endpoint: from, buffer, outcome });
            return Ok(token);
        }
        self.post(Message { token, from, to, tag, buffer, sync: false }).map(|()| token)
    }

    /// Posts a receive. The oldest receive takes the oldest message. A receive keeps the first bytes of a longer message.
    #[inline]
    pub fn receive(&mut self, at: EndpointIndex, buffer: Buffer) -> Result<Token, (Refusal, Buffer)> {
        if let Err(refusal) = self.core.check_alive() {
            return Err((refusal, buffer));
        }
        if !self.core.endpoints.is_open(at) {
            return Err((Refusal::new(Reason::EndpointClosed, at.to_string()), buffer));
        }
        let token = self.core.matcher.next_token();
        if self.core.matcher.post(at, Posted { token, buffer }) {
            self.core.match_unexpected(at);
        }
        Ok(token)
    }

    /// Cancels a posted receive. True if it had not begun to receive; it then completes as cancelled.
    pub fn cancel(&mut self, at: EndpointIndex, token: Token) -> bool {
        if self.core.check_alive().is_err() {
            return false;
        }
        let posted = self.core.matcher.cancel(at, token);
        posted.is_some_and(|posted| {
            self.core.complete(posted, at, Outcome::Cancelled);
            true
        })
    }

    /// Returns the next completion, if there is one. Runs one iteration of all work; never waits.
    #[inline]
    pub fn poll(&mut self) -> Option<Completion> {
        if self.core.is_child() {
            return None;
        }
        if let Some(completion) = self.core.matcher.completions.pop_front() {
            return Some(completion);
        }
        self.core.progress(&mut self.record);
        self.core.matcher.completions.pop_front()
    }

    /// Puts completions back that another caller is waiting for.
    pub(crate) fn requeue_completions(&mut self, completions: Vec<Completion>) {
        for completion in completions.into_iter().rev() {
            self.core.matcher.completions.push_front(completion);
        }
    }

    /// Waits for the next completion, for `limit` at most. None if the limit has passed, or in the child of a fork.
    pub fn wait(&mut self, limit: Option<Duration>) -> Option<Completion> {
        if let Some(completion) = self.poll() {
            return Some(completion);
        }
        self.wait_busy(limit);
        self.core.matcher.completions.pop_front()
    }

    /// Leaves as [`Self::leave`] does. The operations that are over, or ended by that.
    pub fn detach(mut self, limit: Duration) -> Vec<Completion> {
        let mut over = Vec::new();
        self.leave(limit, |matcher| over.extend(matcher.completions.drain(..)));
        over.extend(self.core.matcher.completions.drain(..));
        over
    }
}
