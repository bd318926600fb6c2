//! The control plane at work: one thread, one broker, a task for each connection.
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

use isthmus_layout::control::Name;
use isthmus_layout::ids::DomainId;
use isthmus_layout::limits::CONTROL_BYTES_MAX;
use isthmus_layout::reason::Reason;
use isthmus_service::Event;
use rustix::io::Errno;
use tokio::io::unix::AsyncFdReadyGuard;
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_local;
use tokio::time::Instant;

use crate::broker::{Broker, Outgoing, Peer, SessionId};
use crate::ground::Ground;
use crate::session::{Connection, Flushed, LINGER, Next, QUEUE_MAX};
use crate::socket::Listener;
use crate::watched::{self, watched};

/// After the process could not open another descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Descriptors that are kept back for the next connection: its socket, a copy of that, and one for looking at who is there. So whoever
/// connects when all others are in use is told why it cannot attach.
const SPARE_FDS: usize = 3;

/// Ends a server from anywhere.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Notify>);

impl Stop {
    /// The server ends in order.
    pub fn stop(&self) {
        self.0.notify_one();
    }

    /// Waits for that.
    pub(crate) async fn stopped(&self) {
        self.0.notified().await;
    }
}

/// Why a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Stopped,
    /// Nobody was attached for long enough.
    Idle,
}

/// The control plane of one daemon. Clones are the same server.
#[derive(Clone)]
pub struct Server(Rc<Inner>);

struct Inner {
    broker: RefCell<Broker>,
    connections: RefCell<BTreeMap<SessionId, Rc<Connection>>>,
    next: Cell<u64>,
    started: Instant,
    handshake_timeout: Duration,
    idle_exit: Option<Duration>,
    /// Since when nobody has been attached.
    idle_since: Cell<Option<Instant>>,
    /// Deadlines have changed.
    timers: Notify,
    /// What the workers say.
    events: RefCell<Option<mpsc::UnboundedReceiver<Event>>>,
    /// See [`SPARE_FDS`].
    spare: RefCell<Vec<OwnedFd>>,
}

impl Server {
    /// Over a broker.
    pub fn new(broker: Broker, handshake_timeout: Duration, idle_exit: Option<Duration>) -> Self {
        let now = Instant::now();
        Self(Rc::new(Inner {
            broker: RefCell::new(broker),
            connections: RefCell::default(),
            next: Cell::new(1),
            started: now,
            handshake_timeout,
            idle_exit,
            idle_since: Cell::new(Some(now)),
            timers: Notify::new(),
            events: RefCell::default(),
            spare: RefCell::default(),
        }))
    }

    /// Serves until it is stopped or idle. Runs inside a [`LocalSet`](tokio::task::LocalSet).
    pub async fn run(
        &self,
        listener: Listener,
        events: mpsc::UnboundedReceiver<Event>,
        stop: Stop,
    ) -> io::Result<Ended> {
        let watched = watched(listener.as_fd().try_clone_to_owned()?)?;
        self.set_aside();
        *self.0.events.borrow_mut() = Some(events);
        self.watch_survivors();
        let ended = loop {
            let wake = self.next_wake();
            tokio::select! {
                ready = watched.readable() => self.accept(&listener, &mut ready?).await,
                event = self.next_event() => self.with(|broker| broker.event(&event)),
                () = self.0.timers.notified() => {}
                () = stop.stopped() => break Ended::Stopped,
                () = sleep_until(wake) => self.with(Broker::tick),
            }
            if self.idle_for_long() {
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
                Poll::Ready(None) | Poll::Pending => Poll::Pending, // Without workers nothing comes.
            },
            None => Poll::Pending,
        })
        .await
    }

    /// Does something with the broker and sends what comes of it. What the workers have said comes first: whoever asks about
    /// something that a worker has told a domain of finds it.
    pub fn with<T>(&self, act: impl FnOnce(&mut Broker) -> T) -> T {
        let now = u64::try_from(self.0.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let value = {
            let mut broker = self.0.broker.borrow_mut();
            broker.at(now);
            let mut events = self.0.events.borrow_mut();
            while let Some(event) = events.as_mut().and_then(|events| events.try_recv().ok()) {
                broker.event(&event);
            }
            act(&mut broker)
        };
        self.carry_out();
        value
    }

    async fn accept(&self, listener: &Listener, ready: &mut AsyncFdReadyGuard<'_, OwnedFd>) {
        if !self.set_aside() {
            return self.accept_later().await;
        }
        self.0.spare.borrow_mut().clear();
        match listener.accept() {
            Ok(socket) => match self.connect(socket) {
                Ok(()) => {}
                Err(error) => tracing::warn!(%error, "a connection could not be set up"),
            },
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => self.accept_later().await,
            Err(error) => tracing::debug!(%error, "a connection was gone before it was accepted"),
        }
        self.set_aside();
    }

    async fn accept_later(&self) {
        self.with(Broker::accepts_no_more);
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }

    /// Has descriptors ready for the next connection. False if the process may not open as many.
    fn set_aside(&self) -> bool {
        let mut spare = self.0.spare.borrow_mut();
        while spare.len() < SPARE_FDS
            && let Ok(fd) = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
        {
            spare.push(fd);
        }
        spare.len() == SPARE_FDS
    }

    fn connect(&self, socket: OwnedFd) -> io::Result<()> {
        let connection = Rc::new(Connection::new(self.number(), socket)?);
        let program = program(connection.credentials().1);
        self.serve_from_now(connection, program, Ground::Host)
    }

    /// A connection of a guest's program, whose domains are that user's. Frames of its border go over `socket`.
    pub(crate) fn adopt(&self, socket: OwnedFd, uid: u32, program: Name, ground: Ground) -> io::Result<()> {
        let id = self.number();
        self.serve_from_now(Rc::new(Connection::across(id, socket, uid)?), program, ground)
    }

    fn number(&self) -> SessionId {
        SessionId(self.0.next.replace(self.0.next.get() + 1))
    }

    fn serve_from_now(&self, connection: Rc<Connection>, program: Name, ground: Ground) -> io::Result<()> {
        let (id, (uid, pid)) = (connection.id, connection.credentials());
        let peer = Peer { uid, pid, program, socket: connection.duplicate()?, ground };
        self.0.connections.borrow_mut().insert(id, Rc::clone(&connection));
        self.with(|broker| broker.connected(id, peer));
        spawn_local(self.clone().serve(connection));
        Ok(())
    }

    /// A connection's life.
    async fn serve(self, connection: Rc<Connection>) {
        let id = connection.id;
        let deadline = Instant::now() + self.0.handshake_timeout;
        let mut greeted = false;
        let mut scratch = vec![0; CONTROL_BYTES_MAX];
        loop {
            let next = tokio::select! {
                next = connection.next(&mut scratch) => next,
                () = tokio::time::sleep_until(deadline), if !greeted => {
                    greeted = true; // Or being ended.
                    self.with(|broker| broker.timed_out(id));
                    continue;
                }
            };
            match next {
                Next::Packet(packet, fds) => {
                    greeted = true;
                    self.with(|broker| broker.packet(id, &packet, fds));
                }
                Next::Unreceivable(text) => self.with(|broker| broker.unreceivable(id, text)),
                Next::Throttled => self.with(|broker| broker.throttled(id)),
                Next::DescriptorsLost(serial) => self.with(|broker| broker.descriptors_lost(id, serial)),
                Next::Flush => {
                    self.flush(&connection);
                    self.carry_out();
                }
                Next::Gone => break,
            }
        }
        self.with(|broker| {
            broker.lost(id, Reason::PeerVanished);
            broker.forget(id);
        });
        self.0.connections.borrow_mut().remove(&id);
    }

    fn carry_out(&self) {
        let mut touched = BTreeSet::new();
        loop {
            while let Some(outgoing) = self.next_outgoing() {
                touched.insert(self.pass_on(outgoing));
            }
            let Some(id) = touched.pop_first() else { break };
            let connection = self.0.connections.borrow().get(&id).cloned();
            if let Some(connection) = connection {
                self.flush(&connection);
            }
        }
        self.look_after_idleness();
        self.0.timers.notify_one();
    }

    fn next_outgoing(&self) -> Option<Outgoing> {
        self.0.broker.borrow_mut().outgoing()
    }

    fn pass_on(&self, outgoing: Outgoing) -> SessionId {
        let (Outgoing::Packet { to, .. }
        | Outgoing::Report { to, .. }
        | Outgoing::Board { to, .. }
        | Outgoing::Capture { to, .. }
        | Outgoing::End { to }) = outgoing;
        if let Outgoing::Capture { capturing, .. } = outgoing {
            drop(spawn_local(capturing.serve(self.clone())));
            return to;
        }
        let Some(connection) = self.0.connections.borrow().get(&to).cloned() else { return to };
        match outgoing {
            Outgoing::Packet { packet, items, .. } => connection.push(packet, items),
            Outgoing::Report { serial, json, .. } => {
                if !connection.report(serial, json) {
                    self.choke(&connection, &mut self.0.broker.borrow_mut());
                }
            }
            Outgoing::Board { board, pid, .. } => connection.attached(board, pid),
            Outgoing::End { .. } => connection.end(),
            Outgoing::Capture { .. } => {} // See above.
        }
        to
    }

    /// A connection takes too little of what is sent to it.
    fn choke(&self, connection: &Connection, broker: &mut Broker) {
        connection.clear();
        broker.choked(connection.id);
    }

    /// Sends what waits for a connection, and drops it if too much does.
    fn flush(&self, connection: &Connection) {
        let outcome = connection.flush();
        let backlog = connection.backlog();
        let mut broker = self.0.broker.borrow_mut();
        broker.backlog(connection.id, backlog);
        if connection.is_over() {
            if outcome != Flushed::Waits {
                connection.end();
            }
        } else if outcome == Flushed::Broken {
            broker.lost(connection.id, Reason::PeerVanished);
        } else if backlog > QUEUE_MAX {
            self.choke(connection, &mut broker);
        }
    }

    fn look_after_idleness(&self) {
        let busy = {
            let broker = self.0.broker.borrow();
            !broker.directory().is_empty() || broker.expected().next().is_some()
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

    fn idle_for_long(&self) -> bool {
        self.idle_until().is_some_and(|until| until <= Instant::now())
    }

    fn next_wake(&self) -> Option<Instant> {
        let deadline = self.0.broker.borrow().deadline().filter(|deadline| *deadline != u64::MAX);
        let deadline = deadline.map(|deadline| self.0.started + Duration::from_nanos(deadline));
        deadline.into_iter().chain(self.idle_until()).min()
    }

    /// Waits for the processes of domains of the daemon before: who ends does not come back.
    fn watch_survivors(&self) {
        let survivors: Vec<_> = self.0.broker.borrow().expected().copied().collect();
        for survivor in survivors {
            match survivor.process {
                Some(process) => drop(spawn_local(self.clone().watch(survivor.domain, process.pid))),
                None => drop(spawn_local(self.clone().watch_for_a_while(survivor.domain))),
            }
        }
    }

    async fn watch(self, domain: DomainId, pid: i32) {
        if let Some(process) = watched::process(pid) {
            let _ = process.readable().await;
        }
        self.with(|broker| broker.survivor_ended(domain));
    }

    /// A process that cannot be seen has a while to come back.
    async fn watch_for_a_while(self, domain: DomainId) {
        tokio::time::sleep(Duration::from_secs(10)).await;
        self.with(|broker| broker.survivor_ended(domain));
    }

    /// Nobody is there any more.
    fn is_left(&self) -> bool {
        self.0.connections.borrow().is_empty() && self.0.broker.borrow().captures() == 0
    }

    /// Tells everybody, and gives them a moment to hear it.
    async fn end(&self, ended: Ended) {
        let reason = match ended {
            Ended::Stopped => Reason::DaemonShutdown,
            Ended::Idle => Reason::DaemonIdle,
        };
        self.with(|broker| broker.shut_down(reason));
        let until = Instant::now() + LINGER;
        while !self.is_left() && Instant::now() < until {
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

/// What a process's program is called, as far as it makes a name.
pub(crate) fn program(pid: Option<i32>) -> Name {
    let comm = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()).unwrap_or_default();
    let plain: String = comm.trim().chars().map(|c| if c.is_ascii_graphic() && c != '/' { c } else { '_' }).collect();
    Name::new(&plain).or_else(|_| Name::new("program")).expect("a valid name")
}
