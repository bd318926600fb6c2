//! The host's side of the control proxy: turns connections of a guest's programs into sessions of the control plane.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use isthmus_channel::proxy_ring::ProxyFrame;
use isthmus_layout::Refusal;
use isthmus_layout::channel::Direction;
use isthmus_layout::control::{ToDaemon, serial_of};
use isthmus_layout::proxy::addresses::GuestAddresses;
use isthmus_layout::proxy::grants::GrantReply;
use isthmus_layout::proxy::loops::{LoopInterfaces, LoopRequest};
use isthmus_layout::proxy::pair_window::{MapReply, PairOffer};
use isthmus_layout::proxy::{
    ACK_INTERVAL, ADDRESSES_WORD, ClientConnected, ControlPacket, GUEST_HEARTBEAT_WORD, HEARTBEAT_TIMEOUT_MS,
    LOOPS_WORD, MAGIC, MAGIC_WORD, PROXY_FRAME_BYTES_MAX, PROXY_RING, ProxyFrameKind, ResourceRef, RevokedExtent,
    SESSION_REPLY_WORD, SESSION_REQUEST_WORD, UNACKED_MAX, VERSION, VERSION_WORD, WindowId,
};
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket;
use isthmus_shm::{SharedMapping, Words as _};
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};
use tokio::task::spawn_local;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::{
    FRAMES_PER_POLL, HEARTBEAT_INTERVAL, Heartbeat, PacketSocket, ProxySession, ProxyViolation, SessionEnded,
    is_region_ref, region_refusal,
};
use crate::relay;
use isthmus_control::async_fd::register;
use isthmus_control::broker::{GuestState, GuestView};
use isthmus_control::server::Server;
use isthmus_window::{Allocator, GuestWindow, UnexpectedReply};

/// The maximum number of connections of one guest. The control plane enforces limits of its own and reports them; this limit keeps a guest from
/// using up all descriptors.
const CONNECTIONS_MAX: usize = 1024;

/// The time after a refusal in which no other request of the guest is refused.
const REFUSAL_PAUSE: Duration = Duration::from_millis(1);

/// A resource that a message refers to does not exist any more.
struct Gone;

/// A guest, for as long as its window exists.
pub(crate) struct GuestProxy {
    server: Server,
    guest_window: Arc<GuestWindow>,
    /// The UID of the owner of the guest's domains.
    uid: u32,
    /// Whether a statement of interfaces was passed on since the last heartbeat. The next one waits, also in another session, because it
    /// costs each guest of a network a frame.
    has_stated: Rc<Cell<bool>>,
}

impl GuestProxy {
    pub(crate) fn new(server: Server, guest_window: Arc<GuestWindow>, uid: u32) -> Self {
        Self { server, guest_window, uid, has_stated: Rc::default() }
    }

    /// Serves the guest until its window is `gone`.
    pub(crate) async fn serve(self, gone: impl Future<Output = ()>) -> io::Result<()> {
        let (head, proxy_ring) = (self.guest_window.head(), self.guest_window.proxy_ring());
        let (head, proxy_ring) = (head.map_err(io::Error::other)?, proxy_ring.map_err(io::Error::other)?);
        for (at, word) in (MAGIC_WORD..).zip(MAGIC).chain([(VERSION_WORD, VERSION)]) {
            head.store(at, word, Ordering::Release);
        }
        self.guest_window.ring_daemon(); // A guest daemon that is already running notices the magic at once.
        let daemon_doorbell = register(self.guest_window.daemon_doorbell().map_err(io::Error::other)?)?;
        let mut host_session: Option<Rc<HostSession>> = None;
        let mut gone = std::pin::pin!(gone);
        // The last session request that was read, whether or not it led to a session.
        let mut last_call = self.end_previous_session(&head);
        let (mut heartbeat, mut heartbeat_timer) = (Heartbeat::of_host(head.clone()), interval(HEARTBEAT_INTERVAL));
        heartbeat_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut more = false;
        loop {
            tokio::select! {
                () = &mut gone => break,
                _ = heartbeat_timer.tick() => {
                    self.exchange_heartbeat(&mut heartbeat);
                    self.has_stated.set(false);
                }
                ready = daemon_doorbell.readable() => {
                    let _ = rustix::io::read(&daemon_doorbell, &mut [0; 8]); // The number of rings does not matter.
                    ready?.clear_ready();
                }
                () = self.guest_window.changed() => {}
                () = tokio::task::yield_now(), if more => {}
            }
            if let Some(ended) = host_session.take_if(|host_session| host_session.proxy_session.ended.get()) {
                ended.end();
                self.report_daemon(false, &head);
                if !self.guest_window.is_reusable() {
                    break;
                }
                head.store(SESSION_REPLY_WORD, 0, Ordering::Release);
                self.guest_window.ring_daemon();
            }
            let call = head.load(SESSION_REQUEST_WORD, Ordering::Acquire);
            if call != last_call {
                let is_first = std::mem::replace(&mut last_call, call) == 0;
                host_session.take().inspect(|before| before.end());
                if !is_first && !self.guest_window.is_reusable() {
                    break;
                }
                if call != 0 {
                    host_session = Some(self.start_session(call, &head, &proxy_ring));
                }
                self.report_daemon(host_session.is_some(), &head);
            }
            more = match &host_session {
                Some(host_session) => host_session.poll(),
                None => self.reclaim_revoked(),
            };
        }
        host_session.inspect(|host_session| host_session.end());
        self.report_daemon(false, &head);
        self.server.with(|broker| broker.loop_guest_gone(&self.guest_window));
        Ok(())
    }

    /// Ends a session of the guest daemon with a previous host daemon. Returns the session request that the previous daemon answered, or 0.
    fn end_previous_session(&self, head: &SharedMapping) -> u32 {
        let answered = head.load(SESSION_REPLY_WORD, Ordering::Acquire);
        if answered == 0 {
            return 0;
        }
        head.store(SESSION_REPLY_WORD, 0, Ordering::Release);
        self.guest_window.ring_daemon();
        answered
    }

    /// Sends our heartbeat and checks the guest daemon's. A silent guest daemon may recover, so none of its sessions is ended.
    fn exchange_heartbeat(&self, heartbeat: &mut Heartbeat) {
        let beaten = heartbeat.beat();
        let is_silent = self.update_view(|guest, now| {
            if beaten {
                guest.last_seen = Some(now);
            }
            guest.state(now) == GuestState::NotResponding
        });
        if heartbeat.set_silent(is_silent) {
            match is_silent {
                true => {
                    tracing::warn!(guest = %self.guest_window.name(), "no heartbeat from the guest daemon for {} s; the guest may be paused", HEARTBEAT_TIMEOUT_MS / 1000)
                }
                false => tracing::info!(guest = %self.guest_window.name(), "the guest daemon sends heartbeats again"),
            }
        }
    }

    /// Records for reports whether a guest daemon is present. Only a guest daemon that has sent heartbeats is expected to send more.
    fn report_daemon(&self, daemon: bool, head: &SharedMapping) {
        let beats = head.load(GUEST_HEARTBEAT_WORD, Ordering::Relaxed) != 0;
        self.update_view(|guest, now| {
            guest.daemon = daemon;
            guest.last_seen = (daemon && beats).then_some(now);
            false
        });
        // The daemon of the next session reports its windows and addresses anew.
        self.server.with(|broker| {
            broker.clear_windows_present(self.guest_window.number());
            broker.set_guest_addresses(&self.guest_window, &[]);
            broker.set_loop_interfaces(&self.guest_window, &[]);
        });
    }

    fn update_view(&self, act: impl FnOnce(&mut GuestView, u64) -> bool) -> bool {
        self.server.with(|broker| {
            let now = broker.now();
            let guest = broker.guest_mut(self.guest_window.name());
            let is_ours = |guest: &&mut GuestView| {
                guest.guest_window.as_ref().is_some_and(|known| Arc::ptr_eq(known, &self.guest_window))
            };
            guest.filter(is_ours).is_some_and(|guest| act(guest, now))
        })
    }

    /// Clears the proxy ring, answers the session request and starts the session.
    fn start_session(&self, call: u32, head: &SharedMapping, proxy_ring: &SharedMapping) -> Rc<HostSession> {
        proxy_ring.discard_pages(0, PROXY_RING.size().0);
        let proxy_session = ProxySession::new(proxy_ring.clone(), Direction::Zero);
        head.store(ADDRESSES_WORD, call, Ordering::Release);
        let has_loops = self
            .server
            .with(|broker| broker.guest_mut(self.guest_window.name()).is_some_and(|guest| !guest.loops.is_empty()));
        head.store(LOOPS_WORD, if has_loops { call } else { 0 }, Ordering::Release);
        head.store(SESSION_REPLY_WORD, call, Ordering::Release);
        self.guest_window.ring_daemon();
        tracing::info!(guest = %self.guest_window.name(), "the guest daemon has attached");
        Rc::new(HostSession {
            proxy_session,
            server: self.server.clone(),
            guest_window: Arc::clone(&self.guest_window),
            uid: self.uid,
            programs: RefCell::default(),
            reported: RefCell::default(),
            attaching: Arc::default(),
            addresses: RefCell::default(),
            loops: HostLoops { has_stated: Rc::clone(&self.has_stated), ..HostLoops::default() },
            refusing: Mutex::default(),
        })
    }

    /// Reclaims all revoked extents, because no guest daemon is present that could use them.
    fn reclaim_revoked(&self) -> bool {
        while let Some(revoked) = self.guest_window.revoked(|_| 0) {
            self.guest_window.reclaim(revoked);
        }
        false
    }
}

/// The host's side of one proxy session, from the session request on.
struct HostSession {
    proxy_session: ProxySession,
    server: Server,
    guest_window: Arc<GuestWindow>,
    uid: u32,
    programs: RefCell<BTreeMap<u32, Rc<ProgramConnection>>>,
    /// For each window, the number of revoked extents that were reported to the guest and that it has not reclaimed.
    reported: RefCell<BTreeMap<WindowId, usize>>,
    /// Held by the one connection that is attaching, for windows in which attaching may have to wait for grants of the guest.
    attaching: Arc<Mutex<()>>,
    /// The addresses that the guest has stated and that were not passed on.
    addresses: RefCell<Option<Vec<u8>>>,
    loops: HostLoops,
    /// Held by the one connection of which a request is refused here.
    refusing: Mutex<()>,
}

/// The last statement of the guest about its interfaces, and the version of its list of peers.
#[derive(Default)]
struct HostLoops {
    /// The statement that was not passed on.
    stated: RefCell<Option<LoopInterfaces>>,
    /// [`GuestProxy::has_stated`].
    has_stated: Rc<Cell<bool>>,
    /// The version that the guest was told; none before it has stated its interfaces.
    told: Cell<Option<u64>>,
    /// The list that waits for room, with its version.
    waiting: RefCell<Option<(u64, Vec<u8>)>>,
}

impl HostLoops {
    fn next_statement(&self) -> Option<LoopInterfaces> {
        let stated = self.stated.borrow_mut().take_if(|_| !self.has_stated.get())?;
        self.has_stated.set(true);
        if self.told.get().is_none() {
            self.told.set(Some(0));
        }
        Some(stated)
    }
}

/// A connection of a guest's program.
struct ProgramConnection {
    number: u32,
    /// The socket to the session.
    socket: PacketSocket,
    /// Messages from the program that were not yet sent to the session.
    inbox: RefCell<VecDeque<Vec<u8>>>,
    /// Set once no more messages are added to `inbox`. Those in it are still sent to the session.
    closed: Cell<bool>,
    inbox_changed: Notify,
    /// The lock on `HostSession::attaching`, while the program's request to attach is unanswered.
    attaching: RefCell<Option<OwnedMutexGuard<()>>>,
}

impl ProgramConnection {
    fn close(&self) {
        self.closed.set(true);
        self.inbox_changed.notify_one();
        self.attaching.take();
    }
}

impl HostSession {
    fn end(&self) {
        self.proxy_session.end();
        let programs = std::mem::take(&mut *self.programs.borrow_mut());
        programs.values().for_each(|program| {
            program.socket.shut_down();
            program.close();
        });
    }

    /// Processes frames after the guest has rung or an extent was revoked. Returns true if more is to be done, also if the session has ended.
    fn poll(self: &Rc<Self>) -> bool {
        let received = self.proxy_session.receive_frames(|frame, content| self.handle_frame(frame, content));
        match received.and_then(|received| self.apply_addresses().map(|()| received)) {
            Ok(received) => {
                if received > 0 {
                    self.guest_window.ring_daemon();
                }
                if let Some(LoopInterfaces(macs)) = self.loops.next_statement() {
                    self.server.with(|broker| broker.set_loop_interfaces(&self.guest_window, &macs));
                }
                let _ = self.send_pending_frames(); // An error means that the session has ended.
                received == FRAMES_PER_POLL || self.proxy_session.ended.get()
            }
            Err(text) => {
                tracing::warn!(guest = %self.guest_window.name(), "the guest daemon has broken the protocol, and its session ends: {text}");
                self.proxy_session.end();
                true
            }
        }
    }

    /// Handles one frame. The error describes a violation of the protocol.
    fn handle_frame(
        self: &Rc<Self>,
        ProxyFrame { kind, connection }: ProxyFrame,
        content: &[u8],
    ) -> Result<(), ProxyViolation> {
        match kind {
            ProxyFrameKind::ClientConnected => {
                self.apply_addresses()?;
                self.open(connection, ClientConnected::parse(content)?)
            }
            ProxyFrameKind::ControlPacket => self.packet(connection, content),
            ProxyFrameKind::Closed => {
                let program = self.programs.borrow_mut().remove(&connection);
                program.inspect(|program| program.close());
                Ok(())
            }
            ProxyFrameKind::WindowAttached | ProxyFrameKind::WindowDetached => {
                let window = WindowId::parse(content)?;
                let (guest, present) = (self.guest_window.number(), kind == ProxyFrameKind::WindowAttached);
                self.server.with(|broker| broker.set_window_present(guest, window, present));
                Ok(())
            }
            ProxyFrameKind::GrantReply => {
                let reply = GrantReply::parse(content)?;
                self.notify_pairs(self.guest_window.handle_grant_reply(reply.window, reply.offset, reply.grant))
            }
            ProxyFrameKind::Reclaimed => {
                let reclaimed = RevokedExtent::parse(content)?;
                let mut reported = self.reported.borrow_mut();
                match reported.get_mut(&reclaimed.window).filter(|reported| **reported > 0) {
                    Some(reported) if self.guest_window.reclaim(reclaimed) => {
                        *reported -= 1;
                        Ok(())
                    }
                    _ => Err(ProxyViolation::Reclaimed),
                }
            }
            ProxyFrameKind::MapReply => {
                let reply = MapReply::parse(content)?;
                self.notify_pairs(self.guest_window.handle_map_reply(reply.window, reply.offset, reply.mapped))
            }
            ProxyFrameKind::PairOffer => {
                let offer = PairOffer::parse(content)?;
                self.notify_pairs(self.guest_window.handle_pair_offer(offer.window, offer.offer))
            }
            ProxyFrameKind::Addresses => {
                *self.addresses.borrow_mut() = Some(content.to_vec());
                Ok(())
            }
            ProxyFrameKind::LoopInterfaces => {
                *self.loops.stated.borrow_mut() = Some(LoopInterfaces::parse(content)?);
                Ok(())
            }
            ProxyFrameKind::LoopRequest => {
                let request = LoopRequest::parse(content)?;
                self.server.with(|broker| broker.loop_request(self.guest_window.number(), request));
                Ok(())
            }
            ProxyFrameKind::Ack
            | ProxyFrameKind::LoopPeers
            | ProxyFrameKind::RevokedExtent
            | ProxyFrameKind::GrantRequest
            | ProxyFrameKind::PairInvite
            | ProxyFrameKind::PairClose
            | ProxyFrameKind::MapRequest => Err(ProxyViolation::Kind { sender: "guest", kind }),
        }
    }

    /// Passes the addresses on that the guest has stated last, if it has stated any since this was called.
    fn apply_addresses(&self) -> Result<(), ProxyViolation> {
        if let Some(stated) = self.addresses.take() {
            let GuestAddresses(addresses) = GuestAddresses::parse(&stated)?;
            self.server.with(|broker| broker.set_guest_addresses(&self.guest_window, &addresses));
        }
        Ok(())
    }

    /// Notifies the tasks of pair windows that the state of a window may have changed. Returns `handled`.
    fn notify_pairs(&self, handled: Result<(), UnexpectedReply>) -> Result<(), ProxyViolation> {
        self.server.with(|broker| broker.guests_changed());
        Ok(handled?)
    }

    fn open(self: &Rc<Self>, number: u32, open: ClientConnected) -> Result<(), ProxyViolation> {
        if self.programs.borrow().contains_key(&number) {
            return Err(ProxyViolation::ConnectionExists(number));
        }
        match self.connect(number, open) {
            Ok(program) => {
                self.programs.borrow_mut().insert(number, Rc::clone(&program));
                spawn_local(Rc::clone(self).forward_to_program(Rc::clone(&program)));
                spawn_local(Rc::clone(self).forward_to_session(program));
            }
            Err(error) => {
                tracing::warn!(guest = %self.guest_window.name(), "a connection could not be set up: {error}");
                let this = Rc::clone(self);
                spawn_local(async move { this.send(ProxyFrameKind::Closed, number, &[]).await });
            }
        }
        Ok(())
    }

    fn connect(&self, number: u32, open: ClientConnected) -> io::Result<Rc<ProgramConnection>> {
        if self.programs.borrow().len() >= CONNECTIONS_MAX {
            return Err(io::Error::other(format!("there are {CONNECTIONS_MAX} already")));
        }
        let (ours, theirs) = seqpacket::pair()?;
        let socket = PacketSocket::new(ours)?;
        self.server.add_proxied(theirs, self.uid, open.program, Allocator::Guest(Arc::clone(&self.guest_window)))?;
        let (inbox, closed, inbox_changed) = (RefCell::default(), Cell::new(false), Notify::new());
        Ok(Rc::new(ProgramConnection { number, socket, inbox, closed, inbox_changed, attaching: RefCell::default() }))
    }

    fn packet(&self, connection: u32, content: &[u8]) -> Result<(), ProxyViolation> {
        let packet = ControlPacket::parse(content)?;
        if !packet.resources.is_empty() || packet.message.is_empty() {
            return Err(ProxyViolation::Message);
        }
        // Packets of a connection that we have closed arrive until the guest has received `Closed`.
        let Some(program) = self.programs.borrow().get(&connection).cloned() else { return Ok(()) };
        let mut inbox = program.inbox.borrow_mut();
        if inbox.len() >= UNACKED_MAX as usize {
            return Err(ProxyViolation::Unacknowledged(connection));
        }
        inbox.push_back(packet.message.to_vec());
        program.inbox_changed.notify_one();
        Ok(())
    }

    /// Forwards messages from the program to its session.
    async fn forward_to_session(self: Rc<Self>, program: Rc<ProgramConnection>) {
        let mut received = 0;
        loop {
            let next = program.inbox.borrow_mut().front().cloned();
            let Some(message) = next else {
                if program.closed.get() {
                    return program.socket.shut_down();
                }
                program.inbox_changed.notified().await;
                continue;
            };
            let request = ToDaemon::parse(&message, 0).ok().map(|(_, request)| request);
            match request.as_ref().map_or(Ok(()), |request| relay::decide(request, 0)) {
                Ok(()) => {
                    self.prepare_attach(&program, request.as_ref()).await;
                    if !program.socket.send(&message, &[]).await {
                        return; // The other task notices the end, too.
                    }
                }
                Err(refusal) => {
                    if self.refuse(&program, &message, &refusal).await.is_err() {
                        return;
                    }
                }
            }
            program.inbox.borrow_mut().pop_front();
            received += 1;
            if received == ACK_INTERVAL {
                received = 0;
                if self.send(ProxyFrameKind::Ack, program.number, &[]).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Refuses a request that no session gets. Requests to sessions are limited for each user, and so are these.
    async fn refuse(&self, program: &ProgramConnection, request: &[u8], refusal: &Refusal) -> Result<(), SessionEnded> {
        let _one_of_the_guest = self.refusing.lock().await;
        self.server.with(|broker| broker.refused_outside(self.uid, refusal));
        let message = relay::refused(refusal, serial_of(request));
        let packet = ControlPacket { resources: Vec::new(), message: &message }.emit();
        self.send(ProxyFrameKind::ControlPacket, program.number, &packet).await?;
        sleep(REFUSAL_PAUSE).await;
        Ok(())
    }

    /// Waits before a request to attach until the guest has granted what attaching needs. Programs attach one after the other in such a window.
    async fn prepare_attach(&self, program: &ProgramConnection, request: Option<&ToDaemon>) {
        if self.guest_window.is_reusable() || !matches!(request, Some(ToDaemon::Attach(_))) {
            return;
        }
        let guard = Arc::clone(&self.attaching).lock_owned().await;
        self.guest_window.ready().await;
        if !program.closed.get() {
            program.attaching.replace(Some(guard));
        }
    }

    /// Forwards messages from the session to the program.
    async fn forward_to_program(self: Rc<Self>, program: Rc<ProgramConnection>) {
        let (mut packet, mut fds) = (vec![0; PROXY_FRAME_BYTES_MAX], Vec::new());
        while let Some(bytes) = program.socket.receive(&mut packet, &mut fds).await {
            program.attaching.take();
            let Ok(current) = self.revalidate(&packet[..bytes]) else {
                program.socket.shut_down();
                break;
            };
            let Some(packet) = current else { continue };
            if self.send(ProxyFrameKind::ControlPacket, program.number, &packet).await.is_err() {
                return;
            }
        }
        if self.programs.borrow_mut().remove(&program.number).is_some() {
            program.close();
            let _ = self.send(ProxyFrameKind::Closed, program.number, &[]).await;
        }
    }

    /// Checks the resources of a message before it is sent, and returns the packet to send. If only regions were revoked, it returns a refusal or
    /// nothing. Returns an error if another resource was revoked while the message waited, because its domain or its window is then gone, too:
    /// what an offer refers to is kept until both domains have read the offer.
    fn revalidate<'a>(&self, packet: &'a [u8]) -> Result<Option<Cow<'a, [u8]>>, Gone> {
        let parsed = ControlPacket::parse(packet).map_err(|_| Gone)?;
        let is_gone = |reference: &&ResourceRef| match **reference {
            ResourceRef::Extent { window, offset, generation, .. }
            | ResourceRef::PrivateExtent { window, offset, generation, .. }
            | ResourceRef::ReadOnlyExtent { window, offset, generation, .. } => {
                !self.guest_window.is_live(window, offset, generation)
            }
            ResourceRef::Doorbell { .. } | ResourceRef::VectorEvents { .. } | ResourceRef::EventChannel { .. } => false,
        };
        let gone: Vec<_> = parsed.resources.iter().filter(is_gone).collect();
        match &gone[..] {
            [] => Ok(Some(Cow::Borrowed(packet))),
            gone if !gone.iter().all(|reference| is_region_ref(reference)) => Err(Gone),
            _ => Ok(region_refusal(&parsed, Reason::RegionsFull).map(|message| {
                let refused = ControlPacket { resources: Vec::new(), message: &message };
                Cow::Owned(refused.emit())
            })),
        }
    }

    async fn send(&self, kind: ProxyFrameKind, connection: u32, content: &[u8]) -> Result<(), SessionEnded> {
        loop {
            // A revoked extent is reported before a packet can refer to the same bytes again.
            if self.send_pending_frames()? && self.proxy_session.send(ProxyFrame { kind, connection }, content)? {
                self.guest_window.ring_daemon();
                return Ok(());
            }
            self.proxy_session.wait_for_room().await;
        }
    }

    /// Sends reports of revoked extents, frames about pair windows, grant requests, and changed lists of loop devices. Returns false if the ring
    /// had no room for all.
    fn send_pending_frames(&self) -> Result<bool, SessionEnded> {
        let mut reported = self.reported.borrow_mut();
        while let Some(revoked) = self.guest_window.revoked(|window| reported.get(&window).copied().unwrap_or(0)) {
            let frame = ProxyFrame { kind: ProxyFrameKind::RevokedExtent, connection: 0 };
            if !self.proxy_session.send(frame, &revoked.emit())? {
                return Ok(false);
            }
            *reported.entry(revoked.window).or_default() += 1;
            self.guest_window.ring_daemon();
        }
        while let Some((kind, content)) = self.guest_window.next_frame() {
            if !self.proxy_session.send(ProxyFrame { kind, connection: 0 }, &content)? {
                return Ok(false);
            }
            self.guest_window.frame_sent();
            self.guest_window.ring_daemon();
        }
        while let Some(grant_request) = self.guest_window.grant_request() {
            let frame = ProxyFrame { kind: ProxyFrameKind::GrantRequest, connection: 0 };
            if !self.proxy_session.send(frame, &grant_request.emit())? {
                return Ok(false);
            }
            self.guest_window.mark_requested(grant_request);
            self.guest_window.ring_daemon();
        }
        let version = self.guest_window.loops_version();
        if self.loops.told.get().is_some_and(|told| told != version) {
            // A list of the same version has no rings that were revoked since.
            let mut waiting = self.loops.waiting.borrow_mut();
            let list = match waiting.take() {
                Some((of, list)) if of == version => list,
                _ => self.server.with(|broker| broker.loop_peers(self.guest_window.number())).emit(),
            };
            let frame = ProxyFrame { kind: ProxyFrameKind::LoopPeers, connection: 0 };
            if !self.proxy_session.send(frame, &list)? {
                *waiting = Some((version, list));
                return Ok(false);
            }
            self.loops.told.set(Some(version));
            self.guest_window.ring_daemon();
        }
        Ok(true)
    }
}
