//! Refusals of messages and connects. Any host can send one, so the partner is asked several times before anything ends.

use crate::host::address;
use crate::rules::{NOW, THEIRS, connected, events, reply, tiny};
use isthmus_mx::StatusCode;
use isthmus_mx::net::{Endpoint, EndpointEvent, Ignored, PayloadRange, SendId, SendMode, Time, nack_for};
use isthmus_mx::wire::{ConnectRequest, ConnectStatus, Dialect, Nack, NackLib, Packet, SeqNum};

/// An endpoint with a message in flight, in virtual time.
struct Sender {
    endpoint: Endpoint,
    now: Time,
}

impl Sender {
    fn begin() -> Self {
        let mut sender = Self { endpoint: connected(Dialect::OPEN_MX), now: NOW };
        sender.endpoint.send(NOW, address(1), SendId(1), 5, 4, SendMode::Standard).unwrap();
        assert!(matches!(sender.transmit(), Some(Packet::Tiny(_))));
        sender
    }

    fn transmit(&mut self) -> Option<Packet<PayloadRange>> {
        self.endpoint.transmit(self.now).map(|transmit| transmit.packet)
    }

    /// Transmits all that is due, and returns the connects among it.
    fn transmit_connects(&mut self) -> Vec<ConnectRequest> {
        let packets = std::iter::from_fn(|| self.transmit());
        packets.filter_map(|packet| if let Packet::ConnectRequest(body) = packet { Some(body) } else { None }).collect()
    }

    fn take(&mut self, packet: &Packet<&[u8]>) -> Result<(), Ignored> {
        self.endpoint.receive(self.now, address(1).peer, packet)
    }

    /// Receives a refusal, as any host can send it: number 0 refuses a connect.
    fn take_refusal(&mut self, lib_seqnum: SeqNum) -> Result<(), Ignored> {
        let (dst_endpoint, src_endpoint) = (address(0).endpoint, address(1).endpoint);
        let nack = NackLib { dst_endpoint, src_endpoint, nack_type: Nack::EndpointClosed, lib_seqnum };
        self.take(&Packet::NackLib(nack))
    }

    /// Advances to the next deadline.
    fn advance(&mut self) {
        self.now = self.endpoint.next_deadline().unwrap();
        self.endpoint.tick(self.now);
    }

    /// Advances until the next connect is sent.
    fn advance_to_connect(&mut self) -> ConnectRequest {
        loop {
            self.advance();
            assert_eq!(events(&mut self.endpoint), [], "the partner has not answered yet");
            if let [connect] = self.transmit_connects()[..] {
                return connect;
            }
        }
    }

    /// Replies to a connect as the partner, and acknowledges the message.
    fn finish(&mut self, asked: &ConnectRequest) {
        self.take(&reply(asked, THEIRS, SeqNum::from_bits(2), ConnectStatus::BadKey)).unwrap();
        self.take(&tiny(1, 2, b"hello")).unwrap();
        let sent = EndpointEvent::Sent { send: SendId(1), code: StatusCode::Success, xfer_length: 4 };
        assert_eq!(events(&mut self.endpoint)[0], sent);
    }
}

/// The partner's replies to two connects are lost, while refusals keep coming.
#[test]
fn forged_refusals_do_not_disconnect_while_replies_are_lost() {
    let mut sender = Sender::begin();
    sender.take_refusal(SeqNum::FIRST).unwrap();
    let [_lost] = sender.transmit_connects()[..] else { panic!("no connect") };
    for _ in 0..10 {
        sender.take_refusal(SeqNum::ZERO).unwrap();
    }
    let _lost = sender.advance_to_connect();
    for _ in 0..10 {
        sender.take_refusal(SeqNum::ZERO).unwrap();
    }
    let asked = sender.advance_to_connect();
    sender.take_refusal(SeqNum::ZERO).unwrap();
    sender.finish(&asked);
}

/// A full link delays the connect. A refusal that arrives before the connect has left refuses nothing.
#[test]
fn refusal_of_a_connect_that_was_not_sent_is_ignored() {
    let mut sender = Sender::begin();
    sender.take_refusal(SeqNum::FIRST).unwrap();
    assert_eq!(sender.take_refusal(SeqNum::ZERO), Err(Ignored::UnmatchedNack));
    sender.endpoint.tick(sender.now);
    assert_eq!(events(&mut sender.endpoint), []);
    let [asked] = sender.transmit_connects()[..] else { panic!("no connect") };
    sender.finish(&asked);
}

/// One refusal, and then silence for ten tries: a partner that is only late is still there.
#[test]
fn one_refusal_does_not_disconnect_a_silent_partner() {
    let mut sender = Sender::begin();
    sender.take_refusal(SeqNum::FIRST).unwrap();
    assert_eq!(sender.transmit_connects().len(), 1);
    sender.take_refusal(SeqNum::ZERO).unwrap();
    for _ in 0..9 {
        sender.advance_to_connect();
    }
    let asked = sender.advance_to_connect();
    sender.finish(&asked);
}

/// A partner that has closed refuses every packet.
#[test]
fn messages_to_a_closed_endpoint_fail() {
    let mut sender = Sender::begin();
    sender.endpoint.send(NOW, address(1), SendId(2), 5, 100_000, SendMode::Standard).unwrap();
    sender.take_refusal(SeqNum::FIRST).unwrap();
    let (mut connects, mut ended) = (0, Vec::new());
    while ended.is_empty() {
        while let Some(packet) = sender.transmit() {
            connects += u32::from(matches!(packet, Packet::ConnectRequest(_)));
            let Some(Packet::NackLib(nack)) = nack_for(&packet, Nack::EndpointClosed) else { panic!("{packet:?}") };
            sender.take(&Packet::NackLib(nack)).unwrap();
        }
        sender.advance();
        ended = events(&mut sender.endpoint);
    }
    ended.retain(|event| matches!(event, EndpointEvent::Sent { code: StatusCode::EndpointClosed, .. }));
    assert_eq!((ended.len(), connects), (2, 3));
    // Waits for a reply: 40, 80 and 160 ms.
    assert_eq!(sender.now.since_us(NOW), 280_000);
}
