//! The life of an adapter with a peer that sends anything: bytes decide what the peer, the program and the transport do.
//!
//! The memory of the program refuses every access outside of registered regions, and no request completes twice.

#[path = "../model/memory.rs"]
mod memory;

use isthmus_layout::{DomainId, EndpointAddress, EndpointIndex};
use isthmus_verbs::{
    Access, AddressVector, AtomicOperation, AttributeMask, Attributes, Cq, Engine, Found, Gid, Key, Memory, Operation,
    Payload, PayloadTarget, Pd, QpInit, QpNumber, QpState, QpType, ReceiveRequest, SHORT_BYTES_MAX, SendFlags,
    SendRequest, Sge, Srq,
};
use memory::{Program, READ, WRITE};
use std::collections::BTreeSet;

const BASE: u64 = 1 << 20;
const Q_KEY: u32 = 0x1234;

/// The bytes that decide. Zeroes follow.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }
}

struct Life {
    engine: Engine,
    program: Program,
    pd: Pd,
    cq: Cq,
    srq: Srq,
    /// Keys of regions, those that are gone among them.
    keys: Vec<Key>,
    /// The regions that there are: key, address and length.
    regions: Vec<(Key, u64, u64)>,
    qps: Vec<(QpNumber, QpType, bool)>,
    unconfirmed: Vec<u64>,
    arriving: Vec<(PayloadTarget, u64)>,
    wr_id: u64,
    posted: BTreeSet<u64>,
    now_ns: u64,
}

fn peer(number: u8) -> EndpointAddress {
    let domain = DomainId::new(u32::from(number % 3) + 1).expect("not zero");
    EndpointAddress { domain, endpoint: EndpointIndex::new(0).expect("below the limit") }
}

/// Lives as the bytes say.
pub(crate) fn live(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let mut life = Life::new();
    while !bytes.0.is_empty() {
        life.step(&mut bytes);
        life.release();
    }
    life.end();
}

impl Life {
    fn new() -> Self {
        let mut engine = Engine::new(5);
        engine.add_numbers(256..512);
        let pd = engine.alloc_pd().expect("room");
        let cq = engine.create_cq(1 << 16).expect("room");
        let srq = engine.create_srq(pd, 16, 4).expect("room");
        let mut life = Self {
            regions: Vec::new(),
            engine,
            program: Program::new(BASE, 8192),
            pd,
            cq,
            srq,
            keys: Vec::new(),
            qps: Vec::new(),
            unconfirmed: Vec::new(),
            arriving: Vec::new(),
            wr_id: 0,
            posted: BTreeSet::new(),
            now_ns: 0,
        };
        life.register(1024, 2048, Access::all());
        life.register(4096, 1024, Access::LOCAL_WRITE | Access::REMOTE_READ);
        for (kind, shared) in
            [(QpType::Rc, false), (QpType::Uc, false), (QpType::Ud, false), (QpType::Rc, true), (QpType::Rc, true)]
        {
            life.create(kind, shared);
        }
        life
    }

    fn register(&mut self, offset: u64, len: u64, access: Access) {
        let addr = BASE + offset;
        let key = self.engine.register(self.pd, addr, len, addr, access).expect("a region");
        self.keys.insert(0, key);
        self.regions.push((key, addr, len));
        self.program.allow(addr, len, READ | WRITE);
    }

    fn deregister(&mut self, key: Key) {
        if self.engine.deregister(key).is_ok() {
            self.regions.retain(|(of, _, _)| *of != key);
            self.program.allow(BASE, 8192, 0);
            for (_, addr, len) in &self.regions {
                self.program.allow(*addr, *len, READ | WRITE);
            }
        }
    }

    fn create(&mut self, kind: QpType, shared: bool) {
        let init = QpInit {
            kind,
            pd: self.pd,
            send_cq: self.cq,
            receive_cq: self.cq,
            srq: shared.then_some(self.srq),
            signal_all: false,
            sends_max: 8,
            receives_max: 8,
            send_sges_max: 4,
            receive_sges_max: 4,
            inline_max: 64,
        };
        let Ok((number, _)) = self.engine.create_qp(&init) else { return };
        self.qps.push((number, kind, shared));
        self.connect(self.qps.len() - 1);
    }

    fn connect(&mut self, at: usize) {
        use AttributeMask as M;
        let (number, kind, _) = self.qps[at];
        let mut attributes = Attributes {
            access: Access::all(),
            q_key: Q_KEY,
            destination: number,
            retry_count: 2,
            rnr_retry: 2,
            reads_max: 3,
            reads_served_max: 3,
            timeout: 5,
            ..Attributes::default()
        };
        let (uc, rc) = (M::ADDRESS | M::PATH_MTU | M::DESTINATION | M::RECEIVE_PSN, M::READS_SERVED_MAX | M::RNR_TIMER);
        let retry = M::TIMEOUT | M::RETRY_COUNT | M::RNR_RETRY | M::READS_MAX;
        let begin = M::P_KEY_INDEX | M::PORT;
        let masks = match kind {
            QpType::Rc => [begin | M::ACCESS, uc | rc, M::SEND_PSN | retry],
            QpType::Uc => [begin | M::ACCESS, uc, M::SEND_PSN],
            QpType::Ud => [begin | M::Q_KEY, M::empty(), M::SEND_PSN],
        };
        let states = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
        // Some have to look their peer up again.
        let device = (number.0 % 4 != 3).then(|| peer(0));
        for (state, mask) in states.into_iter().zip(masks) {
            attributes.state = state;
            let _ = self.engine.modify_qp(number, &attributes, mask | M::STATE, device);
            if device.is_none() && state == QpState::ReadyToReceive {
                self.engine.looked_up(number, Found::Unknown);
            }
        }
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.byte() % 16 {
            0..=6 => self.packet(bytes),
            7 | 8 => self.payload(bytes),
            9 => self.arrive(bytes),
            10 | 11 => self.post(bytes),
            12 => self.transmit(bytes),
            13 => self.confirm(bytes),
            14 => self.poll(),
            _ => self.change(bytes),
        }
    }

    fn packet(&mut self, bytes: &mut Bytes<'_>) {
        let kind = u64::from(bytes.byte() % 10);
        let parameter = u64::from(bytes.choose(&[0_u16, 0x10, 0x50, 0x51, 0x33, 1, 2, 7, 0x2c, 0xff, 0x151]));
        let parameter = parameter ^ u64::from(bytes.byte() & 0x80);
        let count = u64::from(bytes.choose(&[0_u32, 0, 0, 1, 2, 5, 0xff_ffff, 0x80_0000]));
        let number = match bytes.byte() % 16 {
            0 => bytes.word() & 0xff_ffff,
            at => self.qps[usize::from(at) % self.qps.len()].0.0,
        };
        let tag = kind << 60 | parameter << 48 | count << 24 | u64::from(number);
        let mut body = Vec::new();
        for _ in 0..bytes.byte() % 16 {
            let word = match bytes.byte() % 8 {
                0 => bytes.word(),
                1 => bytes.choose(&self.keys).0,
                2 => BASE as u32 + u32::from(bytes.byte()) * 32,
                3 => u32::from(bytes.byte()),
                4 => Q_KEY,
                5 => 256 + u32::from(bytes.byte()),
                _ => 0,
            };
            body.extend(word.to_le_bytes());
        }
        let from = peer(bytes.byte() / 100);
        self.engine.receive(from, tag, &body, &mut self.program);
    }

    fn payload(&mut self, bytes: &mut Bytes<'_>) {
        let len = match bytes.byte() {
            0 => u64::from(bytes.word()) << 8,
            len => u64::from(len - 1),
        };
        let target = self.engine.payload_target(peer(bytes.byte() / 100), len);
        if target != PayloadTarget::Discard {
            assert!(len <= 8192, "a payload that no request can hold is wanted");
            self.arriving.push((target, len));
        }
    }

    /// A payload, or a part of it, arrives.
    fn arrive(&mut self, bytes: &mut Bytes<'_>) {
        if self.arriving.is_empty() {
            return;
        }
        let (target, len) = self.arriving.swap_remove(usize::from(bytes.byte()) % self.arriving.len());
        let data = vec![bytes.byte(); len as usize];
        match target {
            PayloadTarget::Range { addr, token } => {
                self.program.write(addr, &data);
                self.engine.payload_received(token, None, &mut self.program);
            }
            PayloadTarget::Collect { token } => {
                self.engine.payload_received(token, Some(&data), &mut self.program);
            }
            PayloadTarget::Discard => {}
        }
    }

    fn post(&mut self, bytes: &mut Bytes<'_>) {
        self.wr_id += 1;
        let wr_id = self.wr_id;
        let (number, kind, shared) = bytes.choose(&self.qps);
        let sge = |bytes: &mut Bytes<'_>, key: Key| Sge {
            addr: BASE + 1024 + u64::from(bytes.byte()) * 8,
            len: u32::from(bytes.byte()) * 2,
            lkey: key.0,
        };
        let mut sges: Vec<_> = (0..bytes.byte() % 3)
            .map(|_| {
                let key = bytes.choose(&self.keys);
                sge(bytes, key)
            })
            .collect();
        if bytes.byte().is_multiple_of(2) {
            let request = ReceiveRequest { wr_id, sges: &sges };
            let result = match shared {
                true => self.engine.post_srq_receive(self.srq, &request),
                false => self.engine.post_receive(number, &request),
            };
            self.posted.extend(result.is_ok().then_some(wr_id));
            return;
        }
        let (remote_addr, rkey) = (BASE, Key(bytes.word()));
        let operation = match bytes.byte() % 4 {
            0 => Operation::Send { immediate: None },
            1 => Operation::Write { remote_addr, rkey, immediate: Some(1) },
            2 => Operation::Read { remote_addr, rkey },
            _ => Operation::Atomic { remote_addr, rkey, atomic: AtomicOperation::FetchAdd(1) },
        };
        let address = AddressVector::default();
        self.engine.add_route(Gid::default(), number, Some(peer(bytes.byte())));
        let datagram = (kind == QpType::Ud).then_some((address, number, Q_KEY));
        let flags = SendFlags::from_bits_truncate(u32::from(bytes.byte() & 7)) | SendFlags::SIGNALED;
        if flags.contains(SendFlags::INLINE) {
            // The program's own mistake would be none of the peer's.
            sges.clear();
        }
        let request = SendRequest { wr_id, operation, flags, sges: &sges, datagram };
        let result = self.engine.post_send(number, &request, &self.program);
        self.posted.extend(result.is_ok().then_some(wr_id));
    }

    fn transmit(&mut self, bytes: &mut Bytes<'_>) {
        for _ in 0..bytes.byte() % 8 {
            let mut body = [0; SHORT_BYTES_MAX];
            if let Some(transmit) = self.engine.next_outgoing(&self.program, &mut body) {
                assert!(transmit.len <= SHORT_BYTES_MAX);
                if let Some(Payload::Range { addr, len }) = transmit.payload {
                    self.program.read(addr, &mut vec![0; len as usize]);
                }
                self.unconfirmed.push(transmit.token);
            } else if let Some((_, _, token)) = self.engine.next_ack() {
                self.engine.ack_queued(token);
                self.unconfirmed.push(token);
            }
        }
    }

    fn confirm(&mut self, bytes: &mut Bytes<'_>) {
        for _ in 0..bytes.byte() % 8 {
            if self.unconfirmed.is_empty() {
                return;
            }
            let token = self.unconfirmed.swap_remove(usize::from(bytes.byte()) % self.unconfirmed.len());
            self.engine.sent(token);
        }
    }

    fn poll(&mut self) {
        while let Some(completion) = self.engine.poll(self.cq) {
            assert!(self.posted.remove(&completion.wr_id), "{completion:?} of no request, or again");
        }
    }

    fn change(&mut self, bytes: &mut Bytes<'_>) {
        let at = usize::from(bytes.byte()) % self.qps.len();
        let (number, kind, shared) = self.qps[at];
        match bytes.byte() % 8 {
            0 => self.now_ns += u64::from(bytes.word()) * 1000,
            1 => self.deregister(bytes.choose(&self.keys)),
            2 => {
                self.keys.truncate(8);
                self.register(1024, 2048, Access::all());
            }
            3 => self.engine.peer_gone(peer(bytes.byte()).domain),
            4 => {
                self.engine.destroy_qp(number).expect("a queue pair");
                self.qps.remove(at);
                self.create(kind, shared);
                if self.qps.is_empty() {
                    self.create(QpType::Rc, false);
                }
            }
            code => {
                let states =
                    [QpState::Reset, QpState::Error, QpState::SendQueueDrained, QpState::ReadyToSend, QpState::Reset];
                let attributes = Attributes { state: states[usize::from(code) % 5], ..Attributes::default() };
                let _ = self.engine.modify_qp(number, &attributes, AttributeMask::STATE, None);
                self.connect(at);
            }
        }
        self.engine.tick(self.now_ns);
        while let Some(due) = self.engine.next_look_up() {
            let is_there = (self.now_ns / 1000).is_multiple_of(2);
            self.engine.looked_up(due.qp, if is_there { Found::Device(peer(0)) } else { Found::Unknown });
        }
    }

    /// The duties of a caller after each call.
    fn release(&mut self) {
        self.engine.take_released();
        let engine = &self.engine;
        self.arriving.retain(|(target, _)| match target {
            PayloadTarget::Range { token, .. } | PayloadTarget::Collect { token } => engine.wants_payload(*token),
            PayloadTarget::Discard => false,
        });
    }

    /// The packets come to an end, and so do the requests.
    fn end(&mut self) {
        let mut body = [0; SHORT_BYTES_MAX];
        let outgoing = std::iter::from_fn(|| self.engine.next_outgoing(&self.program, &mut body)).count();
        assert!(outgoing <= self.qps.len() * (256 + 8 + 1), "{outgoing} packets");
        let acknowledgements = std::iter::from_fn(|| self.engine.next_ack()).count();
        assert!(acknowledgements <= 4096 + self.qps.len(), "{acknowledgements} acknowledgements");
        for (number, _, _) in self.qps.clone() {
            let attributes = Attributes { state: QpState::Error, ..Attributes::default() };
            self.engine.modify_qp(number, &attributes, AttributeMask::STATE, None).expect("from any state");
        }
        self.poll();
    }
}
