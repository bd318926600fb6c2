//! The guest's side of the control proxy. The guest daemon accepts connections of programs, forwards their messages to the host, and opens
//! descriptors for the resources that the host's messages refer to.
//!
//! The host daemon decides which domains may communicate, and assigns numbers and names. The guest daemon decides which programs may connect,
//! and revokes extents from them. Pair windows appear and disappear while it runs; it reports these changes to the host.

mod device;
mod interfaces;
mod loops;
mod resources;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use isthmus_channel::proxy_ring::ProxyFrame;
use isthmus_layout::channel::Direction;
use isthmus_layout::control::{
    EventChannelEnd, EventChannels, HEADER_BYTES, List, MalformedControl, Refused, Text, ToClient, ToDaemon, serial_of,
};
use isthmus_layout::limits::{CONTROL_BYTES_MAX, CONTROL_FDS_MAX, PAGE_BYTES};
use isthmus_layout::proxy::grants::{GrantReply, GrantRequest};
use isthmus_layout::proxy::loops::LoopPeers;
use isthmus_layout::proxy::pair_window::{MapReply, MapRequest, PairInvite, PairOffer};
use isthmus_layout::proxy::{
    ACK_INTERVAL, ADDRESSES_WORD, ClientConnected, ControlPacket, HEARTBEAT_TIMEOUT_MS, LOOPS_WORD, MAGIC, MAGIC_WORD,
    PROXY_RING, PROXY_RING_OFFSET, PROXY_VECTOR, ProxyFrameKind, ResourceRef, RevokedExtent, SESSION_REPLY_WORD,
    SESSION_REQUEST_WORD, UNACKED_MAX, VERSION, VERSION_WORD, WindowId,
};
use isthmus_layout::reason::Reason;
use isthmus_layout::{Refusal, RegionSize};
use isthmus_platform::seqpacket::{self, ReceiveError};
use isthmus_platform::{Doorbell, Ring as _};
use isthmus_platform_kvm::HOST;
use isthmus_shm::{SharedMapping, Words as _};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{
    FRAMES_PER_POLL, HEARTBEAT_INTERVAL, Heartbeat, PacketSocket, ProxySession, ProxyViolation, is_region_ref,
    region_refusal,
};
use crate::relay;
use crate::relay::addresses::StatedAddresses;
pub use device::{EventChannelFd, GuestDevice, KeepAlive};
use isthmus_control::async_fd::{pidfd, register};
use isthmus_control::policy::Policy;
use isthmus_control::server::{Stop, program_name};
use isthmus_control::session::QUEUE_MAX;
use isthmus_control::socket::Listener;
use loops::{GuestLoops, HostUpdate, LoopMessage};
use resources::{OpenedResource, ResourceCache};

/// The pause after `accept` has failed.
const ACCEPT_RETRY: Duration = Duration::from_secs(1);

const SILENT_AFTER: Duration = Duration::from_millis(HEARTBEAT_TIMEOUT_MS as u64);

/// The maximum number of replies that are queued for the host. A grant pool holds fewer extents of each size.
const UNSENT_MAX: usize = 256;

/// The reason why a guest daemon has stopped serving its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestEnded {
    /// The daemon was asked to stop.
    Stopped,
    /// The device was unplugged, or its window has ended and is not reusable.
    WindowDetached,
}

/// The daemon of a guest.
pub struct GuestDaemon<D> {
    device: D,
    policy: Policy,
}

/// The parts of the window that a proxy session uses.
struct ProxyMemory {
    head: SharedMapping,
    proxy_ring: SharedMapping,
    host: Doorbell,
}

impl<D: GuestDevice + 'static> GuestDaemon<D> {
    /// Creates a daemon for a device. `policy` determines which users of the guest may connect.
    pub fn new(device: D, policy: Policy) -> Self {
        Self { device, policy }
    }

    /// Serves until it is stopped, the device is gone, or a session has ended on a window that is not reusable. Runs inside a
    /// [`LocalSet`](tokio::task::LocalSet).
    pub async fn run(self, listener: &Listener, stop: &Stop) -> io::Result<GuestEnded> {
        let memory = Rc::new(ProxyMemory {
            head: self.device.window(0, RegionSize(PAGE_BYTES.into()))?,
            proxy_ring: self.device.window(PROXY_RING_OFFSET, PROXY_RING.size())?,
            host: Doorbell::from(self.device.doorbell_sender(HOST, PROXY_VECTOR)?),
        });
        let doorbell = register(self.device.listen(PROXY_VECTOR)?)?;
        let gone = register(self.device.hangup_fd()?)?;
        let incoming = register(listener.as_fd().try_clone_to_owned()?)?;
        let mut session_request = SessionRequest::new(Rc::clone(&memory));
        let resources = Rc::new(ResourceCache::new(self.device));
        let mut guest_session: Option<Rc<GuestSession<D>>> = None;
        let mut host = HostState::new(memory.head.clone());
        let mut again = interval(HEARTBEAT_INTERVAL);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut more = false;
        let ended = loop {
            tokio::select! {
                () = stop.stopped() => break GuestEnded::Stopped,
                hung_up = gone.readable() => {
                    drop(hung_up?);
                    break GuestEnded::WindowDetached;
                }
                ready = incoming.readable() => match listener.accept() {
                    Ok(socket) => accept_program(socket, &self.policy, guest_session.as_ref().filter(|_| !host.is_silent())),
                    Err(rustix::io::Errno::AGAIN) => ready?.clear_ready(),
                    Err(error) => {
                        tracing::warn!("a connection was not accepted: {error}");
                        tokio::time::sleep(ACCEPT_RETRY).await; // Most likely the process has no descriptors left.
                    }
                },
                ready = doorbell.readable() => {
                    let _ = rustix::io::read(&doorbell, &mut [0; 8]); // The number of rings does not matter.
                    ready?.clear_ready();
                }
                _ = again.tick() => {
                    host.exchange_heartbeat(guest_session.is_some());
                    resources.refresh_windows();
                    guest_session.as_ref().inspect(|guest_session| guest_session.tick(host.is_silent()));
                }
                () = resources.device.changed() => resources.refresh_windows(),
                () = tokio::task::yield_now(), if more => {}
            }
            if guest_session
                .as_ref()
                .is_some_and(|guest_session| guest_session.proxy_session.ended.get() || !session_request.is_answered())
            {
                tracing::warn!("the session with the host daemon has ended");
                guest_session.take().inspect(|before| before.end());
                if !resources.device.is_reusable() {
                    break GuestEnded::WindowDetached;
                }
                session_request = SessionRequest::new(Rc::clone(&memory));
            }
            if guest_session.is_none() && session_request.poll() {
                tracing::info!("the host daemon has answered");
                host.mark_connected();
                let proxy_session = ProxySession::new(memory.proxy_ring.clone(), Direction::One);
                resources.reset();
                guest_session = Some(GuestSession::new(proxy_session, Rc::clone(&memory), Rc::clone(&resources)));
            }
            more = guest_session.as_ref().is_some_and(GuestSession::poll);
        };
        guest_session.inspect(|guest_session| guest_session.end());
        if ended == GuestEnded::Stopped {
            session_request.cancel();
        }
        Ok(ended)
    }
}

/// Accepts connections and refuses each with [`Reason::HostDaemonUnreachable`], until `stopped` completes.
pub async fn refuse_connections<T>(listener: &Listener, stopped: impl Future<Output = T>) -> io::Result<T> {
    let incoming = register(listener.as_fd().try_clone_to_owned()?)?;
    let mut stopped = std::pin::pin!(stopped);
    loop {
        tokio::select! {
            stopped = &mut stopped => return Ok(stopped),
            ready = incoming.readable() => match listener.accept() {
                Ok(socket) => refuse(&socket, Reason::HostDaemonUnreachable),
                Err(rustix::io::Errno::AGAIN) => ready?.clear_ready(),
                Err(_) => tokio::time::sleep(ACCEPT_RETRY).await, // As in `GuestDaemon::run`.
            },
        }
    }
}

/// Tracks whether the host daemon is responsive. If it hangs, this is logged and the session is kept, because the programs' channels work
/// without the daemon.
struct HostState {
    heartbeat: Heartbeat,
    last_seen: Instant,
}

impl HostState {
    fn new(head: SharedMapping) -> Self {
        Self { heartbeat: Heartbeat::of_guest(head), last_seen: Instant::now() }
    }

    /// Records that the host daemon has answered a session request.
    fn mark_connected(&mut self) {
        self.last_seen = Instant::now();
        self.heartbeat.silent = false;
    }

    /// Sends our heartbeat and checks the host daemon's. A host daemon that has never sent one is not treated as silent.
    fn exchange_heartbeat(&mut self, has_session: bool) {
        if self.heartbeat.beat() || self.heartbeat.last_seen == 0 {
            self.last_seen = Instant::now();
        }
        let is_silent = has_session && self.last_seen.elapsed() >= SILENT_AFTER;
        if self.heartbeat.set_silent(is_silent) {
            match is_silent {
                true => tracing::warn!(
                    "no heartbeat from the host daemon for {} s; programs that attach are refused",
                    HEARTBEAT_TIMEOUT_MS / 1000
                ),
                false => tracing::info!("the host daemon sends heartbeats again"),
            }
        }
    }

    fn is_silent(&self) -> bool {
        self.heartbeat.silent
    }
}

/// Returns whether a host daemon has initialized this head page.
fn is_initialized(head: &SharedMapping) -> bool {
    (MAGIC_WORD..).zip(MAGIC).all(|(at, word)| head.load(at, Ordering::Acquire) == word)
        && head.load(VERSION_WORD, Ordering::Acquire) == VERSION
}

/// A request to the host daemon for a new proxy session.
struct SessionRequest {
    memory: Rc<ProxyMemory>,
    /// The number of the request; `None` before the request, and while no host daemon has initialized the head page.
    call: Option<u32>,
}

impl SessionRequest {
    fn new(memory: Rc<ProxyMemory>) -> Self {
        Self { memory, call: None }
    }

    /// Sends the request if necessary. Returns true once the host has answered it.
    fn poll(&mut self) -> bool {
        let head = &self.memory.head;
        if !is_initialized(head) {
            self.call = None;
            return false;
        }
        if self.call.is_none() {
            let (before, mut bytes) = (head.load(SESSION_REPLY_WORD, Ordering::Acquire), [0; 4]);
            let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
            let call = u32::from_le_bytes(bytes);
            // Any number works that is neither 0 nor the previous one.
            let call = if call == 0 || call == before { before.wrapping_add(1).max(1) } else { call };
            head.store(SESSION_REQUEST_WORD, call, Ordering::Release);
            self.call = Some(call);
        }
        if self.is_answered() {
            return true;
        }
        self.memory.host.ring();
        false
    }

    fn is_answered(&self) -> bool {
        self.call.is_some_and(|call| self.memory.head.load(SESSION_REPLY_WORD, Ordering::Acquire) == call)
    }

    /// Withdraws the request: tells the host that no guest daemon is present.
    fn cancel(&self) {
        self.memory.head.store(SESSION_REQUEST_WORD, 0, Ordering::Release);
        self.memory.host.ring();
    }
}

fn refuse(socket: &OwnedFd, reason: Reason) {
    let message = Refused { reason, text: Text::clip(reason.summary()) };
    let _ = seqpacket::send(socket, &ToClient::from(message).emit(None), &[]);
    // If a socket is closed with unread data, the kernel reports an error to the peer before the queued message, and older libraries do not
    // read further. The shutdown prevents new messages; the loop then reads the pending ones.
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
    let (mut message, mut fds) = ([0; HEADER_BYTES], Vec::new());
    while matches!(
        seqpacket::receive(socket, &mut message, &mut fds, false),
        Ok(_) | Err(ReceiveError::TooLong | ReceiveError::DescriptorsLost { .. })
    ) {}
}

/// Accepts or refuses the connection of a program.
fn accept_program<D: GuestDevice + 'static>(
    socket: OwnedFd,
    policy: &Policy,
    guest_session: Option<&Rc<GuestSession<D>>>,
) {
    let Some(guest_session) = guest_session else { return refuse(&socket, Reason::HostDaemonUnreachable) };
    let stream = socket.try_clone().and_then(|socket| UnixStream::from_std(socket.into()));
    let Ok(known) = stream.and_then(|stream| stream.peer_cred()) else { return };
    if let Err(reason) = policy.may_attach(known.uid()) {
        return refuse(&socket, reason);
    }
    let pid = known.pid().filter(|pid| *pid > 0);
    let open = ClientConnected { uid: known.uid(), pid: pid.unwrap_or(0).unsigned_abs(), program: program_name(pid) };
    if let Err(error) = guest_session.open(socket, open) {
        tracing::warn!("a connection could not be set up: {error}");
    }
}

/// The guest's side of one proxy session, from the session request on.
struct GuestSession<D> {
    proxy_session: ProxySession,
    memory: Rc<ProxyMemory>,
    resources: Rc<ResourceCache<D>>,
    programs: RefCell<BTreeMap<u32, Rc<ProgramConnection>>>,
    next: Cell<u32>,
    /// The windows that were reported to the host as attached.
    reported: RefCell<BTreeSet<WindowId>>,
    /// Replies to the host and reports of reclaimed extents that are not yet sent.
    replies: RefCell<VecDeque<(ProxyFrameKind, Vec<u8>)>>,
    replies_changed: Notify,
    addresses: RefCell<StatedAddresses>,
    /// Pending changes for the loop devices; none if there can be no such devices.
    host_update: RefCell<Option<HostUpdate>>,
    /// Notified when there is such a change, at each heartbeat, and when the session ends.
    loops_changed: Notify,
}

/// A message for a program.
type Message = (Vec<u8>, Vec<Arc<OwnedFd>>);

/// A connection of a program.
struct ProgramConnection {
    number: u32,
    /// The process ID, as in [`ClientConnected`].
    pid: u32,
    socket: PacketSocket,
    /// Messages from the host that were not yet sent to the program.
    inbox: RefCell<VecDeque<Message>>,
    /// Set once no more messages are added to `inbox`. Those in it are still sent to the program.
    closed: Cell<bool>,
    inbox_changed: Notify,
    /// The number of messages that the host has not acknowledged.
    unacknowledged: Cell<u32>,
    taken: Notify,
    /// Objects that are kept until the program's process has ended, or until [`KEPT_MAX`] newer ones were added.
    kept_alive: RefCell<VecDeque<KeepAlive>>,
}

/// The maximum number of event channel ends that are kept for a program, beyond those of existing grant batches. A program processes its
/// messages in order. When it has received this number of newer ends, it has closed the oldest one, or has it from an existing batch.
const KEPT_MAX: usize = 256;

impl ProgramConnection {
    fn close(&self) {
        self.closed.set(true);
        self.inbox_changed.notify_one();
        self.taken.notify_one();
    }

    /// Queues a message of the host. A message before it says which of its descriptors are event channels.
    fn deliver(&self, message: &[u8], resources: Vec<OpenedResource>) {
        let (mut files, mut ends) = (Vec::new(), Vec::new());
        for (descriptor, OpenedResource { file, event_channel }) in (0..).zip(resources) {
            files.push(file);
            if let Some((port, keep_alive)) = event_channel {
                ends.push(EventChannelEnd { descriptor, port });
                let mut kept = self.kept_alive.borrow_mut();
                kept.push_back(keep_alive);
                if kept.len() > KEPT_MAX {
                    kept.pop_front();
                }
            }
        }
        if !ends.is_empty() {
            let ends = List::new(ends).expect("a message has no more descriptors");
            self.push((ToClient::from(EventChannels { ends }).emit(None), Vec::new()));
        }
        self.push((message.to_vec(), files));
    }

    fn push(&self, message: Message) {
        self.inbox.borrow_mut().push_back(message);
        self.inbox_changed.notify_one();
    }
}

impl<D: GuestDevice + 'static> GuestSession<D> {
    fn new(proxy_session: ProxySession, memory: Rc<ProxyMemory>, resources: Rc<ResourceCache<D>>) -> Rc<Self> {
        let (programs, replies, reported) = (RefCell::default(), RefCell::default(), RefCell::default());
        let new = Self {
            proxy_session,
            memory,
            resources,
            programs,
            next: Cell::new(1),
            reported,
            replies,
            replies_changed: Notify::new(),
            addresses: RefCell::default(),
            host_update: RefCell::default(),
            loops_changed: Notify::new(),
        };
        let guest_session = Rc::new(new);
        spawn_local(Rc::clone(&guest_session).send_replies());
        if guest_session.resources.device.has_loops() && guest_session.takes(LOOPS_WORD) {
            guest_session.host_update.replace(Some(HostUpdate::default()));
            spawn_local(Rc::clone(&guest_session).serve_loops());
        }
        guest_session
    }

    /// A heartbeat has passed.
    fn tick(&self, is_host_silent: bool) {
        if let Some(pending) = &mut *self.host_update.borrow_mut() {
            pending.is_host_silent = is_host_silent;
        }
        self.loops_changed.notify_one();
    }

    fn end(&self) {
        self.proxy_session.end();
        self.replies_changed.notify_one();
        self.loops_changed.notify_one();
        let programs = std::mem::take(&mut *self.programs.borrow_mut());
        programs.values().for_each(|program| program.close());
    }

    fn open(self: &Rc<Self>, socket: OwnedFd, open: ClientConnected) -> io::Result<()> {
        let program = Rc::new(ProgramConnection {
            number: self.next.replace(self.next.get() + 1),
            pid: open.pid,
            socket: PacketSocket::new(socket)?,
            inbox: RefCell::default(),
            closed: Cell::new(false),
            inbox_changed: Notify::new(),
            unacknowledged: Cell::new(0),
            taken: Notify::new(),
            kept_alive: RefCell::default(),
        });
        self.programs.borrow_mut().insert(program.number, Rc::clone(&program));
        spawn_local(Rc::clone(self).forward_to_host(Rc::clone(&program), open));
        spawn_local(forward_to_program(program));
        Ok(())
    }

    /// Processes frames after the host has rung or time has passed. Returns true if more is to be done, also if the session has ended.
    fn poll(self: &Rc<Self>) -> bool {
        match self.proxy_session.receive_frames(|frame, content| self.handle_frame(frame, content)) {
            Ok(taken) => {
                if self.report_windows() || taken > 0 {
                    self.memory.host.ring();
                }
                taken == FRAMES_PER_POLL || self.proxy_session.ended.get()
            }
            Err(text) => {
                tracing::error!("the host daemon has broken the protocol: {text}");
                self.proxy_session.end();
                true
            }
        }
    }

    /// Reports attached and detached windows to the host while the ring has room. Returns true if a frame was sent.
    fn report_windows(&self) -> bool {
        let (pair_windows, mut reported) = (self.resources.pair_windows.borrow(), self.reported.borrow_mut());
        let here = pair_windows.keys().copied().collect::<BTreeSet<_>>();
        let gone = reported.difference(&here).map(|window| (ProxyFrameKind::WindowDetached, *window));
        let come = here.difference(&reported).map(|window| (ProxyFrameKind::WindowAttached, *window));
        let changes: Vec<_> = gone.chain(come).collect();
        let mut sent = false;
        for (kind, window) in changes {
            if !matches!(self.proxy_session.send(ProxyFrame { kind, connection: 0 }, &window.emit()), Ok(true)) {
                break; // The next poll continues, unless the session has ended.
            }
            sent = true;
            match kind {
                ProxyFrameKind::WindowAttached => drop(reported.insert(window)),
                _ => drop(reported.remove(&window)),
            }
        }
        sent
    }

    /// Handles one frame. The error describes a violation of the protocol.
    fn handle_frame(&self, ProxyFrame { kind, connection }: ProxyFrame, content: &[u8]) -> Result<(), ProxyViolation> {
        let program = self.programs.borrow().get(&connection).cloned();
        match (kind, program) {
            (ProxyFrameKind::ControlPacket, program) => {
                let packet = ControlPacket::parse(content)?;
                program.inspect(|program| self.packet(program, &packet));
            }
            (ProxyFrameKind::Closed, Some(program)) => {
                self.programs.borrow_mut().remove(&connection);
                program.close();
            }
            (ProxyFrameKind::Ack, Some(program)) => {
                program.unacknowledged.set(program.unacknowledged.get().saturating_sub(ACK_INTERVAL));
                program.taken.notify_one();
            }
            (ProxyFrameKind::Closed | ProxyFrameKind::Ack, None) => {} // The connection was closed in the meantime.
            (ProxyFrameKind::RevokedExtent, _) => {
                let revoked = RevokedExtent::parse(content)?;
                self.resources.revoke(revoked);
                if let Some(pending) = &mut *self.host_update.borrow_mut() {
                    pending.revoked.push(revoked);
                    self.loops_changed.notify_one();
                }
                self.replies.borrow_mut().push_back((ProxyFrameKind::Reclaimed, content.to_vec()));
                self.replies_changed.notify_one();
            }
            (
                ProxyFrameKind::GrantRequest
                | ProxyFrameKind::PairInvite
                | ProxyFrameKind::PairClose
                | ProxyFrameKind::MapRequest,
                _,
            ) => {
                if self.replies.borrow().iter().filter(|(kind, _)| *kind != ProxyFrameKind::Reclaimed).count()
                    >= UNSENT_MAX
                {
                    return Err(ProxyViolation::Requests(UNSENT_MAX));
                }
                let done = self.execute(kind, content)?;
                self.replies.borrow_mut().extend(done);
                self.replies_changed.notify_one();
            }
            (ProxyFrameKind::LoopPeers, _) => {
                let LoopPeers(peers) = LoopPeers::parse(content)?;
                if let Some(pending) = &mut *self.host_update.borrow_mut() {
                    pending.peers = Some(peers.to_vec());
                    self.loops_changed.notify_one();
                }
            }
            (
                ProxyFrameKind::ClientConnected
                | ProxyFrameKind::LoopInterfaces
                | ProxyFrameKind::LoopRequest
                | ProxyFrameKind::WindowAttached
                | ProxyFrameKind::WindowDetached
                | ProxyFrameKind::Reclaimed
                | ProxyFrameKind::GrantReply
                | ProxyFrameKind::PairOffer
                | ProxyFrameKind::MapReply
                | ProxyFrameKind::Addresses,
                _,
            ) => return Err(ProxyViolation::Kind { sender: "host", kind }),
        }
        Ok(())
    }

    /// Carries out a request of the host about windows, and returns the reply.
    fn execute(
        &self,
        kind: ProxyFrameKind,
        content: &[u8],
    ) -> Result<Option<(ProxyFrameKind, Vec<u8>)>, MalformedControl> {
        let device = &self.resources.device;
        match kind {
            ProxyFrameKind::PairInvite => {
                let invite = PairInvite::parse(content)?;
                let joined = device.join_pair(&invite).unwrap_or_else(|error| {
                    tracing::warn!(domain = invite.domid, "a pair window cannot be joined: {error}");
                    Some(Vec::new())
                });
                self.resources.refresh_windows();
                let offer = |offer: Vec<u8>| PairOffer { window: invite.window, offer: &offer }.emit();
                Ok(joined.map(|joined| (ProxyFrameKind::PairOffer, offer(joined))))
            }
            ProxyFrameKind::PairClose => {
                device.leave_pair(WindowId::parse(content)?);
                self.resources.refresh_windows();
                Ok(None)
            }
            ProxyFrameKind::MapRequest => {
                let request = MapRequest::parse(content)?;
                let mapped = device.map_grant(&request).inspect_err(|error| {
                    tracing::warn!(bytes = request.bytes, "a grant of the peer guest cannot be mapped: {error}");
                });
                let reply = MapReply { window: request.window, offset: request.offset, mapped: mapped.is_ok() };
                Ok(Some((ProxyFrameKind::MapReply, reply.emit())))
            }
            _ => {
                let request = GrantRequest::parse(content)?;
                let grant = device.grant_extent(request).unwrap_or_else(|error| {
                    tracing::warn!(bytes = request.bytes, "an extent cannot be granted: {error}");
                    Vec::new()
                });
                let reply = GrantReply { window: request.window, offset: request.offset, grant: &grant };
                Ok(Some((ProxyFrameKind::GrantReply, reply.emit())))
            }
        }
    }

    /// Sends replies to the host.
    async fn send_replies(self: Rc<Self>) {
        while !self.proxy_session.ended.get() {
            let next = self.replies.borrow_mut().pop_front();
            match next {
                Some((kind, content)) => drop(self.send(kind, 0, &content).await),
                None => self.replies_changed.notified().await,
            }
        }
    }

    fn packet(&self, program: &ProgramConnection, packet: &ControlPacket<'_>) {
        if program.closed.get() {
            return; // No message is added any more.
        }
        let open = |reference: &ResourceRef| self.resources.open(program.number, *reference);
        match packet.resources.iter().map(open).collect::<io::Result<Vec<_>>>() {
            Ok(resources) if program.inbox.borrow().len() < QUEUE_MAX => program.deliver(packet.message, resources),
            Ok(_) => program.close(), // The program does not read its messages.
            Err(error) if packet.resources.iter().all(is_region_ref) => {
                tracing::warn!(connection = program.number, "an extent of a region cannot be opened: {error}");
                if let Some(refused) = region_refusal(packet, Reason::NoSharedMemory) {
                    program.push((refused, Vec::new()));
                }
            }
            Err(error) => {
                tracing::warn!(connection = program.number, "a resource of the host daemon cannot be opened: {error}");
                program.close();
            }
        }
    }

    /// Returns whether the host takes the frames that this word of the head page is about.
    fn takes(&self, word: u32) -> bool {
        // The word is written before the reply that begins a session. An older daemon does not write it.
        let head = &self.memory.head;
        head.load(word, Ordering::Acquire) == head.load(SESSION_REPLY_WORD, Ordering::Acquire)
    }

    /// Keeps loop devices and the steering of interfaces as the host says, until the session ends.
    async fn serve_loops(self: Rc<Self>) {
        let served = self.try_serve_loops().await;
        self.host_update.take();
        if let Err(error) = served {
            tracing::warn!("frames to other guests take the standard path: {error}");
        }
    }

    async fn try_serve_loops(&self) -> io::Result<()> {
        let mut loops = GuestLoops::new()?;
        let mut unsent = VecDeque::new();
        while !self.proxy_session.ended.get() {
            let pending = self.host_update.borrow_mut().as_mut().map(HostUpdate::take).unwrap_or_default();
            // The host may not read for long, and devices have to be kept up to date meanwhile.
            let has_room = unsent.len() < UNSENT_MAX;
            unsent.extend(loops.update(&self.resources, pending, has_room));
            self.send_loop_messages(&mut unsent);
            tokio::select! {
                () = self.loops_changed.notified() => {}
                changed = loops.changed() => changed?,
            }
        }
        Ok(())
    }

    /// Sends messages as long as there is room.
    fn send_loop_messages(&self, unsent: &mut VecDeque<LoopMessage>) {
        while let Some((kind, content)) = unsent.front() {
            if !matches!(self.proxy_session.send(ProxyFrame { kind: *kind, connection: 0 }, content), Ok(true)) {
                return; // The next heartbeat tries again, unless the session has ended.
            }
            unsent.pop_front();
            self.memory.host.ring();
        }
    }

    /// Tells the host the addresses of the guest's interfaces, if they have changed.
    async fn state_addresses(&self) {
        if !self.takes(ADDRESSES_WORD) {
            return; // A later session may have begun, and then nothing is sent in this one.
        }
        let changed = self.addresses.borrow_mut().changed();
        if let Some(addresses) = changed
            && self.send(ProxyFrameKind::Addresses, 0, &addresses.emit()).await
        {
            self.addresses.borrow_mut().set_stated(addresses);
        }
    }

    /// Forwards messages from the program to the host.
    async fn forward_to_host(self: Rc<Self>, program: Rc<ProgramConnection>, open: ClientConnected) {
        self.state_addresses().await;
        if !self.send(ProxyFrameKind::ClientConnected, program.number, &open.emit()).await {
            return;
        }
        let (mut message, mut fds) = (vec![0; CONTROL_BYTES_MAX], Vec::with_capacity(CONTROL_FDS_MAX));
        while !program.closed.get() {
            let Some(bytes) = program.socket.receive(&mut message, &mut fds).await else { break };
            let message = &message[..bytes];
            if !fds.is_empty() {
                program.push((request_refusal(message, fds.len()), Vec::new()));
                fds.clear();
                continue;
            }
            while program.unacknowledged.get() >= UNACKED_MAX && !program.closed.get() {
                program.taken.notified().await;
            }
            program.unacknowledged.set(program.unacknowledged.get() + 1);
            let packet = ControlPacket { resources: Vec::new(), message };
            if !self.send(ProxyFrameKind::ControlPacket, program.number, &packet.emit()).await {
                return;
            }
        }
        program.close();
        if self.programs.borrow_mut().remove(&program.number).is_some() {
            self.send(ProxyFrameKind::Closed, program.number, &[]).await;
        }
    }

    /// Sends a frame, waiting for room. Returns false if the proxy session has ended.
    async fn send(&self, kind: ProxyFrameKind, connection: u32, content: &[u8]) -> bool {
        loop {
            match self.proxy_session.send(ProxyFrame { kind, connection }, content) {
                Ok(true) => {
                    self.memory.host.ring();
                    return true;
                }
                Ok(false) => self.proxy_session.wait_for_room().await,
                Err(_) => return false,
            }
        }
    }
}

/// Forwards messages from the host to the program. Afterwards drops the objects that were kept for the program, once its process has ended.
async fn forward_to_program(program: Rc<ProgramConnection>) {
    loop {
        let next = program.inbox.borrow_mut().pop_front();
        match next {
            Some((message, descriptors)) => {
                if !program.socket.send(&message, &descriptors).await {
                    break; // The other task notices the end, too.
                }
            }
            None if program.closed.get() => {
                program.socket.shut_down();
                break;
            }
            None => program.inbox_changed.notified().await,
        }
    }
    let (pid, kept) = (program.pid, program.kept_alive.take());
    drop(program);
    if !kept.is_empty() {
        wait_for_exit(pid).await;
    }
    for keep_alive in kept {
        drop(keep_alive);
        tokio::task::yield_now().await; // Each may take a moment.
    }
}

/// Waits until a process has ended. Never returns for process ID 0, which stands for a process that is not visible here.
async fn wait_for_exit(pid: u32) {
    let Ok(pid @ 1..) = i32::try_from(pid) else { return std::future::pending().await };
    if let Some(process) = pidfd(pid) {
        drop(process.readable().await);
    }
}

/// Returns the refusal for a message with descriptors, which end here.
fn request_refusal(message: &[u8], descriptors: usize) -> Vec<u8> {
    let parsed = ToDaemon::parse(message, descriptors).ok();
    let refusal = parsed.and_then(|(_, request)| relay::decide(&request, descriptors).err()).unwrap_or_else(|| {
        Refusal::new(Reason::MalformedControl, "the message has descriptors that do not belong to it")
    });
    relay::refused(&refusal, serial_of(message))
}

#[cfg(test)]
mod tests {
    use isthmus_layout::control::{Detach, Grant};
    use isthmus_layout::ids::{DomainId, RegionId};
    use isthmus_layout::proxy::addresses::GuestAddresses;

    use super::*;
    use isthmus_channel::proxy_ring::ProxyRing;
    use isthmus_config::{ConfigFile, Inputs, Role, load};

    /// A device without a host daemon: its window is empty.
    struct DeviceWithoutHost;

    impl GuestDevice for DeviceWithoutHost {
        fn extent(&self, _offset: u64, bytes: u64) -> io::Result<OwnedFd> {
            isthmus_platform::local::memory(RegionSize(bytes)).map_err(io::Error::other)
        }

        fn revoke(&self, _offset: u64, _extent: Option<&OwnedFd>) -> io::Result<()> {
            Ok(())
        }

        fn doorbell_sender(&self, _peer: u16, _vector: u16) -> io::Result<OwnedFd> {
            self.listen(0)
        }

        fn listen(&self, _vector: u16) -> io::Result<OwnedFd> {
            let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
            rustix::event::eventfd(0, flags).map_err(io::Error::from)
        }

        fn hangup_fd(&self) -> io::Result<OwnedFd> {
            self.listen(0)
        }

        fn pair_devices(&self, _known: &BTreeSet<WindowId>) -> Vec<(WindowId, Self)> {
            Vec::new()
        }

        fn is_gone(&self) -> bool {
            false
        }
    }

    #[test]
    fn bounds_event_channels_kept_for_a_program() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, _theirs) = seqpacket::pair().unwrap();
            let program = ProgramConnection {
                number: 1,
                pid: 0,
                socket: PacketSocket::new(ours).unwrap(),
                inbox: RefCell::default(),
                closed: Cell::new(false),
                inbox_changed: Notify::new(),
                unacknowledged: Cell::new(0),
                taken: Notify::new(),
                kept_alive: RefCell::default(),
            };
            let file = Arc::new(DeviceWithoutHost.listen(0).unwrap());
            let alive = Rc::new(());
            for port in 1..=KEPT_MAX as u32 + 100 {
                let resource = OpenedResource {
                    file: Arc::clone(&file),
                    event_channel: Some((port, Box::new(Rc::clone(&alive)))),
                };
                program.deliver(&[], vec![resource]);
                let (message, _) = program.inbox.borrow_mut().pop_front().unwrap();
                let end = EventChannelEnd { descriptor: 0, port };
                assert_eq!(
                    ToClient::parse(&message, 0).unwrap().1,
                    EventChannels { ends: List::new(vec![end]).unwrap() }.into()
                );
                program.inbox.borrow_mut().pop_front().unwrap();
                assert_eq!(Rc::strong_count(&alive) - 1, KEPT_MAX.min(port as usize));
            }
        });
    }

    /// Runs a guest daemon without a host. Returns the first two results of `recv` in a program that has sent `sent` before it is accepted.
    fn first_replies(sent: &[&[u8]]) -> [rustix::io::Result<Vec<u8>>; 2] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("isthmus.sock");
        let listener = Listener::inherited(seqpacket::listen(&path, 1).unwrap());
        let inputs = Inputs { file: ConfigFile::None, ..Inputs::bare(Role::System) };
        let policy = Policy::new(load(&inputs).unwrap().config.policy, rustix::process::geteuid().as_raw());
        let program = seqpacket::connect(&path).unwrap();
        sent.iter().for_each(|sent| seqpacket::send(&program, sent, &[]).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(async {
            let guest = GuestDaemon::new(DeviceWithoutHost, policy);
            let serving = spawn_local(async move { guest.run(&listener, &Stop::default()).await });
            // Both run on one thread, so the daemon has done everything that it does without waiting.
            drop(register(program.try_clone().unwrap()).unwrap().readable().await.unwrap());
            serving.abort();
        }));
        let receive = |_| {
            let mut message = vec![0; CONTROL_BYTES_MAX];
            let (bytes, _) = rustix::net::recv(&program, &mut message[..], rustix::net::RecvFlags::DONTWAIT)?;
            message.truncate(bytes);
            Ok(message)
        };
        [0, 1].map(receive)
    }

    #[test]
    fn states_addresses_once_and_only_to_a_host_that_takes_them() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(async {
            let device = DeviceWithoutHost;
            let memory = Rc::new(ProxyMemory {
                head: device.window(0, RegionSize(PAGE_BYTES.into())).unwrap(),
                proxy_ring: device.window(PROXY_RING_OFFSET, PROXY_RING.size()).unwrap(),
                host: Doorbell::from(device.listen(0).unwrap()),
            });
            let proxy_session = ProxySession::new(memory.proxy_ring.clone(), Direction::One);
            let session = GuestSession::new(proxy_session, Rc::clone(&memory), Rc::new(ResourceCache::new(device)));
            let mut host = ProxyRing::new(memory.proxy_ring.clone(), Direction::Zero);
            memory.head.store(SESSION_REPLY_WORD, 7, Ordering::Release);
            let mut sent = Vec::new();
            // An older daemon has left the number of a session before.
            for takes in [0, 6, 7, 7] {
                memory.head.store(ADDRESSES_WORD, takes, Ordering::Release);
                session.state_addresses().await;
                let mut content = Vec::new();
                let frame = host.receive(&mut content).unwrap();
                sent.push(frame.map(|frame| (frame.kind, GuestAddresses::parse(&content).is_ok())));
            }
            assert_eq!(sent, [None, None, Some((ProxyFrameKind::Addresses, true)), None]);
        }));
    }

    #[test]
    fn refuses_programs_when_there_is_no_host() {
        let sent: [&[&[u8]]; 3] = [&[], &[b"hello"], &[b"hello", b"attach"]];
        for sent in sent {
            let [first, then] = first_replies(sent);
            let (_, refused) = ToClient::parse(&first.expect("it is told"), 0).unwrap();
            assert!(
                matches!(&refused, ToClient::Refused(refused) if refused.reason == Reason::HostDaemonUnreachable),
                "{refused:?}"
            );
            assert_eq!(then, Ok(Vec::new()), "the end");
        }
    }

    #[test]
    fn refuses_requests_with_descriptors_by_their_type() {
        let reason = |message: ToDaemon, descriptors| {
            let refused = request_refusal(&message.emit(None), descriptors);
            match ToClient::parse(&refused, 0).unwrap().1 {
                ToClient::Refused(refused) => refused.reason,
                other => panic!("{other:?}"),
            }
        };
        let peer = DomainId::new(1).unwrap();
        let grant = Grant { peer, region: RegionId(1), start: 0, bytes: 4096 };
        assert_eq!(reason(grant.into(), 1), Reason::NoSharedMemory);
        assert_eq!(reason(Detach {}.into(), 1), Reason::MalformedControl);
    }
}
