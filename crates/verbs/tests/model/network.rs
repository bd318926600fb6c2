//! Engines with their programs, and the transport between them: in order for each direction, but as slow as the caller wants.
//!
//! A packet waits in its link until [`Network::deliver`]. A payload that is long is taken by [`Network::copy`], in any order; and the
//! sender learns that its bytes are needed no more by [`Network::confirm`], in any order.

use crate::memory::Program;
use isthmus_layout::{DomainId, EndpointAddress, EndpointIndex};
use isthmus_verbs::{Access, Engine, Key, Memory, PAYLOAD_TAG, Payload, PayloadTarget, Pd, SHORT_BYTES_MAX, Transmit};
use std::collections::{BTreeMap, VecDeque};

/// The bytes of a payload on their way.
#[derive(Debug)]
enum Load {
    Bytes(Vec<u8>),
    /// A range of the sender's memory, by its place in [`Network::lent`].
    Borrowed(usize),
}

#[derive(Debug)]
struct Message {
    tag: u64,
    body: Load,
    len: u64,
    /// The token that the sender is given, once the message is over.
    token: u64,
}

/// A range of a program's memory that the transport may read.
#[derive(Debug)]
struct Borrowed {
    node: usize,
    to: DomainId,
    addr: u64,
    len: u64,
    /// The bytes, since the range was released.
    copied: Option<Vec<u8>>,
    over: bool,
}

/// A payload that has arrived, and is not in its place yet.
#[derive(Debug)]
struct Arriving {
    node: usize,
    from: usize,
    target: PayloadTarget,
    message: Message,
}

/// An open device and its program.
pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) program: Program,
    /// A protection domain, and the key of the whole program in it.
    pub(crate) pd: Pd,
    pub(crate) key: Key,
    /// Where the next buffer begins.
    unused: u64,
    gone: bool,
}

impl Node {
    /// Returns the address of `len` bytes that no test has used, with 8 bytes between them and the next ones.
    pub(crate) fn take(&mut self, len: u64, rights: u8) -> u64 {
        let addr = self.unused.next_multiple_of(8);
        self.unused = addr + len + 8;
        self.program.allow(addr, len, rights);
        addr
    }
}

pub(crate) struct Network {
    pub(crate) nodes: Vec<Node>,
    links: BTreeMap<(usize, usize), VecDeque<Message>>,
    lent: Vec<Borrowed>,
    arriving: Vec<Arriving>,
    unconfirmed: Vec<(usize, u64)>,
    now_ns: u64,
}

pub(crate) fn domain(node: usize) -> DomainId {
    DomainId::new(node as u32 + 1).expect("not zero")
}

pub(crate) fn address(node: usize) -> EndpointAddress {
    EndpointAddress { domain: domain(node), endpoint: EndpointIndex::new(0).expect("below the limit") }
}

impl Network {
    pub(crate) fn new(nodes: usize, seed: u64) -> Self {
        let node = |at: usize| {
            let mut engine = Engine::new(seed ^ at as u64);
            engine.add_numbers((at as u32 + 1) * 256..(at as u32 + 2) * 256);
            let program = Program::new((at as u64 + 1) << 24, 1 << 20);
            let (addr, len) = program.whole();
            let pd = engine.alloc_pd().expect("a protection domain");
            let key = engine.register(pd, addr, len, addr, Access::all()).expect("a region");
            Node { engine, program, pd, key, unused: addr, gone: false }
        };
        Self {
            nodes: (0..nodes).map(node).collect(),
            links: BTreeMap::new(),
            lent: Vec::new(),
            arriving: Vec::new(),
            unconfirmed: Vec::new(),
            now_ns: 0,
        }
    }

    /// Calls an engine, and does what has to be done after each call.
    pub(crate) fn call<T>(&mut self, node: usize, call: impl FnOnce(&mut Engine, &mut Program) -> T) -> T {
        let Node { engine, program, .. } = &mut self.nodes[node];
        let result = call(engine, program);
        for to in engine.take_released() {
            let lent = self.lent.iter_mut().filter(|lent| lent.node == node && lent.to == to && !lent.over);
            for lent in lent.filter(|lent| lent.copied.is_none()) {
                let mut bytes = vec![0; lent.len as usize];
                program.read(lent.addr, &mut bytes);
                lent.copied = Some(bytes);
            }
        }
        let Node { engine, .. } = &self.nodes[node];
        for arriving in self.arriving.iter_mut().filter(|arriving| arriving.node == node) {
            let token = token(arriving.target);
            if token.is_some_and(|token| !engine.wants_payload(token)) {
                arriving.target = PayloadTarget::Discard;
            }
        }
        result
    }

    /// True if the transport may read a range of a program.
    pub(crate) fn is_lent(&self, node: usize, addr: u64, len: u64) -> bool {
        let open = self.lent.iter().filter(|lent| lent.node == node && !lent.over && lent.copied.is_none());
        open.into_iter().any(|lent| lent.addr < addr + len && addr < lent.addr + lent.len)
    }

    /// True if the transport may write a range of a program.
    pub(crate) fn is_arriving(&self, node: usize, addr: u64, len: u64) -> bool {
        self.arriving.iter().any(|arriving| match arriving.target {
            PayloadTarget::Range { addr: at, .. } => {
                arriving.node == node && at < addr + len && addr < at + arriving.message.len
            }
            _ => false,
        })
    }

    /// Takes one packet from an engine, or an acknowledgement. False if there is none.
    pub(crate) fn send(&mut self, node: usize, late: bool) -> bool {
        let mut body = [0; SHORT_BYTES_MAX];
        if let Some(transmit) = self.call(node, |engine, program| engine.next_outgoing(program, &mut body)) {
            self.enqueue(node, &transmit, &body);
            return true;
        }
        let Some((to, tag, token)) = self.call(node, |engine, _| engine.next_ack()) else { return false };
        let token = if late && token != 0 { token } else { 0 };
        if token != 0 {
            self.call(node, |engine, _| engine.ack_queued(token));
        }
        self.push(node, to, Message { tag, body: Load::Bytes(Vec::new()), len: 0, token });
        true
    }

    fn enqueue(&mut self, node: usize, transmit: &Transmit, body: &[u8; SHORT_BYTES_MAX]) {
        let Transmit { to, tag, len, token, payload } = transmit;
        let last = if payload.is_some() { 0 } else { *token };
        let bytes = body[..*len].to_vec();
        self.push(node, *to, Message { tag: *tag, body: Load::Bytes(bytes), len: *len as u64, token: last });
        let (body, len) = match payload {
            None => return,
            Some(Payload::Bytes(bytes)) => (Load::Bytes(bytes.clone()), bytes.len() as u64),
            Some(Payload::Range { addr, len }) => {
                let (to, addr, len) = (to.domain, *addr, *len);
                self.lent.push(Borrowed { node, to, addr, len, copied: None, over: false });
                (Load::Borrowed(self.lent.len() - 1), len)
            }
        };
        self.push(node, *to, Message { tag: PAYLOAD_TAG, body, len, token: *token });
    }

    fn push(&mut self, node: usize, to: EndpointAddress, message: Message) {
        let to = to.domain.number() as usize - 1;
        if self.nodes[to].gone {
            return self.end(node, &message);
        }
        self.links.entry((node, to)).or_default().push_back(message);
    }

    /// The message needs its bytes no more.
    fn end(&mut self, from: usize, message: &Message) {
        if let Load::Borrowed(at) = message.body {
            self.lent[at].over = true;
        }
        if message.token != 0 {
            self.unconfirmed.push((from, message.token));
        }
    }

    fn bytes(&self, from: usize, message: &Message) -> Vec<u8> {
        match &message.body {
            Load::Bytes(bytes) => bytes.clone(),
            Load::Borrowed(at) => self.lent[*at].copied.clone().unwrap_or_else(|| {
                let mut bytes = vec![0; message.len as usize];
                self.nodes[from].program.read(self.lent[*at].addr, &mut bytes);
                bytes
            }),
        }
    }

    /// Delivers the next message of one of the links. False if there is none.
    pub(crate) fn deliver(&mut self, choice: usize) -> bool {
        let waiting: Vec<_> = self.links.iter().filter(|(_, link)| !link.is_empty()).map(|(ends, _)| *ends).collect();
        let Some((from, node)) = waiting.get(choice % waiting.len().max(1)).copied() else { return false };
        let Some(message) = self.links.get_mut(&(from, node)).and_then(VecDeque::pop_front) else { return false };
        let peer = address(from);
        if message.tag == PAYLOAD_TAG && (message.len > SHORT_BYTES_MAX as u64 || choice.is_multiple_of(3)) {
            let target = self.call(node, |engine, _| engine.payload_target(peer, message.len));
            if target != PayloadTarget::Discard {
                self.arriving.push(Arriving { node, from, target, message });
                return true;
            }
        } else {
            let bytes = self.bytes(from, &message);
            self.call(node, |engine, program| engine.receive(peer, message.tag, &bytes, program));
        }
        self.end(from, &message);
        true
    }

    /// Puts one of the payloads that have arrived in its place. False if there is none.
    pub(crate) fn copy(&mut self, choice: usize) -> bool {
        if self.arriving.is_empty() {
            return false;
        }
        let Arriving { node, from, target, message } = self.arriving.remove(choice % self.arriving.len());
        let bytes = self.bytes(from, &message);
        match target {
            PayloadTarget::Range { addr, token } => self.call(node, |engine, program| {
                program.write(addr, &bytes);
                engine.payload_received(token, None, program);
            }),
            PayloadTarget::Collect { token } => {
                self.call(node, |engine, program| engine.payload_received(token, Some(&bytes), program));
            }
            PayloadTarget::Discard => {}
        }
        self.end(from, &message);
        true
    }

    /// Tells one sender that a message is over. False if there is none to tell.
    pub(crate) fn confirm(&mut self, choice: usize) -> bool {
        if self.unconfirmed.is_empty() {
            return false;
        }
        let (node, token) = self.unconfirmed.remove(choice % self.unconfirmed.len());
        self.call(node, |engine, _| engine.sent(token));
        true
    }

    /// Time passes.
    pub(crate) fn tick(&mut self, length_ns: u64) {
        self.now_ns += length_ns;
        for node in 0..self.nodes.len() {
            let now_ns = self.now_ns;
            self.call(node, |engine, _| engine.tick(now_ns));
        }
    }

    /// A program ends. Payloads that it had lent are lost. The transport of each peer fails what was under way, and then reports the end.
    pub(crate) fn kill(&mut self, gone: usize) {
        self.nodes[gone].gone = true;
        let mut messages = Vec::new();
        for ((from, to), link) in &mut self.links {
            if *from == gone || *to == gone {
                messages.extend(link.drain(..).map(|message| (*from, message)));
            }
        }
        let (lost, arriving): (Vec<_>, Vec<_>) = std::mem::take(&mut self.arriving)
            .into_iter()
            .partition(|arriving| arriving.node == gone || arriving.from == gone);
        self.arriving = arriving;
        let mut failed: Vec<_> =
            lost.iter().filter_map(|arriving| Some((arriving.node, token(arriving.target)?))).collect();
        messages.extend(lost.into_iter().map(|arriving| (arriving.from, arriving.message)));
        for (from, message) in messages {
            if let Load::Borrowed(at) = message.body {
                self.lent[at].over = true;
            }
            failed.extend((message.token != 0).then_some((from, message.token)));
        }
        for (node, token) in failed.into_iter().filter(|(node, _)| *node != gone) {
            self.call(node, |engine, _| engine.failed(token, true));
        }
        for node in 0..self.nodes.len() {
            if node != gone {
                self.call(node, |engine, _| engine.peer_gone(domain(gone)));
            }
        }
    }

    /// Everything that is under way comes to its end, without time passing. False if nothing was under way.
    pub(crate) fn settle(&mut self) -> bool {
        let mut any = false;
        for _ in 0..100_000 {
            let mut more = false;
            for node in 0..self.nodes.len() {
                more |= !self.nodes[node].gone && self.send(node, false);
            }
            more |= self.deliver(1) | self.copy(0) | self.confirm(0);
            if !more {
                return any;
            }
            any = true;
        }
        panic!("the engines never come to rest");
    }

    pub(crate) fn is_gone(&self, node: usize) -> bool {
        self.nodes[node].gone
    }
}

fn token(target: PayloadTarget) -> Option<u64> {
    match target {
        PayloadTarget::Range { token, .. } | PayloadTarget::Collect { token } => Some(token),
        PayloadTarget::Discard => None,
    }
}
