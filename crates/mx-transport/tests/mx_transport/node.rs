//! An MX transport with its library, and how their network is set up.

use crate::behaviour::PeerBehaviour;
use crate::model_library::ModelLibrary;
use crate::random::Random;
use isthmus_layout::limits::DAEMON_PATH_CREDIT_BYTES;
use isthmus_layout::{EndpointIndex, NicId};
use isthmus_mx::net::{Address, EndpointSetup, EndpointTuning, PayloadRange, Time};
use isthmus_mx::wire::{self, Dialect, EndpointNumber, Header, PeerIndex, SessionId, Sizes};
use isthmus_mx_transport::MxTransport;

/// The maximum number of transports of a host.
pub(crate) const PER_HOST: usize = 2;

pub(crate) const KEY: u32 = 77;

/// The parameters that all nodes of a network share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkConfig {
    pub(crate) dialect: Dialect,
    pub(crate) sizes: Sizes,
    pub(crate) tuning: EndpointTuning,
    pub(crate) behaviour: PeerBehaviour,
}

impl NetworkConfig {
    /// Jumbo frames, and programs that look often.
    pub(crate) fn fine() -> Self {
        let tuning = EndpointTuning { resends_max: 20, ..EndpointTuning::default() };
        let sizes = Sizes::open_mx(9000).unwrap();
        Self { dialect: Dialect::OPEN_MX, sizes, tuning, behaviour: PeerBehaviour::EAGER }
    }
}

/// One life of an endpoint.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) number: usize,
    pub(crate) session: SessionId,
    pub(crate) transport: MxTransport,
    pub(crate) library: ModelLibrary,
    /// Packets that were skipped because their bytes were released before the send.
    pub(crate) skipped: u64,
    pub(crate) requests: u64,
}

/// Where transport `number` of the simulation is.
pub(crate) fn address(number: usize) -> Address {
    let (host, endpoint) = (number / PER_HOST, number % PER_HOST);
    Address { peer: PeerIndex::new(host as u16).unwrap(), endpoint: EndpointNumber(endpoint as u8 + 1) }
}

pub(crate) fn nic(host: usize) -> NicId {
    NicId::from_octets([2, 0, 0, 0, 0, host as u8])
}

impl Node {
    pub(crate) fn new(number: usize, session: u32, config: &NetworkConfig, seed: u64) -> Self {
        let setup = EndpointSetup {
            dialect: config.dialect,
            sizes: config.sizes,
            number: address(number).endpoint,
            session: SessionId(session),
            key: KEY,
            secret: Random::new(seed ^ u64::from(session)).next() as u32,
            tuning: config.tuning,
        };
        let transport = MxTransport::new(setup, EndpointIndex::new(3).unwrap(), DAEMON_PATH_CREDIT_BYTES);
        let library = ModelLibrary::new(number as u8, config.behaviour, seed.wrapping_mul(31) ^ u64::from(session));
        Self { number, session: SessionId(session), transport, library, skipped: 0, requests: 0 }
    }

    pub(crate) fn connect(&mut self, now: Time, to: Address, key: u32) -> u64 {
        self.requests += 1;
        self.transport.connect(now, to, key, self.requests, &mut self.library);
        self.requests
    }

    /// The next frame to send, and to which host.
    pub(crate) fn transmit(&mut self, now: Time, dialect: Dialect) -> Option<(usize, Vec<u8>)> {
        loop {
            let transmit = self.transport.transmit(now)?;
            let to = usize::from(transmit.to.number());
            let source = transmit.packet.data().copied();
            let bytes = match source {
                Some(source) => self.bytes(source),
                None => Some(Vec::new()),
            };
            let Some(bytes) = bytes else {
                self.skipped += 1;
                continue;
            };
            let host = self.number / PER_HOST;
            let header = Header { dst: nic(to), src: nic(host), peer_index: PeerIndex::new(host as u16) };
            let packet = transmit.packet.map(|_| bytes);
            let mut frame = vec![0; packet.parts(dialect).frame()];
            wire::emit(dialect, &header, &packet, &mut frame).unwrap();
            return Some((to, frame));
        }
    }

    fn bytes(&self, source: PayloadRange) -> Option<Vec<u8>> {
        let parts = self.transport.data(source)?;
        let mut bytes = vec![0; source.len as usize];
        let mut at = 0;
        for part in parts {
            part.copy_out(&mut bytes[at..at + part.len()]);
            at += part.len();
        }
        assert_eq!(at, bytes.len(), "the parts are the packet");
        Some(bytes)
    }
}
