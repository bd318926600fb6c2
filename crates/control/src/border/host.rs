//! The host's side of a border: what a guest's programs ask becomes sessions of the control plane.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use isthmus_channel::crossing::Frame;
use isthmus_layout::border::lots::Lot;
use isthmus_layout::border::shared::{Lent, Offer};
use isthmus_layout::border::{
    ANSWER_WORD, CALL_WORD, CROSSING, FRAME_BYTES_MAX, FrameKind, GUEST_BEAT_WORD, Handed, MAGIC, MAGIC_WORD, Open,
    Packet, TAKEN_STEP, UNTAKEN_MAX, VERSION, VERSION_WORD, WindowNumber, Withdrawn,
};
use isthmus_layout::channel::Direction;
use isthmus_layout::control::ToDaemon;
use isthmus_layout::reason::Reason;
use isthmus_platform::seqpacket;
use isthmus_shm::{Window, Words as _};
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};
use tokio::task::spawn_local;
use tokio::time::{MissedTickBehavior, interval};

use super::{BEAT, Line, Over, Pulse, TURN_FRAMES, Talk, is_of_region, region_refused};
use crate::broker::{GuestState, GuestView, Refusal};
use crate::ground::{Estate, Ground};
use crate::server::Server;
use crate::watched::watched;

/// Connections of one guest. The control plane has limits of its own, and says so; this one keeps a guest from taking all descriptors.
const CONNECTIONS_MAX: usize = 1024;

/// What a message hands is not there any more.
struct Gone;

/// A guest, as long as its window is there.
pub(crate) struct Border {
    server: Server,
    estate: Arc<Estate>,
    /// Whose its domains are.
    uid: u32,
}

impl Border {
    pub(crate) fn new(server: Server, estate: Arc<Estate>, uid: u32) -> Self {
        Self { server, estate, uid }
    }

    /// Serves the guest until its window is `gone`.
    pub(crate) async fn serve(self, gone: impl Future<Output = ()>) -> io::Result<()> {
        let refused = |refusal: Refusal| io::Error::other(refusal.text);
        let (head, crossing) = (self.estate.head().map_err(refused)?, self.estate.crossing().map_err(refused)?);
        for (at, word) in (MAGIC_WORD..).zip(MAGIC).chain([(VERSION_WORD, VERSION)]) {
            head.store(at, word, Ordering::Release);
        }
        self.estate.call(); // Whose daemon is there already need not look for that again.
        let called = watched(self.estate.called().map_err(io::Error::other)?)?;
        let mut conversation: Option<Rc<Conversation>> = None;
        let mut gone = std::pin::pin!(gone);
        // What was said there last, whatever came of it.
        let mut heard = self.take_over(&head);
        let (mut pulse, mut beat) = (Pulse::of_host(head.clone()), interval(BEAT));
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut more = false;
        loop {
            tokio::select! {
                () = &mut gone => break,
                _ = beat.tick() => self.feel(&mut pulse),
                ready = called.readable() => {
                    let _ = rustix::io::read(&called, &mut [0; 8]); // How often does not matter.
                    ready?.clear_ready();
                }
                () = self.estate.changed() => {}
                () = tokio::task::yield_now(), if more => {}
            }
            if let Some(over) = conversation.take_if(|conversation| conversation.talk.over.get()) {
                over.end();
                self.show(false, &head);
                if !self.estate.lasts() {
                    break;
                }
                head.store(ANSWER_WORD, 0, Ordering::Release);
                self.estate.call();
            }
            let call = head.load(CALL_WORD, Ordering::Acquire);
            if call != heard {
                let is_first = std::mem::replace(&mut heard, call) == 0;
                conversation.take().inspect(|before| before.end());
                if !is_first && !self.estate.lasts() {
                    break;
                }
                if call != 0 {
                    conversation = Some(self.answer(call, &head, &crossing));
                }
                self.show(conversation.is_some(), &head);
            }
            more = match &conversation {
                Some(conversation) => conversation.turn(),
                None => self.tell_nobody(),
            };
        }
        conversation.inspect(|conversation| conversation.end());
        self.show(false, &head);
        Ok(())
    }

    /// Ends what the guest's daemon may have said with a daemon before this one. The call that was answered there, and so is heard.
    fn take_over(&self, head: &Window) -> u32 {
        let answered = head.load(ANSWER_WORD, Ordering::Acquire);
        if answered == 0 {
            return 0;
        }
        head.store(ANSWER_WORD, 0, Ordering::Release);
        self.estate.call();
        answered
    }

    /// Says that we are there, and looks whether the guest's daemon does. One that does not may come back: nothing of its ends.
    fn feel(&self, pulse: &mut Pulse) {
        let beaten = pulse.beat();
        let is_silent = self.with_view(|guest, now| {
            if beaten {
                guest.heard = Some(now);
            }
            guest.state(now) == GuestState::Silent
        });
        if pulse.found(is_silent) {
            match is_silent {
                true => {
                    tracing::warn!(guest = %self.estate.name(), "its daemon is silent: it hangs, or the guest is paused")
                }
                false => tracing::info!(guest = %self.estate.name(), "its daemon is heard again"),
            }
        }
    }

    /// For reports: whether the guest's daemon is there. Only one that has beaten is expected to go on.
    fn show(&self, daemon: bool, head: &Window) {
        let beats = head.load(GUEST_BEAT_WORD, Ordering::Relaxed) != 0;
        self.with_view(|guest, now| {
            guest.daemon = daemon;
            guest.heard = (daemon && beats).then_some(now);
            false
        });
        // Whoever calls now says anew which windows it has.
        self.server.with(|broker| broker.no_window_shown(self.estate.number()));
    }

    fn with_view(&self, act: impl FnOnce(&mut GuestView, u64) -> bool) -> bool {
        self.server.with(|broker| {
            let now = broker.now;
            let guest = broker.guest_mut(self.estate.name());
            let is_ours =
                |guest: &&mut GuestView| guest.estate.as_ref().is_some_and(|known| Arc::ptr_eq(known, &self.estate));
            guest.filter(is_ours).is_some_and(|guest| act(guest, now))
        })
    }

    /// Makes the crossing ready for a conversation.
    fn answer(&self, call: u32, head: &Window, crossing: &Window) -> Rc<Conversation> {
        crossing.give_back(0, CROSSING.size().0);
        let talk = Talk::new(crossing.clone(), Direction::Zero);
        head.store(ANSWER_WORD, call, Ordering::Release);
        self.estate.call();
        tracing::info!(guest = %self.estate.name(), "its daemon is there");
        Rc::new(Conversation {
            talk,
            server: self.server.clone(),
            estate: Arc::clone(&self.estate),
            uid: self.uid,
            programs: RefCell::default(),
            told: RefCell::default(),
            attaching: Arc::default(),
        })
    }

    /// There is no daemon in the guest that could hand pieces on.
    fn tell_nobody(&self) -> bool {
        while let Some(withdrawn) = self.estate.withdrawn(|_| 0) {
            self.estate.away(withdrawn, 1);
        }
        false
    }
}

/// What a guest's daemon and we say, from a call on.
struct Conversation {
    talk: Talk,
    server: Server,
    estate: Arc<Estate>,
    uid: u32,
    programs: RefCell<BTreeMap<u32, Rc<Program>>>,
    /// Of how many withdrawn pieces of each window it was told that are not away.
    told: RefCell<BTreeMap<WindowNumber, usize>>,
    /// Held by the one connection whose request to attach is under way, where that may have to wait for what the guest makes.
    attaching: Arc<Mutex<()>>,
}

/// A connection of a guest's program.
struct Program {
    number: u32,
    /// To the session.
    line: Line,
    /// What the program has said and the session has not taken.
    inbox: RefCell<VecDeque<Vec<u8>>>,
    /// Nothing more comes.
    closed: Cell<bool>,
    came: Notify,
    /// Its request to attach has not been answered.
    attaching: RefCell<Option<OwnedMutexGuard<()>>>,
}

impl Program {
    fn close(&self) {
        self.closed.set(true);
        self.came.notify_one();
        self.attaching.take();
    }
}

impl Conversation {
    fn end(&self) {
        self.talk.end();
        let programs = std::mem::take(&mut *self.programs.borrow_mut());
        programs.values().for_each(|program| {
            program.line.shut_down();
            program.close();
        });
    }

    /// The guest has rung, or something was withdrawn. True if there is more to do, be it that it is over.
    fn turn(self: &Rc<Self>) -> bool {
        match self.talk.take(|frame, content| self.heard(frame, content)) {
            Ok(taken) => {
                if taken > 0 {
                    self.estate.call();
                }
                let _ = self.tell_of_pieces(); // Or it is over.
                taken == TURN_FRAMES || self.talk.over.get()
            }
            Err(text) => {
                tracing::warn!(guest = %self.estate.name(), "its daemon is not heard any more: {text}");
                self.talk.end();
                true
            }
        }
    }

    /// One frame; what was wrong with it, if it is none of a guest's.
    fn heard(self: &Rc<Self>, Frame { kind, connection }: Frame, content: &[u8]) -> Result<(), String> {
        match kind {
            FrameKind::Open => self.open(connection, Open::parse(content).map_err(|error| error.to_string())?),
            FrameKind::Packet => self.packet(connection, content),
            FrameKind::Closed => {
                let program = self.programs.borrow_mut().remove(&connection);
                program.inspect(|program| program.close());
                Ok(())
            }
            FrameKind::Plugged | FrameKind::Unplugged => {
                let window = WindowNumber::parse(content).map_err(|error| error.to_string())?;
                let (guest, there) = (self.estate.number(), kind == FrameKind::Plugged);
                self.server.with(|broker| broker.window_shown(guest, window, there));
                Ok(())
            }
            FrameKind::Lot => {
                let lot = Lot::parse(content).map_err(|error| error.to_string())?;
                self.of_common(self.estate.supply(lot.window, lot.place, lot.grant))
            }
            FrameKind::Away => {
                let away = Withdrawn::parse(content).map_err(|error| error.to_string())?;
                let mut told = self.told.borrow_mut();
                match told.get_mut(&away.window).filter(|told| **told > 0) {
                    Some(told) if self.estate.away(away, *told) => {
                        *told -= 1;
                        Ok(())
                    }
                    _ => Err("what it says is away it was not told of, or not next".to_owned()),
                }
            }
            FrameKind::Lent => {
                let lent = Lent::parse(content).map_err(|error| error.to_string())?;
                self.of_common(self.estate.lent(lent.window, lent.place, lent.good))
            }
            FrameKind::Offer => {
                let offer = Offer::parse(content).map_err(|error| error.to_string())?;
                self.of_common(self.estate.offered(offer.window, offer.offer))
            }
            FrameKind::Taken
            | FrameKind::Withdrawn
            | FrameKind::Wanted
            | FrameKind::Share
            | FrameKind::Part
            | FrameKind::Lend => Err(format!("a guest does not say {kind:?}")),
        }
    }

    /// Something of a common window may be there, or will not be: who makes it looks.
    fn of_common(&self, said: Result<(), String>) -> Result<(), String> {
        self.server.with(|broker| broker.guests_changed());
        said
    }

    fn open(self: &Rc<Self>, number: u32, open: Open) -> Result<(), String> {
        if self.programs.borrow().contains_key(&number) {
            return Err(format!("connection {number} is open already"));
        }
        match self.connect(number, open) {
            Ok(program) => {
                self.programs.borrow_mut().insert(number, Rc::clone(&program));
                spawn_local(Rc::clone(self).pass_up(Rc::clone(&program)));
                spawn_local(Rc::clone(self).pass_down(program));
            }
            Err(error) => {
                tracing::warn!(guest = %self.estate.name(), "a connection could not be set up: {error}");
                let this = Rc::clone(self);
                spawn_local(async move { this.send(FrameKind::Closed, number, &[]).await });
            }
        }
        Ok(())
    }

    fn connect(&self, number: u32, open: Open) -> io::Result<Rc<Program>> {
        if self.programs.borrow().len() >= CONNECTIONS_MAX {
            return Err(io::Error::other(format!("there are {CONNECTIONS_MAX} already")));
        }
        let (ours, theirs) = seqpacket::pair()?;
        let line = Line::new(ours)?;
        self.server.adopt(theirs, self.uid, open.program, Ground::Guest(Arc::clone(&self.estate)))?;
        let (inbox, closed, came) = (RefCell::default(), Cell::new(false), Notify::new());
        Ok(Rc::new(Program { number, line, inbox, closed, came, attaching: RefCell::default() }))
    }

    fn packet(&self, connection: u32, content: &[u8]) -> Result<(), String> {
        let packet = Packet::parse(content).map_err(|error| error.to_string())?;
        if !packet.handed.is_empty() || packet.message.is_empty() {
            return Err("a message without content, or one that hands something".to_owned());
        }
        // A connection that we have closed is heard of until the guest knows.
        let Some(program) = self.programs.borrow().get(&connection).cloned() else { return Ok(()) };
        let mut inbox = program.inbox.borrow_mut();
        if inbox.len() >= UNTAKEN_MAX as usize {
            return Err(format!("connection {connection} has more than {UNTAKEN_MAX} messages under way"));
        }
        inbox.push_back(packet.message.to_vec());
        program.came.notify_one();
        Ok(())
    }

    /// From the program to its session.
    async fn pass_down(self: Rc<Self>, program: Rc<Program>) {
        let mut taken = 0;
        loop {
            let next = program.inbox.borrow_mut().front().cloned();
            let Some(message) = next else {
                if program.closed.get() {
                    return program.line.shut_down();
                }
                program.came.notified().await;
                continue;
            };
            self.let_attach(&program, &message).await;
            if !program.line.send(&message, &[]).await {
                return; // The other task sees it, too.
            }
            program.inbox.borrow_mut().pop_front();
            taken += 1;
            if taken == TAKEN_STEP {
                taken = 0;
                if self.send(FrameKind::Taken, program.number, &[]).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Whoever attaches finds all that is needed for that: one after the other, where the guest has to make it.
    async fn let_attach(&self, program: &Program, message: &[u8]) {
        if self.estate.lasts() || !matches!(ToDaemon::parse(message, 0), Ok((_, ToDaemon::Attach(_)))) {
            return;
        }
        let turn = Arc::clone(&self.attaching).lock_owned().await;
        self.estate.ready().await;
        if !program.closed.get() {
            program.attaching.replace(Some(turn));
        }
    }

    /// From the session to the program.
    async fn pass_up(self: Rc<Self>, program: Rc<Program>) {
        let (mut packet, mut fds) = (vec![0; FRAME_BYTES_MAX], Vec::new());
        while let Some(bytes) = program.line.receive(&mut packet, &mut fds).await {
            program.attaching.take();
            let Ok(current) = self.current(&packet[..bytes]) else {
                program.line.shut_down();
                break;
            };
            let Some(packet) = current else { continue };
            if self.send(FrameKind::Packet, program.number, &packet).await.is_err() {
                return;
            }
        }
        if self.programs.borrow_mut().remove(&program.number).is_some() {
            program.close();
            let _ = self.send(FrameKind::Closed, program.number, &[]).await;
        }
    }

    /// What the guest is told where a message was to be told. An error if something that it hands was withdrawn while the message waited:
    /// then its domain is gone, too. Regions come and go.
    fn current<'a>(&self, packet: &'a [u8]) -> Result<Option<Cow<'a, [u8]>>, Gone> {
        let parsed = Packet::parse(packet).map_err(|_| Gone)?;
        let is_gone = |handed: &&Handed| match **handed {
            Handed::Piece { window, offset, age, .. }
            | Handed::Home { window, offset, age, .. }
            | Handed::View { window, offset, age, .. } => !self.estate.holds(window, offset, age),
            Handed::Ringer { .. } | Handed::Listener { .. } | Handed::Line { .. } => false,
        };
        let gone: Vec<_> = parsed.handed.iter().filter(is_gone).collect();
        match &gone[..] {
            [] => Ok(Some(Cow::Borrowed(packet))),
            gone if !gone.iter().all(|handed| is_of_region(handed)) => Err(Gone),
            _ => Ok(region_refused(&parsed, Reason::RegionsFull).map(|message| {
                let refused = Packet { handed: Vec::new(), message: &message };
                Cow::Owned(refused.emit())
            })),
        }
    }

    async fn send(&self, kind: FrameKind, connection: u32, content: &[u8]) -> Result<(), Over> {
        loop {
            // What was withdrawn is told of before the same bytes can be handed out again.
            if self.tell_of_pieces()? && self.talk.send(Frame { kind, connection }, content)? {
                self.estate.call();
                return Ok(());
            }
            self.talk.room().await;
        }
    }

    /// Which are pieces no longer, and which are to be made. False if there was no room for all.
    fn tell_of_pieces(&self) -> Result<bool, Over> {
        let mut told = self.told.borrow_mut();
        while let Some(withdrawn) = self.estate.withdrawn(|window| told.get(&window).copied().unwrap_or(0)) {
            let frame = Frame { kind: FrameKind::Withdrawn, connection: 0 };
            if !self.talk.send(frame, &withdrawn.emit())? {
                return Ok(false);
            }
            *told.entry(withdrawn.window).or_default() += 1;
            self.estate.call();
        }
        while let Some((kind, content)) = self.estate.next_order() {
            if !self.talk.send(Frame { kind, connection: 0 }, &content)? {
                return Ok(false);
            }
            self.estate.ordered();
            self.estate.call();
        }
        while let Some(wanted) = self.estate.wanted() {
            let frame = Frame { kind: FrameKind::Wanted, connection: 0 };
            if !self.talk.send(frame, &wanted.emit())? {
                return Ok(false);
            }
            self.estate.asked(wanted);
            self.estate.call();
        }
        Ok(true)
    }
}
