//! Rules of the connection manager, one by one.

use crate::network::{CHANNEL, Network, PORT};
use crate::parameters;
use isthmus_verbs::Gid;
use isthmus_verbs::cm::{
    Action, ChannelNumber, EventKind, IdNumber, Parameters, PortSpace, PrivateData, Refusal, Transition, reason, times,
};

use EventKind::{
    AddressError, ConnectRequest, ConnectResponse, Disconnected, Established, Rejected, TimewaitExit, Unreachable,
};

fn data(bytes: &[u8]) -> PrivateData {
    PrivateData::new(bytes).unwrap()
}

/// A connection that has begun: the listener's network, the active identifier, the passive one.
fn established() -> (Network, IdNumber, IdNumber) {
    let mut network = Network::new();
    network.listen(PortSpace::Tcp, 0);
    let (active, passive) = connect(&mut network, 7);
    (network, active, passive)
}

fn connect(network: &mut Network, uid: u64) -> (IdNumber, IdNumber) {
    let active = network.routed(uid, PortSpace::Tcp);
    network.programs[0].manager.connect(CHANNEL, active, parameters(0x111, b"ask")).unwrap();
    network.perform();
    network.settle();
    let asked = network.event(1).unwrap();
    network.programs[1].manager.accept(CHANNEL, asked.id, 2000 + uid, parameters(0x222, b"yes")).unwrap();
    network.perform();
    network.settle();
    let answered = network.event(0).unwrap();
    assert_eq!((answered.kind, answered.id), (ConnectResponse, active));
    network.programs[0].manager.accept(CHANNEL, active, 0, Parameters::NONE).unwrap();
    network.perform();
    network.settle();
    let ready = network.event(1).unwrap();
    assert_eq!((ready.kind, ready.id, ready.uid), (Established, asked.id, 2000 + uid));
    (active, asked.id)
}

#[test]
fn connection_carries_the_parameters_of_both_ends() {
    let mut network = Network::new();
    network.listen(PortSpace::Tcp, 0);
    let active = network.routed(7, PortSpace::Tcp);
    network.programs[0].manager.connect(CHANNEL, active, parameters(0x111, b"ask")).unwrap();
    network.perform();
    network.settle();
    let asked = network.event(1).unwrap();
    assert_eq!((asked.kind, asked.uid, asked.status, asked.space), (ConnectRequest, 1000, 0, PortSpace::Tcp));
    // The other end responds to what this one initiates.
    let given = asked.parameters;
    assert_eq!((given.qp, given.responder_resources, given.initiator_depth), (0x111, 5, 3));
    assert_eq!((given.private.as_slice(), given.srq, given.flow_control), (&b"ask"[..], true, true));
    let (at, from, is_routed) = network.programs[1].manager.path(CHANNEL, asked.id).unwrap();
    assert_eq!((at.unwrap(), is_routed), (network.programs[1].end(PORT), true));
    assert_eq!(from.unwrap(), network.programs[0].end(50_007));
    // The program moves its queue pair to the peer's before it accepts.
    let before = network.programs[1].manager.transition(CHANNEL, asked.id, true).unwrap();
    assert_eq!((before.destination, before.responder_resources, before.initiator_depth), (0x111, 5, 3));
    assert!(before.lets_read && before.lets_write);
    let own = Parameters { responder_resources: 2, initiator_depth: 1, ..parameters(0x222, b"yes") };
    network.programs[1].manager.accept(CHANNEL, asked.id, 2007, own).unwrap();
    network.perform();
    network.settle();
    let answered = network.event(0).unwrap();
    let given = answered.parameters;
    assert_eq!((answered.kind, answered.uid), (ConnectResponse, 7));
    assert_eq!((given.qp, given.responder_resources, given.initiator_depth), (0x222, 1, 2));
    assert_eq!(given.private.as_slice(), b"yes");
    let ours = network.programs[0].manager.transition(CHANNEL, active, true).unwrap();
    let theirs = network.programs[1].manager.transition(CHANNEL, asked.id, true).unwrap();
    assert_eq!((ours.destination, ours.responder_resources, ours.initiator_depth), (0x222, 1, 2));
    assert_eq!((theirs.destination, theirs.responder_resources, theirs.initiator_depth), (0x111, 2, 1));
    assert_eq!((ours.send_psn, ours.receive_psn), (theirs.receive_psn, theirs.send_psn));
    assert_eq!((ours.retries, ours.receiver_retries), (6, 7));
    assert_eq!((theirs.retries, theirs.receiver_retries), (6, 7));
    assert_eq!((Some(ours.gid), Some(theirs.gid)), (network.programs[1].end(0).gid, network.programs[0].end(0).gid));
}

#[test]
fn queue_pair_without_a_peer_has_no_rights_and_no_address() {
    let mut network = Network::new();
    let id = network.routed(7, PortSpace::Tcp);
    let manager = &network.programs[0].manager;
    assert_eq!(manager.transition(CHANNEL, id, false), Ok(Transition::default()));
    assert_eq!(manager.transition(CHANNEL, id, true), Err(Refusal::Invalid));
    assert_eq!(manager.transition(ChannelNumber(9), id, true), Err(Refusal::NoSuchId));
}

#[test]
fn both_ends_learn_of_the_end_once() {
    for first in [0, 1] {
        let (mut network, active, passive) = established();
        let ids = [active, passive];
        network.programs[first].manager.disconnect(CHANNEL, ids[first]).unwrap();
        network.perform();
        network.settle();
        for of in [0, 1] {
            let event = network.event(of).unwrap();
            assert_eq!((event.kind, event.id, event.status), (Disconnected, ids[of], 0));
            assert_eq!(network.event(of), None);
            // A program that calls it after the event does nothing wrong.
            assert_eq!(network.programs[of].manager.disconnect(CHANNEL, ids[of]), Ok(()));
        }
        network.pass(times::TIMEWAIT_NS);
        for of in [0, 1] {
            assert_eq!(network.event(of).unwrap().kind, TimewaitExit);
            assert_eq!(network.programs[of].manager.destroy(CHANNEL, ids[of]).unwrap(), [5, 3][of]);
        }
    }
}

#[test]
fn ends_that_cross_are_one_end() {
    let (mut network, active, passive) = established();
    network.programs[0].manager.disconnect(CHANNEL, active).unwrap();
    network.programs[1].manager.disconnect(CHANNEL, passive).unwrap();
    network.perform();
    network.settle();
    for of in [0, 1] {
        assert_eq!(network.event(of).unwrap().kind, Disconnected);
        assert_eq!(network.event(of), None);
    }
}

#[test]
fn killed_and_destroyed_peers_are_disconnected() {
    let (mut network, _, _) = established();
    network.kill(0);
    network.settle();
    assert_eq!(network.event(1).unwrap().kind, Disconnected);
    let (mut network, _, passive) = established();
    assert_eq!(network.programs[1].manager.destroy(CHANNEL, passive), Ok(1));
    network.perform();
    network.settle();
    assert_eq!(network.event(0).unwrap().kind, Disconnected);
    assert_eq!(network.event(0), None);
    assert_eq!(network.programs[1].manager.destroy(CHANNEL, passive), Err(Refusal::NoSuchId));
}

#[test]
fn peer_that_does_not_reply_to_the_end_is_left_after_a_while() {
    let (mut network, active, _) = established();
    network.programs[0].manager.disconnect(CHANNEL, active).unwrap();
    network.perform();
    network.pass(times::DIAL_NS - 1);
    assert_eq!(network.event(0), None);
    network.pass(1);
    assert_eq!(network.event(0).unwrap().kind, Disconnected);
}

#[test]
fn without_a_listener_the_port_is_asked_again_for_a_second() {
    for (space, kind, status) in [(PortSpace::Tcp, Rejected, 8), (PortSpace::Udp, Unreachable, 1)] {
        let mut network = Network::new();
        let id = network.routed(7, space);
        network.programs[0].manager.connect(CHANNEL, id, parameters(1, b"")).unwrap();
        network.perform();
        for _ in 0..9 {
            network.settle();
            network.pass(times::NO_LISTENER_NS / 10);
            assert_eq!(network.event(0), None);
        }
        network.settle();
        network.pass(times::ASK_PAUSE_NS_MAX);
        network.settle();
        let event = network.event(0).unwrap();
        assert_eq!((event.kind, event.status), (kind, status));
        assert_eq!(network.programs[0].manager.connect(CHANNEL, id, parameters(1, b"")), Err(Refusal::Invalid));
    }
}

#[test]
fn listener_that_comes_within_a_second_is_found() {
    let mut network = Network::new();
    let id = network.routed(7, PortSpace::Tcp);
    network.programs[0].manager.connect(CHANNEL, id, parameters(1, b"")).unwrap();
    network.perform();
    network.settle();
    network.listen(PortSpace::Tcp, 0);
    network.pass(times::ASK_PAUSE_NS_MAX);
    network.settle();
    assert_eq!(network.event(1).unwrap().kind, ConnectRequest);
}

#[test]
fn stream_that_is_refused_is_closed_before_the_port_is_asked_again() {
    let mut network = Network::new();
    let id = network.routed(7, PortSpace::Tcp);
    let manager = &mut network.programs[0].manager;
    manager.connect(CHANNEL, id, parameters(1, b"")).unwrap();
    manager.port_found(id, 9);
    manager.not_connected(id, None);
    assert_eq!(manager.next_action(), Some(Action::Ask(id)));
    assert_eq!(manager.next_action(), Some(Action::Dial(id, 9)));
    assert_eq!((manager.next_action(), manager.next_action()), (Some(Action::Close(id)), None));
    manager.set_time(times::ASK_PAUSE_NS);
    manager.expire();
    assert_eq!(manager.next_action(), Some(Action::Ask(id)));
}

#[test]
fn destination_that_never_answers_is_unreachable() {
    let mut network = Network::new();
    network.listen(PortSpace::Tcp, 0);
    let id = network.routed(7, PortSpace::Tcp);
    network.programs[0].manager.connect(CHANNEL, id, parameters(1, b"")).unwrap();
    network.perform();
    for _ in 0..times::ASK_NS / times::ASK_PAUSE_NS_MAX {
        assert_eq!(network.event(0), None);
        network.deliver_question(true, false);
        network.pass(times::ASK_PAUSE_NS_MAX);
    }
    let event = network.event(0).unwrap();
    assert_eq!((event.kind, event.status), (Unreachable, -110));
}

#[test]
fn program_that_never_accepts_leaves_its_peer_unreachable() {
    let mut network = Network::new();
    network.listen(PortSpace::Tcp, 0);
    let id = network.routed(7, PortSpace::Tcp);
    network.programs[0].manager.connect(CHANNEL, id, parameters(1, b"")).unwrap();
    network.perform();
    network.settle();
    let asked = network.event(1).unwrap();
    network.pass(times::REPLY_NS);
    let event = network.event(0).unwrap();
    assert_eq!((event.kind, event.status), (Unreachable, -110));
    network.settle();
    let late = network.programs[1].manager.accept(CHANNEL, asked.id, 1, parameters(2, b""));
    assert_eq!((late, network.event(1)), (Err(Refusal::Invalid), None));
}

#[test]
fn rejections_bring_their_reason_and_data() {
    for (space, given, expected, kind) in [
        (PortSpace::Tcp, 0, reason::CONSUMER, Rejected),
        (PortSpace::Tcp, 35, 35, Rejected),
        (PortSpace::Udp, 0, reason::REFUSED, Unreachable),
    ] {
        let mut network = Network::new();
        network.listen(space, 0);
        let id = network.routed(7, space);
        network.programs[0].manager.connect(CHANNEL, id, parameters(1, b"")).unwrap();
        network.perform();
        network.settle();
        let asked = network.event(1).unwrap();
        network.programs[1].manager.reject(CHANNEL, asked.id, given, data(b"no")).unwrap();
        network.perform();
        network.settle();
        let event = network.event(0).unwrap();
        assert_eq!((event.kind, event.status), (kind, i32::from(expected)));
        assert_eq!(event.parameters.private.as_slice(), b"no");
        assert_eq!(network.event(0), None);
    }
}

#[test]
fn request_that_is_destroyed_is_rejected() {
    let mut network = Network::new();
    let listener = network.listen(PortSpace::Tcp, 0);
    let ids = [1, 2].map(|uid| network.routed(uid, PortSpace::Tcp));
    for id in ids {
        network.programs[0].manager.connect(CHANNEL, id, parameters(1, b"")).unwrap();
    }
    network.perform();
    network.settle();
    // One that the program has read, and one that goes with its listener.
    let asked = network.event(1).unwrap();
    assert_eq!(network.programs[1].manager.destroy(CHANNEL, asked.id), Ok(0));
    assert_eq!(network.programs[1].manager.destroy(CHANNEL, listener), Ok(1));
    network.perform();
    network.settle();
    for _ in ids {
        let event = network.event(0).unwrap();
        assert_eq!((event.kind, event.status), (Rejected, i32::from(reason::CONSUMER)));
    }
    assert_eq!((network.event(1), network.programs[1].readable), (None, false));
}

#[test]
fn backlog_counts_requests_that_were_not_read() {
    let mut network = Network::new();
    network.listen(PortSpace::Tcp, 2);
    for uid in 0..3 {
        let id = network.routed(uid, PortSpace::Tcp);
        network.programs[0].manager.connect(CHANNEL, id, parameters(1, b"")).unwrap();
    }
    network.perform();
    network.settle();
    assert_eq!(network.event(0).map(|event| (event.kind, event.status)), Some((Rejected, 28)));
    assert_eq!(network.event(0), None);
    network.event(1).unwrap();
    let id = network.routed(3, PortSpace::Tcp);
    network.programs[0].manager.connect(CHANNEL, id, parameters(1, b"")).unwrap();
    network.perform();
    network.settle();
    assert_eq!(network.event(0), None);
    assert!(network.event(1).is_some() && network.event(1).is_some() && network.event(1).is_none());
}

#[test]
fn datagrams_end_with_the_queue_pair_and_its_key() {
    let mut network = Network::new();
    network.listen(PortSpace::Udp, 0);
    let id = network.routed(7, PortSpace::Udp);
    network.programs[0].manager.connect(CHANNEL, id, parameters(0, b"ask")).unwrap();
    network.perform();
    network.settle();
    let asked = network.event(1).unwrap();
    assert_eq!((asked.kind, asked.space), (ConnectRequest, PortSpace::Udp));
    let own = Parameters { qkey: 0, ..parameters(0x222, b"yes") };
    network.programs[1].manager.accept(CHANNEL, asked.id, 1, own).unwrap();
    network.perform();
    network.settle();
    let event = network.event(0).unwrap();
    assert_eq!((event.kind, event.status, event.parameters.qp), (Established, 0, 0x222));
    assert_eq!((event.parameters.qkey, event.parameters.private.as_slice()), (0x0123_4567, &b"yes"[..]));
    assert_eq!(event.gid, Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]));
    // The stream is over; neither end notices.
    network.settle_for_ever();
    assert_eq!((network.event(0), network.event(1)), (None, None));
    assert_eq!(network.programs[0].manager.disconnect(CHANNEL, id), Err(Refusal::Invalid));
}

#[test]
fn packet_of_the_peer_stands_for_its_confirmation() {
    let mut network = Network::new();
    network.listen(PortSpace::Tcp, 0);
    let id = network.routed(7, PortSpace::Tcp);
    network.programs[0].manager.connect(CHANNEL, id, parameters(1, b"")).unwrap();
    network.perform();
    network.settle();
    let asked = network.event(1).unwrap().id;
    let manager = &mut network.programs[1].manager;
    assert_eq!(manager.communication_established(CHANNEL, asked), Err(Refusal::Invalid));
    manager.accept(CHANNEL, asked, 1, parameters(2, b"")).unwrap();
    manager.communication_established(CHANNEL, asked).unwrap();
    manager.communication_established(CHANNEL, asked).unwrap();
    network.perform();
    assert_eq!(network.event(1).unwrap().kind, Established);
    network.settle();
    network.event(0).unwrap();
    network.programs[0].manager.accept(CHANNEL, id, 0, Parameters::NONE).unwrap();
    network.perform();
    network.settle();
    assert_eq!(network.event(1), None, "the confirmation says nothing new");
}

#[test]
fn identifier_moves_to_another_channel_with_its_events() {
    let (mut network, active, passive) = established();
    network.programs[1].manager.disconnect(CHANNEL, passive).unwrap();
    network.perform();
    network.settle();
    let other = ChannelNumber(2);
    let manager = &mut network.programs[0].manager;
    assert_eq!(manager.migrate(other, CHANNEL, active), Err(Refusal::NoSuchId));
    assert_eq!(manager.migrate(CHANNEL, other, active), Ok(3));
    assert_eq!(manager.next_event(CHANNEL), None);
    assert_eq!(manager.next_event(other).unwrap().kind, Disconnected);
    assert_eq!(manager.disconnect(CHANNEL, active), Err(Refusal::NoSuchId));
    assert_eq!(manager.destroy(other, active), Ok(4));
}

#[test]
fn request_moves_with_its_listener_until_it_was_read() {
    let mut network = Network::new();
    let listener = network.listen(PortSpace::Tcp, 0);
    for uid in 0..2 {
        let id = network.routed(uid, PortSpace::Tcp);
        network.programs[0].manager.connect(CHANNEL, id, parameters(1, b"")).unwrap();
    }
    network.perform();
    network.settle();
    let read = network.event(1).unwrap();
    let other = ChannelNumber(2);
    let manager = &mut network.programs[1].manager;
    assert_eq!(manager.migrate(CHANNEL, other, listener), Ok(1));
    let moved = manager.next_event(other).unwrap();
    assert_eq!((manager.next_event(CHANNEL), moved.kind), (None, ConnectRequest));
    manager.accept(CHANNEL, read.id, 1, parameters(2, b"")).unwrap();
    manager.accept(other, moved.id, 2, parameters(2, b"")).unwrap();
}

#[test]
fn channel_ends_with_its_identifiers_and_no_others() {
    let (mut network, active, _) = established();
    let (second, _) = connect(&mut network, 8);
    let manager = &mut network.programs[0].manager;
    manager.migrate(CHANNEL, ChannelNumber(2), second).unwrap();
    manager.close_channel(ChannelNumber(2));
    network.perform();
    network.settle();
    assert_eq!(network.forgotten, [(0, second)]);
    assert_eq!(network.event(1).unwrap().kind, Disconnected);
    assert_eq!(network.event(1), None);
    network.programs[0].manager.disconnect(CHANNEL, active).unwrap();
}

#[test]
fn commands_in_the_wrong_state_are_refused() {
    let mut network = Network::new();
    let manager = &mut network.programs[0].manager;
    let id = manager.create(CHANNEL, 1, PortSpace::Tcp);
    assert_eq!(manager.resolve_route(CHANNEL, id), Err(Refusal::Invalid));
    assert_eq!(manager.connect(CHANNEL, id, parameters(1, b"")), Err(Refusal::Invalid));
    assert_eq!(manager.accept(CHANNEL, id, 1, parameters(1, b"")), Err(Refusal::Invalid));
    assert_eq!(manager.reject(CHANNEL, id, 0, PrivateData::NONE), Err(Refusal::Invalid));
    assert_eq!(manager.disconnect(CHANNEL, id), Err(Refusal::Invalid));
    manager.resolved(id, Err(-101));
    let event = manager.next_event(CHANNEL).unwrap();
    assert_eq!((event.kind, event.status), (AddressError, -101));
    assert!(manager.may_resolve(CHANNEL, id).is_ok(), "it may be tried again");
    let end = network.programs[0].end(5);
    let manager = &mut network.programs[0].manager;
    manager.bound(id, end);
    assert_eq!(manager.may_bind(CHANNEL, id), Err(Refusal::Invalid));
    assert_eq!(manager.may_listen(CHANNEL, id), Ok((PortSpace::Tcp, true)));
    manager.listen(id, 1);
    assert_eq!(manager.may_listen(CHANNEL, id), Err(Refusal::Invalid));
}

#[test]
fn private_data_have_the_room_of_the_specification() {
    for (space, of_request, of_reply) in [(PortSpace::Tcp, 56, 196), (PortSpace::Udp, 180, 136)] {
        let mut network = Network::new();
        network.listen(space, 0);
        let id = network.routed(7, space);
        let manager = &mut network.programs[0].manager;
        assert_eq!(manager.connect(CHANNEL, id, parameters(1, &vec![1; of_request + 1])), Err(Refusal::Invalid));
        manager.connect(CHANNEL, id, parameters(1, &vec![1; of_request])).unwrap();
        network.perform();
        network.settle();
        let asked = network.event(1).unwrap();
        assert_eq!(asked.parameters.private.as_slice().len(), of_request);
        let manager = &mut network.programs[1].manager;
        if of_reply < PrivateData::BYTES_MAX {
            let more = parameters(1, &vec![1; of_reply + 1]);
            assert_eq!(manager.accept(CHANNEL, asked.id, 1, more), Err(Refusal::Invalid));
        }
        assert_eq!(manager.reject(CHANNEL, asked.id, 0, data(&[1; 149])), Err(Refusal::Invalid));
        manager.accept(CHANNEL, asked.id, 1, parameters(1, &vec![1; of_reply])).unwrap();
        network.perform();
        network.settle();
        assert_eq!(network.event(0).unwrap().parameters.private.as_slice().len(), of_reply);
    }
}
