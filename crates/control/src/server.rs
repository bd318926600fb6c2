//! The server of the control plane: one thread with one broker, and a task for each connection.
//!
//! ```text
//!   accept ──► connection's task ── packet ──► Broker
//!                    ▲                           │ Outgoing
//!                    └── queue, socket ◄─────────┘
//!   workers' events, timers, signals ──────────► Broker
//! ```
//!
//! Everything lives on one thread, so the broker is borrowed for the length of a call and never across a wait.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use isthmus_layout::Refusal;
use isthmus_layout::control::Name;
use isthmus_layout::ids::DomainId;
use isthmus_layout::limits::CONTROL_BYTES_MAX;
use isthmus_layout::reason::Reason;
use isthmus_service::Event;
use rustix::io::Errno;
use tokio::io::unix::AsyncFdReadyGuard;
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinError, spawn_local};
use tokio::time::Instant;

use crate::async_fd::{self, register};
use crate::broker::Broker;
use crate::capabilities::Capabilities;
use crate::core::awaited_work::AwaitedWork;
use crate::core::types::{ControlSessionId, Outgoing, SocketPeer};
use crate::metrics::MetricsTable;
use crate::report;
use crate::report::slices::Rows;
use crate::session::{self, Connection, ConnectionEvent, FlushResult, LINGER, QUEUE_MAX};
use crate::socket::Listener;
use crate::turns::Turn;
use crate::users::{ReportPermit, SessionLimits, Users};
use crate::viewer::Viewer;
use isthmus_window::Allocator;

/// The pause after the process could not open another descriptor for a connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The number of connections that a turn sends to. The tasks of further connections send theirs.
const FLUSHED_AT_ONCE: usize = 32;

/// Descriptors that are reserved for the next connection: its socket, a copy of the socket, and one to inspect the peer. A program that
/// connects while all others are in use can then be told why it cannot attach.
const SPARE_FDS: usize = 3;

/// Ends a server from any thread.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Notify>);

impl Stop {
    /// Ends the server in order.
    pub fn stop(&self) {
        self.0.notify_one();
    }

    /// Waits for [`Stop::stop`].
    pub async fn stopped(&self) {
        self.0.notified().await;
    }
}

/// The reason why a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The server was stopped.
    Stopped,
    /// No domain was attached for long enough.
    Idle,
}

/// The control plane of one daemon. Clones are the same server.
#[derive(Clone)]
pub struct Server(Rc<Inner>);

struct Inner {
    broker: RefCell<Broker>,
    connections: RefCell<BTreeMap<ControlSessionId, Rc<Connection>>>,
    users: RefCell<Users>,
    next: Cell<u64>,
    started: Instant,
    handshake_timeout: Duration,
    idle_exit: Option<Duration>,
    /// The time since which no domain has been attached.
    idle_since: Cell<Option<Instant>>,
    /// Deadlines have changed.
    timers: Notify,
    /// The events of the workers.
    events: RefCell<Option<mpsc::UnboundedReceiver<Event>>>,
    /// See [`SPARE_FDS`].
    spare_fds: RefCell<Vec<OwnedFd>>,
}

impl Server {
    /// Creates a server for a broker.
    pub fn new(broker: Broker, handshake_timeout: Duration, idle_exit: Option<Duration>) -> Self {
        let now = Instant::now();
        let settings = &broker.core.settings;
        let limits = SessionLimits { shared: settings.sessions_max, per_user: settings.sessions_per_owner_max };
        let users = RefCell::new(Users::new(limits, settings.fds_max));
        Self(Rc::new(Inner {
            broker: RefCell::new(broker),
            connections: RefCell::default(),
            users,
            next: Cell::new(1),
            started: now,
            handshake_timeout,
            idle_exit,
            idle_since: Cell::new(Some(now)),
            timers: Notify::new(),
            events: RefCell::default(),
            spare_fds: RefCell::default(),
        }))
    }

    /// Serves until it is stopped or idle. Runs inside a [`LocalSet`](tokio::task::LocalSet).
    pub async fn run(
        &self,
        listener: Listener,
        events: mpsc::UnboundedReceiver<Event>,
        stop: Stop,
    ) -> io::Result<Ended> {
        let incoming = register(listener.as_fd().try_clone_to_owned()?)?;
        self.reserve_fds();
        *self.0.events.borrow_mut() = Some(events);
        self.watch_resumable();
        let ended = loop {
            let wake = self.next_wake();
            tokio::select! {
                ready = incoming.readable() => self.accept(&listener, &mut ready?).await,
                event = self.next_event() => self.with(|broker| broker.event(&event)),
                () = self.0.timers.notified() => {}
                () = stop.stopped() => break Ended::Stopped,
                () = sleep_until(wake) => {
                    self.with(Broker::tick);
                    tokio::task::yield_now().await; // Slices of deferred work must not delay connections.
                }
            }
            if self.is_idle_expired() {
                break Ended::Idle;
            }
        };
        self.end(ended).await;
        Ok(ended)
    }

    async fn next_event(&self) -> Event {
        std::future::poll_fn(|context| match &mut *self.0.events.borrow_mut() {
            Some(events) => match events.poll_recv(context) {
                Poll::Ready(Some(event)) => Poll::Ready(event),
                Poll::Ready(None) | Poll::Pending => Poll::Pending, // Without workers there are no events.
            },
            None => Poll::Pending,
        })
        .await
    }

    /// Runs an action with the broker and sends the resulting messages. Pending events of the workers are handled first, so that the action
    /// sees everything that a worker has already reported to a domain.
    pub fn with<T>(&self, action: impl FnOnce(&mut Broker) -> T) -> T {
        let turn = Turn::begin();
        let now = u64::try_from(self.0.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let value = {
            let mut broker = self.0.broker.borrow_mut();
            broker.set_now(now);
            let mut events = self.0.events.borrow_mut();
            while let Some(event) = events.as_mut().and_then(|events| events.try_recv().ok()) {
                broker.event(&event);
            }
            action(&mut broker)
        };
        self.send_outgoing();
        self.0.broker.borrow().turns.ended(turn);
        value
    }

    async fn accept(&self, listener: &Listener, ready: &mut AsyncFdReadyGuard<'_, OwnedFd>) {
        if !self.reserve_fds() {
            return self.accept_later().await;
        }
        self.0.spare_fds.borrow_mut().clear();
        match listener.accept() {
            Ok(socket) => match self.connect(socket) {
                Ok(()) => {}
                Err(error) => tracing::warn!(%error, "a connection could not be set up"),
            },
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => self.accept_later().await,
            Err(error) => tracing::debug!(%error, "a connection was gone before it was accepted"),
        }
        self.reserve_fds();
        tokio::task::yield_now().await; // A flood of connections must not delay the connections that there are.
    }

    async fn accept_later(&self) {
        self.with(Broker::accept_paused);
        tokio::time::sleep(ACCEPT_RETRY).await;
    }

    /// Reserves descriptors for the next connection. Returns false if the process may not open enough of them.
    fn reserve_fds(&self) -> bool {
        let mut spare = self.0.spare_fds.borrow_mut();
        while spare.len() < SPARE_FDS
            && let Ok(fd) = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
        {
            spare.push(fd);
        }
        spare.len() == SPARE_FDS
    }

    fn connect(&self, socket: OwnedFd) -> io::Result<()> {
        let stream = UnixStream::from_std(socket.into())?;
        let peer_cred = stream.peer_cred()?;
        let credentials = (peer_cred.uid(), peer_cred.pid().filter(|pid| *pid > 0));
        self.add_connection(stream.into_std()?.into(), credentials, None, Allocator::Host)
    }

    /// Adds a connection of a guest's program. Its domains belong to the user `uid`. Frames of its control proxy go over `socket`.
    pub fn add_proxied(&self, socket: OwnedFd, uid: u32, program: Name, allocator: Allocator) -> io::Result<()> {
        self.add_connection(socket, (uid, None), Some(program), allocator)
    }

    /// Adds a connection, or refuses it if its user has too many.
    fn add_connection(
        &self,
        socket: OwnedFd,
        (uid, pid): (u32, Option<i32>),
        program: Option<Name>,
        allocator: Allocator,
    ) -> io::Result<()> {
        let is_proxied = allocator.guest().is_some();
        let has_others = self.0.broker.borrow().core.has_others();
        let admitted = self.0.users.borrow_mut().admit(uid, has_others, Instant::now());
        let user = match admitted {
            Ok(user) => user,
            Err(refusal) => {
                session::refuse(&socket, uid, is_proxied, &refusal);
                self.with(|broker| broker.refused_outside(uid, &refusal));
                return Ok(());
            }
        };
        let id = ControlSessionId(self.0.next.replace(self.0.next.get() + 1));
        let connection = Rc::new(Connection::new(id, socket, user, is_proxied)?);
        let program = program.unwrap_or_else(|| program_name(pid));
        let (socket, account) = (connection.try_clone_socket()?, connection.user().account());
        let peer = SocketPeer { uid, pid, program, socket, allocator, account };
        self.0.connections.borrow_mut().insert(id, Rc::clone(&connection));
        self.with(|broker| broker.connected(id, peer));
        spawn_local(self.clone().serve(connection));
        Ok(())
    }

    /// Serves a connection until it is closed.
    async fn serve(self, connection: Rc<Connection>) {
        let id = connection.id;
        let mut deadline = Instant::now() + self.0.handshake_timeout;
        let mut is_greeted = false;
        let mut scratch = vec![0; CONTROL_BYTES_MAX];
        loop {
            let next = tokio::select! {
                next = connection.next(&mut scratch) => next,
                () = tokio::time::sleep_until(deadline), if !is_greeted => {
                    if connection.has_unreceived() {
                        deadline = Instant::now() + self.0.handshake_timeout; // The packet has arrived: the server is late.
                        continue;
                    }
                    is_greeted = true; // Or the connection is being ended.
                    self.with(|broker| broker.timed_out(id));
                    continue;
                }
            };
            match next {
                ConnectionEvent::Packet(packet, fds) => {
                    is_greeted = true;
                    self.with(|broker| broker.packet(id, &packet, fds));
                }
                ConnectionEvent::Unreceivable(text) => self.with(|broker| broker.unreceivable(id, text)),
                ConnectionEvent::Throttled => self.with(|broker| broker.throttled(id)),
                ConnectionEvent::DescriptorsLost(serial) => self.with(|broker| broker.descriptors_lost(id, serial)),
                ConnectionEvent::Flush => {
                    self.flush(&connection);
                    self.send_outgoing();
                }
                ConnectionEvent::ReportAllowed(permit) => self.make_report(&connection, permit).await,
                ConnectionEvent::ReportUnread => {
                    self.with(|broker| self.drop_slow_reader(&connection, broker));
                }
                ConnectionEvent::Closed => break,
            }
        }
        connection.user().turn().await;
        self.with(|broker| {
            broker.connection_lost(id, Reason::PeerConnectionLost);
            broker.remove_session(id);
        });
        connection.user().end_turn(); // A user that ends many programs at once does so in many turns.
        self.0.connections.borrow_mut().remove(&id);
        let account = connection.user().account();
        drop(connection);
        account.watch_ended().await;
    }

    /// Passes everything outgoing on to the connections. The tasks of connections send what is more than a few packets.
    fn send_outgoing(&self) {
        let mut changed = BTreeSet::new();
        let mut flushed = 0;
        loop {
            while let Some(outgoing) = self.next_outgoing() {
                changed.insert(self.deliver(outgoing));
            }
            while let Some(work) = self.next_awaited() {
                drop(spawn_local(self.clone().await_work(work)));
            }
            let Some(id) = changed.pop_first() else { break };
            let connection = self.0.connections.borrow().get(&id).cloned();
            match connection {
                Some(connection) if flushed < FLUSHED_AT_ONCE => {
                    self.flush(&connection);
                    flushed += 1;
                }
                Some(connection) => connection.flush_later(),
                None => {}
            }
        }
        self.update_idle_since();
        self.0.timers.notify_one();
    }

    fn next_outgoing(&self) -> Option<Outgoing> {
        self.0.broker.borrow_mut().next_outgoing()
    }

    fn next_awaited(&self) -> Option<AwaitedWork<Capabilities>> {
        self.0.broker.borrow_mut().next_awaited()
    }

    fn deliver(&self, outgoing: Outgoing) -> ControlSessionId {
        let (Outgoing::Packet { to, .. }
        | Outgoing::Report { to, .. }
        | Outgoing::ReadyMap { to, .. }
        | Outgoing::Capture { to, .. }
        | Outgoing::End { to }) = outgoing;
        let outgoing = match outgoing {
            Outgoing::Capture { capturing, .. } => {
                let server = self.clone();
                drop(spawn_local(async move {
                    capturing.serve().await;
                    server.with(Broker::capture_ended);
                }));
                return to;
            }
            other => other,
        };
        let Some(connection) = self.0.connections.borrow().get(&to).cloned() else { return to };
        match outgoing {
            Outgoing::Packet { packet, resources, .. } => connection.push(packet, resources),
            Outgoing::Report { serial, query, .. } => {
                if !connection.queue_query(serial, query) {
                    self.drop_slow_reader(&connection, &mut self.0.broker.borrow_mut());
                }
            }
            Outgoing::ReadyMap { ready_map, pid, .. } => connection.set_attached(ready_map, pid),
            Outgoing::End { .. } => connection.close(),
            Outgoing::Capture { .. } => {} // See above.
        }
        to
    }

    async fn await_work(self, work: AwaitedWork<Capabilities>) {
        let finish = work.wait().await;
        self.with(|broker| broker.finish(finish));
    }

    /// Makes the next report that was requested on a connection, and begins to send it. Other connections have their turns meanwhile.
    async fn make_report(&self, connection: &Connection, permit: ReportPermit) {
        let Some((serial, query)) = connection.next_query() else { return };
        let begun = self.with(|broker| report::begin(broker, connection.id, query.topic, &query.arguments));
        let mut maker = match begun {
            Ok(maker) => maker,
            Err(refusal) => return self.with(|broker| broker.core.refuse(connection.id, serial, &refusal)),
        };
        let finish = loop {
            match self.with(|broker| maker.step(broker)) {
                Some(finish) => break finish,
                None => tokio::task::yield_now().await,
            }
        };
        let made = tokio::task::spawn_blocking(finish).await;
        let made = made.unwrap_or_else(|error| Err(Refusal::new(Reason::KernelRefused, error.to_string())));
        match made {
            Ok(_) if connection.is_closing() => {}
            Ok(json) => {
                connection.start_report(serial, json, permit);
                self.flush(connection);
                self.send_outgoing();
            }
            Err(refusal) => self.with(|broker| broker.core.refuse(connection.id, serial, &refusal)),
        }
    }

    /// Returns all metrics as text.
    pub async fn metrics(&self) -> Result<String, JoinError> {
        let mut rows = Rows::<MetricsTable>::new(Viewer::All);
        let finish = loop {
            match self.with(|broker| rows.step(broker)) {
                Some(finish) => break finish,
                None => tokio::task::yield_now().await,
            }
        };
        Ok(tokio::task::spawn_blocking(finish).await?.text)
    }

    /// Drops a connection because its program reads too little of what is sent to it.
    fn drop_slow_reader(&self, connection: &Connection, broker: &mut Broker) {
        connection.clear();
        broker.backlog_exceeded(connection.id);
    }

    /// Checks which descriptors a user's programs have received, if it is time to.
    fn check_received(&self, connection: &Connection) {
        let user = connection.user();
        if !user.is_check_due(Instant::now()) {
            return;
        }
        user.forget_received();
        let connections = self.0.connections.borrow();
        connections.values().filter(|other| other.user().uid == user.uid).for_each(|other| other.check_received());
    }

    /// Sends the queued messages of a connection, and drops the connection if too many remain.
    fn flush(&self, connection: &Connection) {
        let outcome = connection.flush();
        if connection.is_retrying() {
            self.check_received(connection); // The share of the user may be used up.
        }
        let backlog = connection.backlog();
        let mut broker = self.0.broker.borrow_mut();
        broker.backlog(connection.id, backlog);
        if connection.is_closing() {
            if outcome != FlushResult::Blocked {
                connection.close();
            }
        } else if outcome == FlushResult::Closed {
            broker.connection_lost(connection.id, Reason::PeerConnectionLost);
        } else if backlog > QUEUE_MAX {
            self.drop_slow_reader(connection, &mut broker);
        }
    }

    fn update_idle_since(&self) {
        let busy = {
            let broker = self.0.broker.borrow();
            !broker.directory().is_empty() || broker.resumable().next().is_some() || broker.capabilities.fds() > 0
        };
        match (busy, self.0.idle_since.get()) {
            (true, _) => self.0.idle_since.set(None),
            (false, None) => self.0.idle_since.set(Some(Instant::now())),
            (false, Some(_)) => {}
        }
    }

    fn idle_until(&self) -> Option<Instant> {
        Some(self.0.idle_since.get()? + self.0.idle_exit?)
    }

    fn is_idle_expired(&self) -> bool {
        self.idle_until().is_some_and(|until| until <= Instant::now())
    }

    fn next_wake(&self) -> Option<Instant> {
        let deadline = self.0.broker.borrow().deadline().filter(|deadline| *deadline != u64::MAX);
        let deadline = deadline.map(|deadline| self.0.started + Duration::from_nanos(deadline));
        deadline.into_iter().chain(self.idle_until()).min()
    }

    /// Waits for the processes of domains of the previous daemon to end, because such a domain does not resume.
    fn watch_resumable(&self) {
        let resumable: Vec<_> = self.0.broker.borrow().resumable().cloned().collect();
        for resumable_domain in resumable {
            match resumable_domain.process {
                Some(process) => drop(spawn_local(self.clone().wait_for_exit(resumable_domain.domain, process.pid))),
                None => drop(spawn_local(self.clone().watch_with_timeout(resumable_domain.domain))),
            }
        }
    }

    async fn wait_for_exit(self, domain: DomainId, pid: i32) {
        if let Some(process) = async_fd::pidfd(pid) {
            let _ = process.readable().await;
        }
        self.with(|broker| broker.resumable_ended(domain));
    }

    /// Gives a domain a limited time to resume, because its process cannot be seen.
    async fn watch_with_timeout(self, domain: DomainId) {
        tokio::time::sleep(Duration::from_secs(10)).await;
        self.with(|broker| broker.resumable_ended(domain));
    }

    /// True if no connection and no capture is left.
    fn is_drained(&self) -> bool {
        self.0.connections.borrow().is_empty() && self.0.broker.borrow().captures() == 0
    }

    /// Notifies all programs, and waits up to [`LINGER`] for them to read it.
    async fn end(&self, ended: Ended) {
        let reason = match ended {
            Ended::Stopped => Reason::DaemonShutdown,
            Ended::Idle => Reason::DaemonIdle,
        };
        self.with(|broker| broker.shut_down(reason));
        let until = Instant::now() + LINGER;
        while !self.is_drained() && Instant::now() < until {
            tokio::select! {
                () = self.0.timers.notified() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }
}

async fn sleep_until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}

/// Returns the name of a process's program, with characters that no name may have replaced.
pub fn program_name(pid: Option<i32>) -> Name {
    let comm = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()).unwrap_or_default();
    let plain: String = comm.trim().chars().map(|c| if c.is_ascii_graphic() && c != '/' { c } else { '_' }).collect();
    Name::new(&plain).or_else(|_| Name::new("program")).expect("a valid name")
}
