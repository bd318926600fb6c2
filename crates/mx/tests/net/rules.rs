//! Single rules of the protocol, packet by packet, against a scripted peer.

use crate::host::HostConfig;
use crate::host::address;
use crate::simulation::Simulation;
use crate::wire::NetConditions;
use isthmus_mx::StatusCode;
use isthmus_mx::net::{
    ConnectId, Endpoint, EndpointEvent, EndpointSendError, EndpointSetup, EndpointTuning, Ignored, PayloadRange,
    SendId, SendMode, Time,
};
use isthmus_mx::wire::{
    ConnectReply, ConnectRequest, ConnectStatus, Dialect, Eager, EndpointNumber, Liback, MessageHead, Nack, NackLib,
    Notify, Packet, Pull, PullHandle, PullReply, Rndv, SeqNum, SessionId, Sizes,
};
use std::collections::{BTreeMap, BTreeSet};

const OURS: SessionId = SessionId(0x5566_7788);
pub(crate) const THEIRS: SessionId = SessionId(0x1122_3344);
pub(crate) const NOW: Time = Time::from_us(1000);

fn endpoint(dialect: Dialect) -> Endpoint {
    let (number, session, tuning) = (address(0).endpoint, OURS, EndpointTuning::DEFAULT);
    Endpoint::new(EndpointSetup { dialect, sizes: Sizes::MX, number, session, key: 77, secret: 0x1234_5678, tuning })
}

fn request(session: SessionId, key: u32, start: SeqNum) -> Packet<&'static [u8]> {
    Packet::ConnectRequest(ConnectRequest {
        dst_endpoint: address(0).endpoint,
        src_endpoint: address(1).endpoint,
        src_dst_peer_index: None,
        src_session_id: session,
        app_key: key,
        target_recv_seqnum_start: start,
        connect_seqnum: 0,
    })
}

pub(crate) fn reply(
    to: &ConnectRequest,
    session: SessionId,
    start: SeqNum,
    status: ConnectStatus,
) -> Packet<&'static [u8]> {
    Packet::ConnectReply(ConnectReply {
        dst_endpoint: address(0).endpoint,
        src_endpoint: address(1).endpoint,
        src_dst_peer_index: None,
        src_session_id: OURS,
        target_session_id: session,
        target_recv_seqnum_start: start,
        connect_seqnum: to.connect_seqnum,
        status,
    })
}

pub(crate) fn tiny(seq: u16, ack: u16, data: &[u8]) -> Packet<&[u8]> {
    Packet::Tiny(Eager { head: head(seq, ack), data })
}

fn head(seq: u16, ack: u16) -> MessageHead {
    MessageHead {
        dst_endpoint: address(0).endpoint,
        src_endpoint: address(1).endpoint,
        lib_seqnum: SeqNum::from_bits(seq),
        lib_piggyack: SeqNum::from_bits(ack),
        match_info: 5,
        session: OURS,
    }
}

fn take(endpoint: &mut Endpoint, packet: &Packet<&[u8]>) -> Result<(), Ignored> {
    endpoint.receive(NOW, address(1).peer, packet)
}

fn next(endpoint: &mut Endpoint) -> Option<Packet<PayloadRange>> {
    endpoint.transmit(NOW).map(|transmit| transmit.packet)
}

fn next_request(endpoint: &mut Endpoint) -> ConnectRequest {
    match next(endpoint) {
        Some(Packet::ConnectRequest(request)) => request,
        other => panic!("{other:?} instead of a request"),
    }
}

pub(crate) fn events(endpoint: &mut Endpoint) -> Vec<EndpointEvent> {
    core::iter::from_fn(|| endpoint.event()).collect()
}

/// Returns an endpoint that has connected to a peer that expects number 1.
pub(crate) fn connected(dialect: Dialect) -> Endpoint {
    let mut endpoint = endpoint(dialect);
    endpoint.connect(NOW, address(1), 3, ConnectId(1)).unwrap();
    let asked = next_request(&mut endpoint);
    assert_eq!((asked.app_key, asked.target_recv_seqnum_start, asked.connect_seqnum), (3, SeqNum::FIRST, 0));
    take(&mut endpoint, &reply(&asked, THEIRS, SeqNum::FIRST, ConnectStatus::Success)).unwrap();
    let outcome = Ok(THEIRS);
    assert_eq!(
        events(&mut endpoint),
        [EndpointEvent::Connected { connect: ConnectId(1), partner: address(1), outcome }]
    );
    endpoint
}

/// Section 7.4: an Open-MX host that connected to us does not believe that we know it before we have connected back.
#[test]
fn open_mx_initiator_is_connected_back_before_the_first_message() {
    for status in [ConnectStatus::Success, ConnectStatus::BadKey] {
        let mut endpoint = endpoint(Dialect::OPEN_MX);
        take(&mut endpoint, &request(THEIRS, 77, SeqNum::from_bits(9))).unwrap();
        endpoint.send(NOW, address(1), SendId(1), 5, 4, SendMode::Standard).unwrap();
        let answered = next(&mut endpoint);
        assert!(matches!(answered, Some(Packet::ConnectReply(reply)) if reply.status == ConnectStatus::Success));
        let asked = next_request(&mut endpoint);
        assert_eq!(next(&mut endpoint), None);
        take(&mut endpoint, &reply(&asked, THEIRS, SeqNum::from_bits(9), status)).unwrap();
        let Some(Packet::Tiny(sent)) = next(&mut endpoint) else { panic!("no message") };
        assert_eq!((sent.head.lib_seqnum, sent.head.session), (SeqNum::from_bits(9), THEIRS));
    }
}

/// The sessions in a connect reply suffice to acknowledge messages.
#[test]
fn acknowledgements_carry_the_session_of_the_connect_reply() {
    let mut endpoint = connected(Dialect::OPEN_MX);
    for seq in 1..5 {
        take(&mut endpoint, &tiny(seq, 1, b"hello")).unwrap();
    }
    let Some(Packet::Liback(ack)) = next(&mut endpoint) else { panic!("no acknowledgement") };
    assert_eq!((ack.session, ack.lib_seqnum, ack.acknum), (THEIRS, SeqNum::from_bits(5), 1));
    take(&mut endpoint, &tiny(5, 1, b"hello")).unwrap();
    assert_eq!(next(&mut endpoint), None, "one is held back");
    endpoint.send(NOW, address(1), SendId(1), 5, 40, SendMode::Standard).unwrap();
    let Some(Packet::Small(sent)) = next(&mut endpoint) else { panic!("no message") };
    assert_eq!(sent.head.lib_piggyack, SeqNum::from_bits(6));
    endpoint.flush(NOW);
    assert_eq!(next(&mut endpoint), None, "the message carried it");
    take(&mut endpoint, &tiny(6, 1, b"hello")).unwrap();
    endpoint.flush(NOW);
    assert!(matches!(next(&mut endpoint), Some(Packet::Liback(ack)) if ack.acknum == 2));
}

/// The negative cases of section 15 and of 8.4.
#[test]
fn acknowledgements_count_once_and_in_their_session_number() {
    let mut endpoint = connected(Dialect::OPEN_MX);
    (1..=3).for_each(|send| endpoint.send(NOW, address(1), SendId(send), 5, 4, SendMode::Standard).unwrap());
    while next(&mut endpoint).is_some() {}
    let ack = |lib_seqnum, acknum| {
        let (dst_endpoint, src_endpoint) = (address(0).endpoint, address(1).endpoint);
        let lib_seqnum = SeqNum::from_bits(lib_seqnum);
        Packet::Liback(Liback { dst_endpoint, src_endpoint, session: OURS, lib_seqnum, acknum })
    };
    let sent = |send| EndpointEvent::Sent { send: SendId(send), code: StatusCode::Success, xfer_length: 4 };
    take(&mut endpoint, &ack(2, 1)).unwrap();
    assert_eq!(events(&mut endpoint), [sent(1)]);
    assert_eq!(take(&mut endpoint, &ack(3, 1)), Err(Ignored::OldAck));
    assert_eq!(take(&mut endpoint, &ack(0x4003, 2)), Err(Ignored::WrongSesnum));
    assert_eq!(take(&mut endpoint, &tiny(0x4001, 4, b"")), Err(Ignored::WrongSesnum));
    take(&mut endpoint, &ack(9, 2)).unwrap();
    assert_eq!(events(&mut endpoint), [], "never sent");
    take(&mut endpoint, &tiny(1, 4, b"")).unwrap();
    assert_eq!(events(&mut endpoint)[..2], [sent(2), sent(3)]);
}

/// A new session of the peer takes effect only after the peer has confirmed it.
#[test]
fn reopened_peer_is_verified_by_a_connect() {
    let mut endpoint = connected(Dialect::OPEN_MX);
    take(&mut endpoint, &tiny(1, 1, b"hello")).unwrap();
    endpoint.send(NOW, address(1), SendId(1), 5, 4, SendMode::Standard).unwrap();
    events(&mut endpoint);
    while next(&mut endpoint).is_some() {}
    let again = request(SessionId(9), 0, SeqNum::FIRST);
    assert_eq!(take(&mut endpoint, &again), Err(Ignored::UnverifiedPartner));
    assert_eq!(events(&mut endpoint), []);
    let asked = next_request(&mut endpoint);
    take(&mut endpoint, &reply(&asked, SessionId(9), SeqNum::FIRST, ConnectStatus::BadKey)).unwrap();
    let failed = EndpointEvent::Sent { send: SendId(1), code: StatusCode::EndpointUnreachable, xfer_length: 0 };
    assert_eq!(events(&mut endpoint), [failed, EndpointEvent::Disconnected { partner: address(1) }]);
    take(&mut endpoint, &again).unwrap();
    let Some(Packet::ConnectReply(answer)) = next(&mut endpoint) else { panic!("no reply") };
    assert_eq!((answer.status, answer.target_session_id), (ConnectStatus::BadKey, OURS));
    assert_eq!(take(&mut endpoint, &request(THEIRS, 77, SeqNum::FIRST)), Err(Ignored::OldSession));
}

/// Another host claims to be the partner with another session. The endpoint asks the partner, which is unchanged.
#[test]
fn forged_connect_requests_do_not_disconnect_a_partner() {
    let mut endpoint = connected(Dialect::OPEN_MX);
    endpoint.send(NOW, address(1), SendId(1), 5, 4, SendMode::Standard).unwrap();
    while next(&mut endpoint).is_some() {}
    for forged in 20..40 {
        let request = request(SessionId(forged), 77, SeqNum::FIRST);
        assert_eq!(take(&mut endpoint, &request), Err(Ignored::UnverifiedPartner));
    }
    let asked = next_request(&mut endpoint);
    assert_eq!(next(&mut endpoint), None, "one question is enough");
    // A forged refusal arrives first.
    let nack = NackLib {
        dst_endpoint: address(0).endpoint,
        src_endpoint: address(1).endpoint,
        nack_type: Nack::EndpointClosed,
        lib_seqnum: SeqNum::ZERO,
    };
    take(&mut endpoint, &Packet::NackLib(nack)).unwrap();
    take(&mut endpoint, &reply(&asked, THEIRS, SeqNum::from_bits(2), ConnectStatus::BadKey)).unwrap();
    take(&mut endpoint, &tiny(1, 2, b"hello")).unwrap();
    let sent = EndpointEvent::Sent { send: SendId(1), code: StatusCode::Success, xfer_length: 4 };
    assert_eq!(events(&mut endpoint)[0], sent);
    take(&mut endpoint, &request(THEIRS, 77, SeqNum::from_bits(2))).unwrap();
}

/// The peer uses another session number now. Pending sends end with an error, as they did at the peer.
#[test]
fn detects_a_peer_that_gave_up_when_it_reconnects() {
    let mut endpoint = connected(Dialect::OPEN_MX);
    endpoint.send(NOW, address(1), SendId(1), 5, 4, SendMode::Standard).unwrap();
    while next(&mut endpoint).is_some() {}
    take(&mut endpoint, &request(THEIRS, 77, SeqNum::FIRST)).unwrap();
    assert_eq!(events(&mut endpoint), [], "a connect of the same kind again changes nothing");
    take(&mut endpoint, &request(THEIRS, 77, SeqNum::FIRST.given_up())).unwrap();
    let failed = EndpointEvent::Sent { send: SendId(1), code: StatusCode::EndpointUnreachable, xfer_length: 0 };
    assert_eq!(events(&mut endpoint), [failed, EndpointEvent::Disconnected { partner: address(1) }]);
    endpoint.send(NOW, address(1), SendId(2), 5, 4, SendMode::Standard).unwrap();
    while !matches!(next(&mut endpoint), Some(Packet::ConnectReply(_))) {}
    let asked = next_request(&mut endpoint);
    assert_eq!(asked.target_recv_seqnum_start.sesnum().number(), 1);
    take(&mut endpoint, &reply(&asked, THEIRS, SeqNum::FIRST.given_up(), ConnectStatus::BadKey)).unwrap();
    let Some(Packet::Tiny(sent)) = next(&mut endpoint) else { panic!("no message") };
    assert_eq!(sent.head.lib_seqnum, SeqNum::FIRST.given_up());
}

/// A message of the previous session arrives after the request that the next session answers, so the number in the
/// reply is unknown.
#[test]
fn peer_with_unknown_numbering_gets_a_new_session_number() {
    for late in [false, true] {
        let mut endpoint = connected(Dialect::OPEN_MX);
        endpoint.connect(NOW, address(1), 3, ConnectId(2)).unwrap();
        let asked = next_request(&mut endpoint);
        if late {
            take(&mut endpoint, &tiny(1, 1, b"late")).unwrap();
        }
        take(&mut endpoint, &reply(&asked, SessionId(9), SeqNum::FIRST, ConnectStatus::Success)).unwrap();
        if late {
            assert_eq!(next_request(&mut endpoint).target_recv_seqnum_start.sesnum().number(), 1);
            assert_eq!(take(&mut endpoint, &tiny(1, 1, b"new")), Err(Ignored::WrongSesnum));
        } else {
            assert_eq!(next(&mut endpoint), None);
            take(&mut endpoint, &tiny(1, 1, b"new")).unwrap();
        }
    }
}

/// Section 10.1: a NOTIFY for another use of the region, or from another peer, has no effect.
#[test]
fn notify_completes_only_its_own_region() {
    let mut endpoint = connected(Dialect::OPEN_MX);
    endpoint.send(NOW, address(1), SendId(1), 5, 100_000, SendMode::Standard).unwrap();
    let Some(Packet::Rndv(announced)) = next(&mut endpoint) else { panic!("no announcement") };
    let mut seq = 0;
    let mut notify = |id: u8, seqnum: u8, total_length: u32| {
        seq += 1;
        Packet::Notify(Notify {
            dst_endpoint: address(0).endpoint,
            src_endpoint: address(1).endpoint,
            session: OURS,
            total_length,
            pulled_rdma_id: id,
            pulled_rdma_seqnum: seqnum,
            lib_seqnum: SeqNum::from_bits(seq),
            lib_piggyack: SeqNum::FIRST,
        })
    };
    let (id, seqnum) = (announced.pulled_rdma_id, announced.pulled_rdma_seqnum);
    take(&mut endpoint, &notify(id, seqnum + 1, 1)).unwrap();
    take(&mut endpoint, &notify(id + 1, seqnum, 2)).unwrap();
    assert_eq!(events(&mut endpoint), []);
    take(&mut endpoint, &notify(id, seqnum, 7)).unwrap();
    assert_eq!(events(&mut endpoint), [], "the announcement is not acknowledged yet");
    take(&mut endpoint, &notify(id, seqnum, 3)).unwrap();
    take(&mut endpoint, &tiny(5, 2, b"")).unwrap();
    let sent = EndpointEvent::Sent { send: SendId(1), code: StatusCode::Success, xfer_length: 7 };
    assert_eq!(events(&mut endpoint)[0], sent, "what the first one said that named it");
}

/// A NOTIFY may free the region that a message with a lower sequence number waits for, so it takes effect before that message arrives.
#[test]
fn notify_takes_effect_out_of_order_and_once() {
    let mut endpoint = connected(Dialect::OPEN_MX);
    (1..=2).for_each(|send| endpoint.send(NOW, address(1), SendId(send), 5, 100_000, SendMode::Standard).unwrap());
    let announced = [(); 2].map(|()| match next(&mut endpoint) {
        Some(Packet::Rndv(announced)) => announced,
        other => panic!("{other:?} instead of an announcement"),
    });
    let notify = |announced: &Rndv, seq: u16| {
        Packet::Notify(Notify {
            dst_endpoint: address(0).endpoint,
            src_endpoint: address(1).endpoint,
            session: OURS,
            total_length: 100_000,
            pulled_rdma_id: announced.pulled_rdma_id,
            pulled_rdma_seqnum: announced.pulled_rdma_seqnum,
            lib_seqnum: SeqNum::from_bits(seq),
            lib_piggyack: SeqNum::from_bits(3),
        })
    };
    let sent = |send| EndpointEvent::Sent { send: SendId(send), code: StatusCode::Success, xfer_length: 100_000 };
    take(&mut endpoint, &notify(&announced[0], 3)).unwrap();
    assert_eq!(events(&mut endpoint), [sent(1)]);
    assert_eq!(take(&mut endpoint, &notify(&announced[0], 3)), Err(Ignored::Duplicate));
    // A NOTIFY that cannot be recorded would count again when it is repeated, perhaps for the next use of its name.
    assert_eq!(take(&mut endpoint, &notify(&announced[1], 300)), Err(Ignored::TooEarly));
    assert_eq!(events(&mut endpoint), []);
    for seq in [1, 2] {
        take(&mut endpoint, &tiny(seq, 3, b"")).unwrap();
        assert!(events(&mut endpoint).iter().all(|event| !matches!(event, EndpointEvent::Sent { .. })));
    }
    take(&mut endpoint, &notify(&announced[1], 4)).unwrap();
    assert_eq!(events(&mut endpoint), [sent(2)]);
}

/// The end of a fetched message does not wait behind many announcements.
#[test]
fn a_notify_is_sent_before_announcements_that_wait() {
    let mut endpoint = connected(Dialect::OPEN_MX);
    (1..=1000).for_each(|send| endpoint.send(NOW, address(1), SendId(send), 5, 100_000, SendMode::Standard).unwrap());
    let mut announced = 0;
    while let Some(packet) = next(&mut endpoint) {
        assert!(matches!(packet, Packet::Rndv(_)), "{packet:?}");
        announced += 1;
    }
    assert_eq!(announced, 128, "a window of them");
    let (pulled_rdma_id, pulled_rdma_seqnum) = (7, 30);
    let theirs =
        Rndv { head: head(1, 1), msg_length: 50_000, pulled_rdma_id, pulled_rdma_seqnum, pulled_rdma_offset: 0 };
    take(&mut endpoint, &Packet::Rndv(theirs)).unwrap();
    let Some(EndpointEvent::Begun { message, .. }) = endpoint.event() else { panic!("no message") };
    endpoint.pull(NOW, message, 0, 0).unwrap();
    let Some(Packet::Notify(notify)) = next(&mut endpoint) else { panic!("no notify") };
    assert_eq!((notify.pulled_rdma_id, notify.pulled_rdma_seqnum), (pulled_rdma_id, pulled_rdma_seqnum));
    assert_eq!(notify.lib_seqnum, SeqNum::from_bits(129));
}

/// The sender of a long message takes a NOTIFY as proof that all bytes have arrived.
#[test]
fn a_fetched_message_is_notified_when_the_caller_has_its_bytes() {
    let (pulled_rdma_id, pulled_rdma_seqnum, data) = (7, 30, [9; 100]);
    let theirs = Rndv { head: head(1, 1), msg_length: 100, pulled_rdma_id, pulled_rdma_seqnum, pulled_rdma_offset: 0 };
    for is_gone in [false, true] {
        let mut endpoint = connected(Dialect::OPEN_MX);
        take(&mut endpoint, &Packet::Rndv(theirs)).unwrap();
        let Some(EndpointEvent::Begun { message, .. }) = endpoint.event() else { panic!("no message") };
        endpoint.pull(NOW, message, 100, u32::MAX).unwrap();
        let Some(Packet::Pull(Pull { puller, .. })) = next(&mut endpoint) else { panic!("no request") };
        take(&mut endpoint, &Packet::PullReply(PullReply { frame_seqnum: 0, msg_offset: 0, puller, data: &data[..] }))
            .unwrap();
        let received = EndpointEvent::Received { message, code: StatusCode::Success, xfer_length: 100 };
        assert!(events(&mut endpoint).contains(&received));
        assert_eq!(next(&mut endpoint), None, "the caller has not notified");
        if is_gone {
            endpoint.disconnect(address(1));
            assert!(events(&mut endpoint).contains(&EndpointEvent::Disconnected { partner: address(1) }));
        }
        endpoint.notify(NOW, message);
        let notified = core::iter::from_fn(|| next(&mut endpoint)).find_map(|packet| match packet {
            Packet::Notify(notify) => Some((notify.pulled_rdma_id, notify.pulled_rdma_seqnum, notify.total_length)),
            _ => None,
        });
        assert_eq!(notified, (!is_gone).then_some((pulled_rdma_id, pulled_rdma_seqnum, 100)));
        assert_eq!(endpoint.has_unacknowledged(), !is_gone);
    }
}

/// No message has been fetched. The number of messages that Open-MX supports get a region each; more share these
/// regions.
#[test]
fn long_messages_have_unique_region_names() {
    let mut endpoint = connected(Dialect::OPEN_MX);
    (1..=1000)
        .for_each(|send| endpoint.send(NOW, address(1), SendId(send), send, 100_000, SendMode::Standard).unwrap());
    let mut names = BTreeMap::new();
    while names.len() < 1000 {
        let before = names.len();
        while let Some(Packet::Rndv(announced)) = next(&mut endpoint) {
            let name = (announced.pulled_rdma_id, announced.pulled_rdma_seqnum);
            assert_eq!(names.insert(name, announced.head.match_info), None);
        }
        assert!(names.len() > before);
        let (dst_endpoint, src_endpoint) = (address(0).endpoint, address(1).endpoint);
        let (lib_seqnum, acknum) = (SeqNum::from_bits(1 + names.len() as u16), names.len() as u32);
        take(&mut endpoint, &Packet::Liback(Liback { dst_endpoint, src_endpoint, session: OURS, lib_seqnum, acknum }))
            .unwrap();
    }
    events(&mut endpoint);
    let first: BTreeSet<u8> = names.iter().filter(|(_, send)| **send <= 128).map(|((region, _), _)| *region).collect();
    assert_eq!(first.len(), 128);
    for ((region, use_of), send) in names {
        take(&mut endpoint, &pull(region, use_of)).unwrap();
        let asked = EndpointEvent::DataWanted { send: SendId(send), bytes: 1000, total: 100_000 };
        assert!(matches!(next(&mut endpoint), Some(Packet::PullReply(reply)) if reply.data.send == SendId(send)));
        assert!(events(&mut endpoint).iter().all(|event| *event == asked));
    }
    assert_eq!(take(&mut endpoint, &pull(0, 200)), Err(Ignored::OutsideRegion));
}

/// Returns a request for the first bytes of a region.
fn pull(region: u8, use_of: u8) -> Packet<&'static [u8]> {
    Packet::Pull(Pull {
        dst_endpoint: address(0).endpoint,
        src_endpoint: address(1).endpoint,
        session: OURS,
        total_length: 100_000,
        pulled_rdma_id: region.into(),
        pulled_rdma_seqnum: use_of,
        pulled_rdma_offset: 0,
        puller: PullHandle { handle: 5, magic: 6 },
        first_frame_offset: 0,
        block_length: 1000,
        frame_index: 0,
    })
}

#[test]
fn connects_end_with_the_peers_status_or_a_timeout() {
    let mut endpoint = endpoint(Dialect::OPEN_MX);
    assert_eq!(
        endpoint.send(NOW, address(1), SendId(1), 0, 0, SendMode::Standard),
        Err(EndpointSendError::NotConnected)
    );
    let failed =
        |id, code| [EndpointEvent::Connected { connect: ConnectId(id), partner: address(1), outcome: Err(code) }];
    endpoint.connect(NOW, address(1), 3, ConnectId(1)).unwrap();
    let asked = next_request(&mut endpoint);
    take(&mut endpoint, &reply(&asked, THEIRS, SeqNum::FIRST, ConnectStatus::BadKey)).unwrap();
    assert_eq!(events(&mut endpoint), failed(1, StatusCode::BadKey));
    let late = reply(&asked, THEIRS, SeqNum::FIRST, ConnectStatus::Success);
    assert_eq!(take(&mut endpoint, &late), Err(Ignored::NoSuchConnect));

    endpoint.connect(NOW, address(1), 3, ConnectId(2)).unwrap();
    let asked = Packet::<&[u8]>::ConnectRequest(next_request(&mut endpoint));
    let Some(Packet::NackLib(nack)) = isthmus_mx::net::nack_for(&asked, Nack::EndpointClosed) else {
        panic!("no refusal")
    };
    take(&mut endpoint, &Packet::NackLib(nack)).unwrap();
    assert_eq!(events(&mut endpoint), failed(2, StatusCode::EndpointClosed));

    endpoint.connect(NOW, address(1), 3, ConnectId(3)).unwrap();
    let mut now = NOW;
    let mut requests = 0;
    loop {
        while endpoint.transmit(now).is_some() {
            requests += 1;
        }
        let Some(deadline) = endpoint.next_deadline() else { break };
        now = deadline;
        endpoint.tick(now);
    }
    assert!((900..1100).contains(&requests) && now.us() > 499_000_000, "{requests} {now:?}");
    assert_eq!(events(&mut endpoint)[..1], failed(3, StatusCode::Timeout));
}

#[test]
fn packets_for_an_earlier_session_are_refused() {
    let mut endpoint = connected(Dialect::OPEN_MX);
    let Packet::Tiny(mut old) = tiny(1, 1, b"hello") else { unreachable!() };
    old.head.session = SessionId(1);
    assert_eq!(take(&mut endpoint, &Packet::Tiny(old)), Err(Ignored::WrongSession));
    let nack = NackLib {
        dst_endpoint: address(1).endpoint,
        src_endpoint: address(0).endpoint,
        nack_type: Nack::BadSession,
        lib_seqnum: SeqNum::FIRST,
    };
    assert_eq!(next(&mut endpoint), Some(Packet::NackLib(nack)));
    let other = Packet::NackLib(NackLib { dst_endpoint: EndpointNumber(200), ..nack });
    assert_eq!(take(&mut endpoint, &other), Err(Ignored::WrongEndpoint));
    assert_eq!(isthmus_mx::net::nack_for(&other, Nack::BadSession), None, "a refusal is never refused");
}

/// Section 8.5: native MX before 1.2.5 waits for the acknowledgement.
#[test]
fn a_notify_is_acknowledged_at_once_in_mx_mode() {
    for (dialect, at_once) in [(Dialect::Mx, true), (Dialect::OPEN_MX, false)] {
        let mut endpoint = connected(dialect);
        endpoint.send(NOW, address(1), SendId(1), 5, 100_000, SendMode::Standard).unwrap();
        let Some(Packet::Rndv(announced)) = next(&mut endpoint) else { panic!("no announcement") };
        assert_eq!((announced.pulled_rdma_seqnum, announced.pulled_rdma_offset), (23, 0));
        let notify = Notify {
            dst_endpoint: address(0).endpoint,
            src_endpoint: address(1).endpoint,
            session: OURS,
            total_length: 100_000,
            pulled_rdma_id: announced.pulled_rdma_id,
            pulled_rdma_seqnum: announced.pulled_rdma_seqnum,
            lib_seqnum: SeqNum::FIRST,
            lib_piggyack: SeqNum::from_bits(2),
        };
        take(&mut endpoint, &Packet::Notify(notify)).unwrap();
        let sent = EndpointEvent::Sent { send: SendId(1), code: StatusCode::Success, xfer_length: 100_000 };
        assert_eq!(events(&mut endpoint), [sent]);
        assert_eq!(matches!(next(&mut endpoint), Some(Packet::Liback(_))), at_once);
    }
}

/// Both ends notice in time when a host dies that pulls or is being pulled from.
#[test]
fn pull_ends_on_both_sides_when_the_peer_dies() {
    let tuning = EndpointTuning { resends_max: 20, ..EndpointTuning::DEFAULT };
    let kind = HostConfig { dialect: Dialect::Mx, sizes: Sizes::MX, tuning, narrow: true };
    for dies in [0, 1] {
        let mut simulation = Simulation::new(2, kind, NetConditions::FINE, 1);
        simulation.connect_all();
        simulation.run_until_quiet(60_000_000);
        simulation.send_whole(0, 1, 20_000_000);
        simulation.run_until(simulation.now.after_us(5_000));
        let died = simulation.now;
        simulation.wire.cut(dies, 1 - dies, Time::from_us(u64::MAX));
        simulation.wire.cut(1 - dies, dies, Time::from_us(u64::MAX));
        simulation.run_until_quiet(60_000_000);
        assert!(simulation.now.since_us(died) < 30_000_000);
        assert!(simulation.hosts[0].sends.values().all(|send| send.ended.unwrap().code != StatusCode::Success));
        assert_eq!(simulation.hosts[1].failed_receives, 1);
    }
}
