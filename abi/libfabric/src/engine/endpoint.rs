//! A fabric endpoint: a domain of its own with one client endpoint in it.

use crate::engine::head::{BULK, Head, Kind, WIDE};
use crate::engine::held::{Body, Held};
use crate::engine::hub::{Expected, Hub, INDEX};
use crate::engine::name::Name;
use crate::engine::ops::{ASIDE, EAGER, Op};
use crate::engine::receive::{Filter, Lane, Receive};
use crate::engine::regions::Regions;
use crate::engine::serve::{Answer, Reply};
use crate::errno::Errno;
use isthmus_client::{
    Buffer, Domain, EndpointAddress, Message, MxOpened, Options, Posted, Reason, Token, UnexpectedState,
};
use rustix::fd::BorrowedFd;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The key of MX endpoints that belong to fabrics: "ISFI".
const MX_KEY: u32 = 0x4953_4649;

/// How long what was sent may take to leave when an endpoint is closed.
const LINGER: Duration = Duration::from_secs(1);

/// An endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) domain: Domain<Hub>,
    pub(crate) name: Name,
    /// Boards of this host's daemon.
    nics: Vec<u64>,
    /// Where the address vector's addresses are, as far as they were looked for.
    places: Vec<Option<EndpointAddress>>,
    by_name: HashMap<Name, EndpointAddress>,
    /// How often something was done without asking.
    pub(crate) visits: u32,
}

impl Endpoint {
    /// Attaches.
    pub(crate) fn open(options: &Options, regions: Arc<Regions>) -> Result<Self, Errno> {
        let mut domain = attach(options, Arc::clone(&regions))?;
        if let Some(arena) = regions.arena() {
            domain.share(arena);
        }
        domain.open(Some(INDEX), "fabric")?;
        let claimed = domain.mx_open(None, None, MX_KEY, INDEX);
        let mut nics: Vec<u64> =
            domain.mx().map_or_else(|_| Vec::new(), |mx| mx.boards.iter().map(|b| b.nic).collect());
        // Without a number of its own it is an endpoint for this host alone.
        let (nic, number) = match claimed {
            Ok(MxOpened { endpoint, nic, .. }) => (nic, u16::try_from(endpoint).ok()),
            Err(_) => (nics.first().copied().unwrap_or(0), None),
        };
        if !nics.contains(&nic) {
            nics.push(nic);
        }
        let name = Name { nic, number, domain: domain.id() };
        Ok(Self { domain, name, nics, places: Vec::new(), by_name: HashMap::new(), visits: 0 })
    }

    #[inline]
    pub(crate) fn hub(&mut self) -> &mut Hub {
        self.domain.matcher_mut()
    }

    /// One turn of the wheel: everything happens that can. False if that was nothing.
    #[inline]
    pub(crate) fn turn(&mut self) -> bool {
        if self.idle_turn() {
            return false;
        }
        self.busy_turn();
        true
    }

    /// A turn in which nothing happens; false, and there was none, if anything might.
    #[inline(always)]
    fn idle_turn(&mut self) -> bool {
        let hub = self.domain.matcher();
        let quiet = hub.outbox.is_empty() && hub.asked.is_empty() && self.domain.is_quiet();
        if quiet {
            self.hub().idle_turn();
        }
        quiet
    }

    /// True if the program has nothing to hear of these sides, and a turn, which this then was, finds nothing either.
    #[inline(always)]
    pub(crate) fn is_quiet(&mut self, sides: [bool; 2]) -> bool {
        !self.has_event(sides) && !self.domain.matcher().will_rest() && self.idle_turn()
    }

    #[inline(never)]
    fn busy_turn(&mut self) {
        self.hub().begin();
        self.domain.progress();
        self.hub().end_turn();
        self.answer_all();
    }

    /// Whether the program has something to hear of these sides.
    #[inline]
    pub(crate) fn has_event(&self, sides: [bool; 2]) -> bool {
        self.domain.matcher().events.has_any_of(sides)
    }

    /// The same for who reads again and again: left out once after a turn that has found a single event.
    #[inline]
    pub(crate) fn turn_or_rest(&mut self) -> bool {
        !self.hub().rests() && self.turn()
    }

    /// Has the descriptor tell of everything from now on. False if there is something already.
    pub(crate) fn arm(&mut self) -> bool {
        self.hub().begin_to_wait();
        self.domain.arm() && self.hub().outbox.is_empty()
    }

    /// Records that the daemon has brought so far.
    #[inline]
    pub(crate) fn brought(&self) -> u64 {
        self.domain.brought()
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.domain.fd()
    }

    /// Leaves. What was sent is delivered, in bounded time.
    pub(crate) fn close(mut self) {
        self.answer_all();
        self.domain.leave(LINGER, |hub| hub.begin());
    }

    /// The address vector has this name at this number, or none any more. `first` is the number that stands for the name.
    pub(crate) fn insert(&mut self, at: usize, name: Option<Name>, first: usize) {
        if self.places.len() <= at {
            self.places.resize(at + 1, None);
        }
        self.places[at] = None;
        if let Some(name) = name
            && let Some(address) = self.own_host(&name)
        {
            self.settle(at, name, address, first);
        }
    }

    /// The address of an endpoint that is attached to the same daemon.
    fn own_host(&self, name: &Name) -> Option<EndpointAddress> {
        self.nics.contains(&name.nic).then_some(EndpointAddress { domain: name.domain, endpoint: INDEX })
    }

    fn settle(&mut self, at: usize, name: Name, address: EndpointAddress, first: usize) {
        if self.places.len() <= at {
            self.places.resize(at + 1, None);
        }
        self.places[at] = Some(address);
        self.by_name.insert(name, address);
        self.hub().name_source(address, first as u64);
    }

    /// Where an address of the address vector is, if it was found before.
    #[inline]
    pub(crate) fn place(&self, at: usize) -> Option<EndpointAddress> {
        self.places.get(at).copied().flatten()
    }

    /// Looks for an endpoint of another host.
    pub(crate) fn look_for(&mut self, at: usize, name: Name, first: usize) -> Result<EndpointAddress, Errno> {
        let found = match (self.own_host(&name), name.number, self.by_name.get(&name)) {
            (Some(address), _, _) | (None, _, Some(&address)) => address,
            (None, None, None) => return Err(Errno::HOSTUNREACH),
            (None, Some(number), None) => self.domain.mx_connect(name.nic, u32::from(number), MX_KEY)?,
        };
        self.settle(at, name, found, first);
        Ok(found)
    }

    /// Sends a message of the client's that has no end of its own for the program.
    pub(crate) fn send_short(&mut self, to: EndpointAddress, head: &Head, token: u64) -> Result<bool, Errno> {
        if self.domain.inject(INDEX, to, head.tag, head.body()) {
            return Ok(true);
        }
        self.hub().eager += 1;
        let buffer = Buffer::from(head.body().to_vec());
        self.post(to, head.tag, buffer, token | EAGER, false).map(|()| false)
    }

    /// Hands a message to the client library.
    pub(crate) fn post(
        &mut self,
        to: EndpointAddress,
        tag: u64,
        buffer: Buffer,
        token: u64,
        sync: bool,
    ) -> Result<(), Errno> {
        let message = Message { token: Token::new(token), from: INDEX, to, tag, buffer, sync };
        self.domain.post(message).map_err(|(refusal, _)| {
            if token & EAGER != 0 {
                self.hub().eager -= 1;
            }
            refusal.into()
        })
    }

    /// Sends all answers that wait. Nobody hears of those that cannot be sent: who asked is gone.
    #[inline]
    pub(crate) fn answer_all(&mut self) {
        while let Some(reply) = self.hub().outbox.pop_front() {
            let _ = self.answer(reply);
        }
        if !self.hub().asked.is_empty() {
            self.note_asked();
        }
    }

    /// Reports are to say what had to be asked for.
    #[cold]
    fn note_asked(&mut self) {
        for (peer, reason) in std::mem::take(&mut self.hub().asked) {
            self.domain.note_asked(peer, reason);
        }
    }

    #[cold]
    fn answer(&mut self, reply: Reply) -> Result<(), Errno> {
        let Reply { to, request, answer } = reply;
        let mut head = Head::new(Kind::Reply, request);
        match answer {
            Answer::Done => {}
            Answer::Refused(errno) => {
                head.tag |= WIDE;
                head.word(errno.0 as u64);
            }
            Answer::Bytes(bytes) if bytes.len() <= head.room() => head.payload(bytes.len()).copy_from_slice(&bytes),
            Answer::Bytes(bytes) => {
                head.tag |= BULK;
                self.send_short(to, &head, ASIDE)?;
                self.hub().eager += 1;
                return self.post(to, Kind::Bulk.bits(), bytes.into(), ASIDE | EAGER, false);
            }
            Answer::Region(region, place) => {
                // SAFETY: the place is in a region that is registered for reading by others, and that stays registered while
                // `region` is held, which the operation below does until the buffer is given back.
                let buffer = unsafe { Buffer::lent(place.start, place.len) };
                if place.len <= head.room() {
                    head.payload(place.len).copy_from_slice(buffer.as_slice());
                } else {
                    head.tag |= BULK;
                    self.send_short(to, &head, ASIDE)?;
                    let op = self.hub().ops.insert(Op::Serve { region, to: to.domain });
                    let posted = self.post(to, Kind::Bulk.bits(), buffer, op.bits(), false);
                    if posted.is_err() {
                        self.hub().ops.take(op);
                    }
                    return posted;
                }
            }
        }
        self.send_short(to, &head, ASIDE).map(drop)
    }

    /// Brings a held message to a receive.
    pub(crate) fn give(&mut self, held: Held, receive: Receive) {
        let Held { meta, body, .. } = held;
        match body {
            Body::Whole(bytes) => {
                // It was acknowledged when it arrived.
                let meta = crate::engine::receive::Meta { acknowledge: None, ..meta };
                self.hub().fill(&receive, &meta, &bytes);
            }
            Body::Coming => self.hub().expect(meta.peer, Op::Receive { receive, meta }),
            Body::Arriving => {
                let op = self.hub().ops.insert(Op::Receive { receive, meta });
                self.hub().peers[meta.peer as usize].arriving = Some(Expected::To(op));
            }
            Body::Announced(message) => {
                // SAFETY: the program lent the memory with the receive, until that is over.
                let buffer = unsafe { receive.into.lend(true) };
                let op = self.hub().ops.insert(Op::Receive { receive, meta });
                self.domain.give(Posted { token: Token::new(op.bits()), buffer }, message);
            }
        }
    }

    /// Has done with a held message that nobody wants.
    pub(crate) fn discard(&mut self, held: &Held) {
        let peer = held.meta.peer as usize;
        match &held.body {
            Body::Whole(_) => {}
            Body::Coming => self.hub().peers[peer].expected = Some(Expected::Nowhere),
            Body::Arriving => self.hub().peers[peer].arriving = Some(Expected::Nowhere),
            Body::Announced(message) => {
                debug_assert!(matches!(message.state, UnexpectedState::Announced(_)), "the others are not kept so");
                self.domain.consume(message);
            }
        }
    }

    /// Posts a receive: for one message, or for as many as there is room for.
    pub(crate) fn receive(&mut self, lane: Lane, filter: Filter, mut receive: Receive, multi: bool) {
        if !multi {
            match self.hub().holding.take(lane, &filter) {
                Some(held) => self.give(held, receive),
                None => self.hub().post(lane, filter, receive),
            }
            return;
        }
        self.hub().receives.make_multi(&mut receive);
        let (context, tell) = (receive.context, receive.tell);
        while let Some(id) = receive.multi
            && let Some(held) = self.hub().holding.take(lane, &filter)
        {
            let Some((part, spent)) = self.hub().receives.part_of(id, context, tell, held.meta.len) else { return };
            self.give(held, part);
            if spent {
                return;
            }
        }
        self.hub().receives.post(lane, filter, receive);
    }

    /// True while something of a region is under way to or from it.
    pub(crate) fn uses(&self, region: &Arc<crate::engine::regions::Region>) -> bool {
        self.domain.matcher().ops.any(|op| match op {
            Op::Serve { region: used, .. } => Arc::ptr_eq(used, region),
            Op::Deposit(deposit) => Arc::ptr_eq(&deposit.region, region),
            _ => false,
        })
    }

    /// Lets go of a region whatever is under way.
    pub(crate) fn disown(&mut self, region: &Arc<crate::engine::regions::Region>) {
        let hub = self.domain.matcher();
        let to = hub.ops.those(|op| match op {
            Op::Serve { region: used, .. } => Arc::ptr_eq(used, region),
            Op::Deposit(deposit) => Arc::ptr_eq(&deposit.region, region),
            _ => false,
        });
        for id in to {
            let peer = match self.hub().ops.take(id) {
                Some(Op::Serve { to, .. }) => to,
                Some(Op::Deposit(deposit)) => self.hub().peers[deposit.peer as usize].address.domain,
                _ => continue,
            };
            self.domain.disown(peer);
        }
    }
}

/// Attaches. A name that the environment gives can only be the first endpoint's.
fn attach(options: &Options, regions: Arc<Regions>) -> Result<Domain<Hub>, Errno> {
    match Domain::attach_matching(options, Hub::new(Arc::clone(&regions))) {
        Err(error) if error.reason() == Some(Reason::NameTaken) => {
            let nameless = Options { name: None, ..options.clone() };
            Ok(Domain::attach_matching(&nameless, Hub::new(regions))?)
        }
        attached => Ok(attached?),
    }
}
