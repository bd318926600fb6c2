//! The guest's side of a border: the daemon of a guest. It takes its programs' connections, passes on what they say, and has the device
//! make descriptors of what the host hands to them.
//!
//! It decides nothing: who may talk to whom, and which numbers and names are free, the host knows. What programs may connect is the
//! guest's own affair, and what was withdrawn is taken from them here. Windows that the guest has in common with others come and go while it
//! runs; the host is told which ones are there.
//!
//! Where no driver keeps programs apart ([`Bare`]) only root's are served, and what was withdrawn is away once nobody has it any more.

mod bare;
mod device;
mod things;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use isthmus_channel::crossing::Frame;
use isthmus_layout::RegionSize;
use isthmus_layout::border::lots::{Lot, Wanted};
use isthmus_layout::border::shared::{Lend, Lent, Offer, Share};
use isthmus_layout::border::{
    ANSWER_WORD, CALL_WORD, CROSSING, CROSSING_AT, CROSSING_VECTOR, FrameKind, Handed, MAGIC, MAGIC_WORD, Open, Packet,
    SILENT_AFTER_MS, TAKEN_STEP, UNTAKEN_MAX, VERSION, VERSION_WORD, WindowNumber, Withdrawn,
};
use isthmus_layout::channel::Direction;
use isthmus_layout::control::{
    EventChannelEnd, EventChannels, HEADER_BYTES, HelloBack, List, MalformedControl, Placed, PlacedMemory, Refused,
    Text, ToClient, ToDaemon, serial_of,
};
use isthmus_layout::limits::{CONTROL_BYTES_MAX, CONTROL_FDS_MAX, PAGE_BYTES};
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket::{self, ReceiveError};
use isthmus_platform::{Doorbell, Ring as _};
use isthmus_platform_kvm::HOST;
use isthmus_shm::{Window, Words as _};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::{BEAT, Line, Pulse, TURN_FRAMES, Talk, is_of_region, region_refused};
use crate::policy::Policy;
use crate::server::{Stop, program};
use crate::session::QUEUE_MAX;
use crate::socket::Listener;
use crate::watched::{process, watched};
pub use bare::Bare;
pub use device::{Device, Keep, LineEnd};
use things::{Thing, Things};

/// After no connection could be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

const SILENT_AFTER: Duration = Duration::from_millis(SILENT_AFTER_MS as u64);

/// What was done for the host, and it has not been told of: more than a stock, of each size.
const UNTOLD_MAX: usize = 256;

/// How often it is looked whether somebody still has what was withdrawn.
const HELD_AGAIN: Duration = Duration::from_millis(100);

/// Why a guest's daemon serves its device no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to stop.
    Stopped,
    /// The device is gone: it was unplugged.
    Unplugged,
}

/// A guest's daemon.
pub struct Guest<D> {
    device: D,
    policy: Policy,
}

/// What the conversation is in.
struct Place {
    head: Window,
    crossing: Window,
    host: Doorbell,
}

impl<D: Device + 'static> Guest<D> {
    /// Over a device. `policy` says which users of the guest may connect.
    pub fn new(device: D, policy: Policy) -> Self {
        Self { device, policy }
    }

    /// Serves until it is stopped, or its device is gone, or a window that does not last is over. Runs inside a
    /// [`LocalSet`](tokio::task::LocalSet).
    pub async fn run(self, listener: &Listener, stop: &Stop) -> io::Result<Ended> {
        let place = Rc::new(Place {
            head: self.device.window(0, RegionSize(PAGE_BYTES.into()))?,
            crossing: self.device.window(CROSSING_AT, CROSSING.size())?,
            host: Doorbell::from(self.device.ringer(HOST, CROSSING_VECTOR)?),
        });
        let bell = watched(self.device.listen(CROSSING_VECTOR)?)?;
        let gone = watched(self.device.hang_up()?)?;
        let incoming = watched(listener.as_fd().try_clone_to_owned()?)?;
        let mut calling = Calling::new(Rc::clone(&place));
        let things = Rc::new(Things::of(self.device));
        let mut conversation: Option<Rc<Conversation<D>>> = None;
        let mut host = Host::new(place.head.clone());
        let mut again = interval(BEAT);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut more = false;
        let ended = loop {
            tokio::select! {
                () = stop.stopped() => break Ended::Stopped,
                hung_up = gone.readable() => {
                    drop(hung_up?);
                    break Ended::Unplugged;
                }
                ready = incoming.readable() => match listener.accept() {
                    Ok(socket) => welcome(socket, &self.policy, conversation.as_ref().filter(|_| !host.is_silent())),
                    Err(rustix::io::Errno::AGAIN) => ready?.clear_ready(),
                    Err(error) => {
                        tracing::warn!("a connection was not accepted: {error}");
                        tokio::time::sleep(ACCEPT_AGAIN).await; // Most likely there are no descriptors.
                    }
                },
                ready = bell.readable() => {
                    let _ = rustix::io::read(&bell, &mut [0; 8]); // How often does not matter.
                    ready?.clear_ready();
                }
                _ = again.tick() => {
                    host.feel(conversation.is_some());
                    things.look();
                }
                () = things.device.changed() => things.look(),
                () = tokio::task::yield_now(), if more => {}
            }
            if conversation.as_ref().is_some_and(|conversation| conversation.talk.over.get() || !calling.is_answered())
            {
                tracing::warn!("the host's daemon is not there any more");
                conversation.take().inspect(|before| before.end());
                if !things.device.lasts() {
                    break Ended::Unplugged;
                }
                calling = Calling::new(Rc::clone(&place));
            }
            if conversation.is_none() && calling.call() {
                tracing::info!("the host's daemon is there");
                host.is_there();
                let talk = Talk::new(place.crossing.clone(), Direction::One);
                things.start_anew();
                conversation = Some(Conversation::new(talk, Rc::clone(&place), Rc::clone(&things)));
            }
            more = conversation.as_ref().is_some_and(Conversation::turn);
        };
        conversation.inspect(|conversation| conversation.end());
        if ended == Ended::Stopped {
            calling.leave();
        }
        Ok(ended)
    }
}

/// Has whoever connects know that there is no host, until `over`.
pub async fn turn_away<T>(listener: &Listener, over: impl Future<Output = T>) -> io::Result<T> {
    let incoming = watched(listener.as_fd().try_clone_to_owned()?)?;
    let mut over = std::pin::pin!(over);
    loop {
        tokio::select! {
            over = &mut over => return Ok(over),
            ready = incoming.readable() => match listener.accept() {
                Ok(socket) => refuse(&socket, Reason::HostSilent),
                Err(rustix::io::Errno::AGAIN) => ready?.clear_ready(),
                Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await, // As above.
            },
        }
    }
}

/// Whether the host's daemon works. One that hangs is told of and waited for: what programs have by channels goes on without it.
struct Host {
    pulse: Pulse,
    heard: Instant,
}

impl Host {
    fn new(head: Window) -> Self {
        Self { pulse: Pulse::of_guest(head), heard: Instant::now() }
    }

    /// It has answered a call.
    fn is_there(&mut self) {
        self.heard = Instant::now();
        self.pulse.silent = false;
    }

    /// Says that we are there, and looks whether the host's daemon does; a host that never did is not expected to.
    fn feel(&mut self, talking: bool) {
        if self.pulse.beat() || self.pulse.seen == 0 {
            self.heard = Instant::now();
        }
        let is_silent = talking && self.heard.elapsed() >= SILENT_AFTER;
        if self.pulse.found(is_silent) {
            match is_silent {
                true => tracing::warn!("the host's daemon is silent: it hangs, or is stopped; nobody can attach"),
                false => tracing::info!("the host's daemon is heard again"),
            }
        }
    }

    fn is_silent(&self) -> bool {
        self.pulse.silent
    }
}

/// Whether a host's daemon has filled this head page.
fn is_made(head: &Window) -> bool {
    (MAGIC_WORD..).zip(MAGIC).all(|(at, word)| head.load(at, Ordering::Acquire) == word)
        && head.load(VERSION_WORD, Ordering::Acquire) == VERSION
}

/// The way to a conversation.
struct Calling {
    place: Rc<Place>,
    /// None while nothing was said, or nobody is there to hear it.
    call: Option<u32>,
}

impl Calling {
    fn new(place: Rc<Place>) -> Self {
        Self { place, call: None }
    }

    /// True when the host answers.
    fn call(&mut self) -> bool {
        let head = &self.place.head;
        if !is_made(head) {
            self.call = None;
            return false;
        }
        if self.call.is_none() {
            let (before, mut bytes) = (head.load(ANSWER_WORD, Ordering::Acquire), [0; 4]);
            let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
            let call = u32::from_le_bytes(bytes);
            // Any other number does as well.
            let call = if call == 0 || call == before { before.wrapping_add(1).max(1) } else { call };
            head.store(CALL_WORD, call, Ordering::Release);
            self.call = Some(call);
        }
        if self.is_answered() {
            return true;
        }
        self.place.host.ring();
        false
    }

    fn is_answered(&self) -> bool {
        self.call.is_some_and(|call| self.place.head.load(ANSWER_WORD, Ordering::Acquire) == call)
    }

    /// Says that nobody speaks here any more.
    fn leave(&self) {
        self.place.head.store(CALL_WORD, 0, Ordering::Release);
        self.place.host.ring();
    }
}

fn refuse(socket: &OwnedFd, reason: Reason) {
    refuse_saying(socket, reason, reason.summary());
}

fn refuse_saying(socket: &OwnedFd, reason: Reason, text: &str) {
    let message = Refused { reason, text: Text::clip(text) };
    let _ = seqpacket::send(socket, &ToClient::from(message).emit(None), &[]);
    // Where something is left unread when a socket is closed, the kernel tells the other side of that first, and older libraries take it
    // for all there was. After this nothing more comes in.
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
    let (mut message, mut fds) = ([0; HEADER_BYTES], Vec::new());
    while matches!(
        seqpacket::receive(socket, &mut message, &mut fds, false),
        Ok(_) | Err(ReceiveError::TooLong | ReceiveError::DescriptorsLost { .. })
    ) {}
}

/// What others than root are told where there is no driver.
const ONLY_ROOT: &str = "no driver has the guest's device, and without one whoever attaches sees all of the window: only root may; \
                         load the driver, and start the guest's daemon again";

/// A program has connected.
fn welcome<D: Device + 'static>(socket: OwnedFd, policy: &Policy, conversation: Option<&Rc<Conversation<D>>>) {
    let Some(conversation) = conversation else { return refuse(&socket, Reason::HostSilent) };
    let stream = socket.try_clone().and_then(|socket| UnixStream::from_std(socket.into()));
    let Ok(known) = stream.and_then(|stream| stream.peer_cred()) else { return };
    // Who we are ourselves could open the window as well, and nobody else.
    if conversation.things.device.shows_all() && known.uid() != rustix::process::geteuid().as_raw() {
        return refuse_saying(&socket, Reason::AttachForbidden, ONLY_ROOT);
    }
    if let Err(reason) = policy.attach(known.uid()) {
        return refuse(&socket, reason);
    }
    let pid = known.pid().filter(|pid| *pid > 0);
    let open = Open { uid: known.uid(), pid: pid.unwrap_or(0).unsigned_abs(), program: program(pid) };
    if let Err(error) = conversation.open(socket, open) {
        tracing::warn!("a connection could not be set up: {error}");
    }
}

/// What the host's daemon and we say, from a call on.
struct Conversation<D> {
    talk: Talk,
    place: Rc<Place>,
    things: Rc<Things<D>>,
    programs: RefCell<BTreeMap<u32, Rc<Program>>>,
    next: Cell<u32>,
    /// Windows that the host knows of.
    told: RefCell<BTreeSet<WindowNumber>>,
    /// What was done for the host or taken away, and it has not been told.
    made: RefCell<VecDeque<(FrameKind, Vec<u8>)>>,
    making: Notify,
}

/// A message for a program.
type Message = (Vec<u8>, Vec<Arc<OwnedFd>>);

/// A connection of a program.
struct Program {
    number: u32,
    /// As in [`Open`].
    pid: u32,
    line: Line,
    /// What the host has said and the program has not taken.
    inbox: RefCell<VecDeque<Message>>,
    /// Nothing more comes.
    closed: Cell<bool>,
    came: Notify,
    /// Messages that the host has not taken.
    untaken: Cell<u32>,
    taken: Notify,
    /// What is to last as long as its process, or until it was given [`KEPT_MAX`] more.
    kept: RefCell<VecDeque<Keep>>,
}

/// Lines that are kept for a program beyond those of lots that are there. It takes what it is told in order: by the time that it has
/// so many newer ones it has closed the oldest, or has it of a lot.
const KEPT_MAX: usize = 256;

impl Program {
    fn close(&self) {
        self.closed.set(true);
        self.came.notify_one();
        self.taken.notify_one();
    }

    /// A message of the host's. Which of its descriptors are lines it is told before, and where memory begins in those that show more.
    fn take(&self, message: &[u8], things: Vec<Thing>) {
        let (mut files, mut ends, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        for (descriptor, Thing { file, at, line }) in (0..).zip(things) {
            files.push(file);
            memory.extend(at.map(|at| PlacedMemory { descriptor, at }));
            if let Some((port, keep)) = line {
                ends.push(EventChannelEnd { descriptor, port });
                let mut kept = self.kept.borrow_mut();
                kept.push_back(keep);
                if kept.len() > KEPT_MAX {
                    kept.pop_front();
                }
            }
        }
        if !ends.is_empty() {
            let ends = List::new(ends).expect("a message has no more descriptors");
            self.push((ToClient::from(EventChannels { ends }).emit(None), Vec::new()));
        }
        if !memory.is_empty() {
            let memory = List::new(memory).expect("as above");
            self.push((ToClient::from(Placed { memory }).emit(None), Vec::new()));
        }
        self.push((message.to_vec(), files));
    }

    fn push(&self, message: Message) {
        self.inbox.borrow_mut().push_back(message);
        self.came.notify_one();
    }
}

impl<D: Device + 'static> Conversation<D> {
    fn new(talk: Talk, place: Rc<Place>, things: Rc<Things<D>>) -> Rc<Self> {
        let (programs, made, told) = (RefCell::default(), RefCell::default(), RefCell::default());
        let new = Self { talk, place, things, programs, next: Cell::new(1), told, made, making: Notify::new() };
        let conversation = Rc::new(new);
        spawn_local(Rc::clone(&conversation).offer());
        conversation
    }

    fn end(&self) {
        self.talk.end();
        self.making.notify_one();
        let programs = std::mem::take(&mut *self.programs.borrow_mut());
        programs.values().for_each(|program| program.close());
    }

    fn open(self: &Rc<Self>, socket: OwnedFd, open: Open) -> io::Result<()> {
        let program = Rc::new(Program {
            number: self.next.replace(self.next.get() + 1),
            pid: open.pid,
            line: Line::new(socket)?,
            inbox: RefCell::default(),
            closed: Cell::new(false),
            came: Notify::new(),
            untaken: Cell::new(0),
            taken: Notify::new(),
            kept: RefCell::default(),
        });
        self.programs.borrow_mut().insert(program.number, Rc::clone(&program));
        spawn_local(Rc::clone(self).pass_up(Rc::clone(&program), open));
        spawn_local(pass_down(program));
        Ok(())
    }

    /// Time has passed, or the host has rung. True if there is more to do, be it that it is over.
    fn turn(self: &Rc<Self>) -> bool {
        match self.talk.take(|frame, content| self.heard(frame, content)) {
            Ok(taken) => {
                if self.tell_of_windows() || taken > 0 {
                    self.place.host.ring();
                }
                taken == TURN_FRAMES || self.talk.over.get()
            }
            Err(text) => {
                tracing::error!("the host's daemon makes no sense: {text}");
                self.talk.end();
                true
            }
        }
    }

    /// Says which windows have come and gone, as far as there is room. True if anything was said.
    fn tell_of_windows(&self) -> bool {
        let (commons, mut told) = (self.things.commons.borrow(), self.told.borrow_mut());
        let here = commons.keys().copied().collect::<BTreeSet<_>>();
        let gone = told.difference(&here).map(|window| (FrameKind::Unplugged, *window));
        let come = here.difference(&told).map(|window| (FrameKind::Plugged, *window));
        let news: Vec<_> = gone.chain(come).collect();
        let mut said = false;
        for (kind, window) in news {
            if !matches!(self.talk.send(Frame { kind, connection: 0 }, &window.emit()), Ok(true)) {
                break; // The next turn goes on; or it is over.
            }
            said = true;
            match kind {
                FrameKind::Plugged => drop(told.insert(window)),
                _ => drop(told.remove(&window)),
            }
        }
        said
    }

    /// One frame; what was wrong with it, if it is none of a host's.
    fn heard(&self, Frame { kind, connection }: Frame, content: &[u8]) -> Result<(), String> {
        let program = self.programs.borrow().get(&connection).cloned();
        match (kind, program) {
            (FrameKind::Packet, program) => {
                let packet = Packet::parse(content).map_err(|error| error.to_string())?;
                program.inspect(|program| self.packet(program, &packet));
            }
            (FrameKind::Closed, Some(program)) => {
                self.programs.borrow_mut().remove(&connection);
                program.close();
            }
            (FrameKind::Taken, Some(program)) => {
                program.untaken.set(program.untaken.get().saturating_sub(TAKEN_STEP));
                program.taken.notify_one();
            }
            (FrameKind::Closed | FrameKind::Taken, None) => {} // It has closed meanwhile.
            (FrameKind::Withdrawn, _) => {
                self.things.withdraw(Withdrawn::parse(content).map_err(|error| error.to_string())?);
                self.made.borrow_mut().push_back((FrameKind::Away, content.to_vec()));
                self.making.notify_one();
            }
            (FrameKind::Wanted | FrameKind::Share | FrameKind::Part | FrameKind::Lend, _) => {
                if self.made.borrow().iter().filter(|(kind, _)| *kind != FrameKind::Away).count() >= UNTOLD_MAX {
                    return Err(format!("it wants more than {UNTOLD_MAX} things at once"));
                }
                let done = self.done(kind, content).map_err(|error| error.to_string())?;
                self.made.borrow_mut().extend(done);
                self.making.notify_one();
            }
            (
                FrameKind::Open
                | FrameKind::Plugged
                | FrameKind::Unplugged
                | FrameKind::Away
                | FrameKind::Lot
                | FrameKind::Offer
                | FrameKind::Lent,
                _,
            ) => return Err(format!("a host does not say {kind:?}")),
        }
        Ok(())
    }

    /// Does something of windows that the host wants, and says what it is told of that.
    fn done(&self, kind: FrameKind, content: &[u8]) -> Result<Option<(FrameKind, Vec<u8>)>, MalformedControl> {
        let device = &self.things.device;
        match kind {
            FrameKind::Share => {
                let share = Share::parse(content)?;
                let shared = device.share(&share).unwrap_or_else(|error| {
                    tracing::warn!(domain = share.domain, "there is no window in common: {error}");
                    Some(Vec::new())
                });
                self.things.look();
                let offer = |offer: Vec<u8>| Offer { window: share.window, offer: &offer }.emit();
                Ok(shared.map(|shared| (FrameKind::Offer, offer(shared))))
            }
            FrameKind::Part => {
                device.part(WindowNumber::parse(content)?);
                self.things.look();
                Ok(None)
            }
            FrameKind::Lend => {
                let lend = Lend::parse(content)?;
                let borrowed = device.borrow(&lend).inspect_err(|error| {
                    tracing::warn!(bytes = lend.bytes, "what another guest grants cannot be mapped: {error}");
                });
                let lent = Lent { window: lend.window, place: lend.place, good: borrowed.is_ok() };
                Ok(Some((FrameKind::Lent, lent.emit())))
            }
            _ => {
                let wanted = Wanted::parse(content)?;
                let made = device.make(wanted).unwrap_or_else(|error| {
                    tracing::warn!(bytes = wanted.bytes, "a window does not grow: {error}");
                    Vec::new()
                });
                let lot = Lot { window: wanted.window, place: wanted.place, grant: &made };
                Ok(Some((FrameKind::Lot, lot.emit())))
            }
        }
    }

    /// Tells the host of what was done for it, but of nothing as away that somebody still has.
    async fn offer(self: Rc<Self>) {
        while !self.talk.over.get() {
            let is_held = |(kind, content): &(FrameKind, Vec<u8>)| {
                *kind == FrameKind::Away && Withdrawn::parse(content).is_ok_and(|away| self.things.is_held(away))
            };
            let ready = self.made.borrow().iter().position(|made| !is_held(made));
            let next = ready.and_then(|ready| self.made.borrow_mut().remove(ready));
            match next {
                Some((kind, content)) => drop(self.send(kind, 0, &content).await),
                None if self.made.borrow().is_empty() => self.making.notified().await,
                None => drop(timeout(HELD_AGAIN, self.making.notified()).await),
            }
        }
    }

    fn packet(&self, program: &Program, packet: &Packet<'_>) {
        if program.closed.get() {
            return; // It was refused something.
        }
        if let Some(refused) = self.does_not_know_places(packet) {
            program.push((refused, Vec::new()));
            return program.close();
        }
        let make = |handed: &Handed| self.things.make(program.number, *handed);
        match packet.handed.iter().map(make).collect::<io::Result<Vec<_>>>() {
            Ok(things) if program.inbox.borrow().len() < QUEUE_MAX => program.take(packet.message, things),
            Ok(_) => program.close(), // It takes nothing.
            Err(error) if packet.handed.iter().all(is_of_region) => {
                tracing::warn!(connection = program.number, "the device has not made what a region is: {error}");
                if let Some(refused) = region_refused(packet, Reason::NoCommonMemory) {
                    program.push((refused, Vec::new()));
                }
            }
            Err(error) => {
                tracing::warn!(connection = program.number, "the device has not made what the host handed: {error}");
                program.close();
            }
        }
    }

    /// What a program is told that would take any memory for the first of the window.
    fn does_not_know_places(&self, packet: &Packet<'_>) -> Option<Vec<u8>> {
        if !self.things.device.shows_all() {
            return None;
        }
        let Ok((serial, ToClient::HelloBack(HelloBack { major, minor, .. }))) = ToClient::parse(packet.message, 0)
        else {
            return None;
        };
        let (since, reason) = (Placed::SINCE, Reason::NotInVersion);
        let text = format!(
            "without a driver for the guest's device version {major}.{since} is needed, spoken is {major}.{minor}"
        );
        (minor < since).then(|| ToClient::from(Refused { reason, text: Text::clip(&text) }).emit(serial))
    }

    /// From the program to the host.
    async fn pass_up(self: Rc<Self>, program: Rc<Program>, open: Open) {
        if !self.send(FrameKind::Open, program.number, &open.emit()).await {
            return;
        }
        let (mut message, mut fds) = (vec![0; CONTROL_BYTES_MAX], Vec::with_capacity(CONTROL_FDS_MAX));
        while !program.closed.get() {
            let Some(bytes) = program.line.receive(&mut message, &mut fds).await else { break };
            let message = &message[..bytes];
            let is_region = || matches!(ToDaemon::parse(message, 0), Ok((_, ToDaemon::MakeRegion(_))));
            if !fds.is_empty() || self.things.device.shows_all() && is_region() {
                program.push((refusal(message, fds.len()), Vec::new()));
                fds.clear();
                continue;
            }
            while program.untaken.get() >= UNTAKEN_MAX && !program.closed.get() {
                program.taken.notified().await;
            }
            program.untaken.set(program.untaken.get() + 1);
            let packet = Packet { handed: Vec::new(), message };
            if !self.send(FrameKind::Packet, program.number, &packet.emit()).await {
                return;
            }
        }
        program.close();
        if self.programs.borrow_mut().remove(&program.number).is_some() {
            self.send(FrameKind::Closed, program.number, &[]).await;
        }
    }

    /// False when the conversation has ended.
    async fn send(&self, kind: FrameKind, connection: u32, content: &[u8]) -> bool {
        loop {
            match self.talk.send(Frame { kind, connection }, content) {
                Ok(true) => {
                    self.place.host.ring();
                    return true;
                }
                Ok(false) => self.talk.room().await,
                Err(_) => return false,
            }
        }
    }
}

/// From the host to the program. What is kept for it is, until its process is gone.
async fn pass_down(program: Rc<Program>) {
    loop {
        let next = program.inbox.borrow_mut().pop_front();
        match next {
            Some((message, descriptors)) => {
                if !program.line.send(&message, &descriptors).await {
                    break; // The other task sees it, too.
                }
            }
            None if program.closed.get() => {
                program.line.shut_down();
                break;
            }
            None => program.came.notified().await,
        }
    }
    let (pid, kept) = (program.pid, program.kept.take());
    drop(program);
    if !kept.is_empty() {
        gone(pid).await;
    }
    for keep in kept {
        drop(keep);
        tokio::task::yield_now().await; // Each may take a moment.
    }
}

/// Waits until a process is gone; for ever where it cannot be seen.
async fn gone(pid: u32) {
    let Ok(pid @ 1..) = i32::try_from(pid) else { return std::future::pending().await };
    if let Some(process) = process(pid) {
        drop(process.readable().await);
    }
}

/// What a program is told that sends descriptors, none of which means anything on the host, or that wants a region where nobody can make one.
fn refusal(message: &[u8], descriptors: usize) -> Vec<u8> {
    let nothing = "a guest has nothing that its host could map";
    let (serial, reason, text) = match ToDaemon::parse(message, descriptors) {
        Ok((serial, ToDaemon::Attach(_))) => {
            (serial, Reason::TicketInvalid, "what this domain had lay in the window, where it is another one's now")
        }
        Ok((serial, ToDaemon::MakeRegion(_))) => {
            (serial, Reason::NoCommonMemory, "without the driver of the guest's device there are no regions")
        }
        Ok((serial, _)) => (serial, Reason::NoCommonMemory, nothing),
        Err(_) => (serial_of(message), Reason::MalformedControl, nothing),
    };
    ToClient::from(Refused { reason, text: Text::clip(text) }).emit(serial)
}

#[cfg(test)]
mod tests {
    use isthmus_layout::control::{Close, Grant};
    use isthmus_layout::ids::{DomainId, RegionId};

    use super::*;
    use crate::config::{ConfigFile, Inputs, Role, load};

    /// A device that nobody serves: its window is empty.
    struct Unserved;

    impl Device for Unserved {
        fn piece(&self, _offset: u64, bytes: u64) -> io::Result<OwnedFd> {
            isthmus_platform::local::memory(RegionSize(bytes)).map_err(io::Error::other)
        }

        fn withdraw(&self, _offset: u64, _piece: Option<&OwnedFd>) -> io::Result<()> {
            Ok(())
        }

        fn ringer(&self, _peer: u16, _vector: u16) -> io::Result<OwnedFd> {
            self.listen(0)
        }

        fn listen(&self, _vector: u16) -> io::Result<OwnedFd> {
            let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
            rustix::event::eventfd(0, flags).map_err(io::Error::from)
        }

        fn hang_up(&self) -> io::Result<OwnedFd> {
            self.listen(0)
        }

        fn beside(&self, _known: &BTreeSet<WindowNumber>) -> Vec<(WindowNumber, Self)> {
            Vec::new()
        }

        fn is_gone(&self) -> bool {
            false
        }
    }

    #[test]
    fn what_is_kept_for_a_program_is_bounded() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, _theirs) = seqpacket::pair().unwrap();
            let program = Program {
                number: 1,
                pid: 0,
                line: Line::new(ours).unwrap(),
                inbox: RefCell::default(),
                closed: Cell::new(false),
                came: Notify::new(),
                untaken: Cell::new(0),
                taken: Notify::new(),
                kept: RefCell::default(),
            };
            let file = Arc::new(Unserved.listen(0).unwrap());
            let alive = Rc::new(());
            for port in 1..=KEPT_MAX as u32 + 100 {
                let thing =
                    Thing { file: Arc::clone(&file), at: None, line: Some((port, Box::new(Rc::clone(&alive)))) };
                program.take(&[], vec![thing]);
                let (told, _) = program.inbox.borrow_mut().pop_front().unwrap();
                let end = EventChannelEnd { descriptor: 0, port };
                assert_eq!(
                    ToClient::parse(&told, 0).unwrap().1,
                    EventChannels { ends: List::new(vec![end]).unwrap() }.into()
                );
                program.inbox.borrow_mut().pop_front().unwrap();
                assert_eq!(Rc::strong_count(&alive) - 1, KEPT_MAX.min(port as usize));
            }
        });
    }

    /// Has a guest's daemon without a host answer a program that has said so much when it is accepted; what that receives first and then, as
    /// any library receives it.
    fn first_words(said: &[&[u8]]) -> [rustix::io::Result<Vec<u8>>; 2] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("isthmus.sock");
        let listener = Listener::given(seqpacket::listen(&path, 1).unwrap());
        let inputs = Inputs { file: ConfigFile::None, ..Inputs::bare(Role::System) };
        let policy = Policy::new(load(&inputs).unwrap().config.policy, rustix::process::geteuid().as_raw());
        let program = seqpacket::connect(&path).unwrap();
        said.iter().for_each(|said| seqpacket::send(&program, said, &[]).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(async {
            let guest = Guest::new(Unserved, policy);
            let serving = spawn_local(async move { guest.run(&listener, &Stop::default()).await });
            // One thread does both: what the daemon does without waiting is done by then.
            drop(watched(program.try_clone().unwrap()).unwrap().readable().await.unwrap());
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
    fn programs_hear_that_the_host_is_silent() {
        let said: [&[&[u8]]; 3] = [&[], &[b"hello"], &[b"hello", b"attach"]];
        for said in said {
            let [first, then] = first_words(said);
            let (_, refused) = ToClient::parse(&first.expect("it is told"), 0).unwrap();
            assert!(
                matches!(&refused, ToClient::Refused(refused) if refused.reason == Reason::HostSilent),
                "{refused:?}"
            );
            assert_eq!(then, Ok(Vec::new()), "the end");
        }
    }

    #[test]
    fn what_came_with_descriptors_is_refused_by_what_it_is() {
        let reason = |message: ToDaemon, descriptors| {
            let refused = refusal(&message.emit(None), descriptors);
            match ToClient::parse(&refused, 0).unwrap().1 {
                ToClient::Refused(refused) => refused.reason,
                other => panic!("{other:?}"),
            }
        };
        let peer = DomainId::new(1).unwrap();
        let grant = Grant { peer, region: RegionId(1), start: 0, bytes: 4096 };
        assert_eq!(reason(grant.into(), 1), Reason::NoCommonMemory);
        assert_eq!(reason(Close {}.into(), 1), Reason::MalformedControl);
    }
}
