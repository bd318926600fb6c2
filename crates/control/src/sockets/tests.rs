//! The state of sockets, without a broker.

use isthmus_layout::control::Owner;
use isthmus_layout::reason::Reason;

use super::Sockets;
use super::evidence::{SocketReader, SocketRole, ThreadCount};
use super::pairing::{Decision, EndEvidence, Evidence, NoRecord};
use super::shown::{ShownId, ShownSockets, WAIT_NS};
use crate::core::types::ControlSessionId;
use crate::fd_reaper::ReceivedFd;
use crate::places::Taker;

const OWNER: Owner = Owner(1000);
const TAKER: Taker = Taker { account: OWNER, has_others: true };
const USER: (Owner, Taker) = (OWNER, TAKER);

fn shown(token: u32) -> ShownId {
    ShownId { session: ControlSessionId(1), token }
}

fn acceptor(socket: u64) -> Evidence {
    let end = EndEvidence::Acceptor { syn: None };
    let (local, peer) = (([10, 0, 0, 1], 80).into(), ([10, 0, 0, 2], 9).into());
    Evidence { local, peer, socket, netns: Some(1), record: Err(NoRecord::NoRecorder), end }
}

#[test]
fn shown_socket_waits_for_a_minute() {
    let mut sockets = ShownSockets::default();
    sockets.add(shown(1), acceptor(5), USER, 100, Reason::StreamPeerMissing).unwrap();
    sockets.add(shown(2), acceptor(6), USER, 200, Reason::StreamUnidentified).unwrap();
    assert_eq!(sockets.deadline(), Some(100 + WAIT_NS));
    assert_eq!(sockets.remove_overdue(99 + WAIT_NS), None);
    assert_eq!(sockets.remove_overdue(100 + WAIT_NS), Some((shown(1), Reason::StreamPeerMissing)));
    assert_eq!(sockets.remove_overdue(100 + WAIT_NS), None);
    assert_eq!(sockets.remove_overdue(200 + WAIT_NS), Some((shown(2), Reason::StreamUnidentified)));
    assert_eq!((sockets.deadline(), sockets.len()), (None, 0));
}

#[test]
fn removed_socket_is_no_candidate() {
    let mut sockets = ShownSockets::default();
    sockets.add(shown(1), acceptor(5), USER, 0, Reason::StreamPeerMissing).unwrap();
    let (mut connector, end) = (acceptor(6), EndEvidence::Connector { since_ms: 0, until_ms: 1, clock: None });
    (connector.local, connector.peer, connector.end) = (connector.peer, connector.local, end);
    assert_eq!(sockets.decide(&connector, OWNER, false), (Decision::Pair(0), vec![shown(1)]));
    assert!(sockets.with_socket(5).is_some() && sockets.remove(ControlSessionId(1), 1).is_some());
    assert_eq!(sockets.decide(&connector, OWNER, false), (Decision::Wait(None), vec![]));
    assert!(sockets.with_socket(5).is_none() && sockets.remove(ControlSessionId(1), 1).is_none());
}

#[test]
fn an_owner_has_few_waiting_sockets_with_the_same_addresses() {
    let mut sockets = ShownSockets::default();
    let other = (Owner(1001), Taker { account: Owner(1001), has_others: true });
    let mut add =
        |token: u32, user| sockets.add(shown(token), acceptor(token.into()), user, 0, Reason::StreamPeerMissing);
    let outcomes: Vec<_> = (0..17).map(|token| add(token, USER)).collect();
    assert_eq!(outcomes, [[Ok(()); 16].as_slice(), &[Err(Reason::StreamAmbiguous)]].concat());
    assert_eq!(add(100, other), Ok(()));
    sockets.remove(ControlSessionId(1), 3);
    assert_eq!(sockets.add(shown(200), acceptor(200), USER, 0, Reason::StreamPeerMissing), Ok(()));
    assert_eq!(sockets.len(), 17);
}

#[test]
fn users_share_the_places_of_waiting_sockets() {
    let mut sockets = ShownSockets::default();
    let mut fill = |user: u32| {
        let user = (Owner(user), Taker { account: Owner(user), has_others: true });
        let add = |token: u32| {
            let id = ShownId { session: ControlSessionId(user.0.0.into()), token };
            let mut evidence = acceptor(u64::from(user.0.0) << 32 | u64::from(token));
            evidence.peer.set_port(token as u16);
            sockets.add(id, evidence, user, 0, Reason::StreamPeerMissing)
        };
        (0..60_000).map(add).take_while(Result::is_ok).count()
    };
    assert_eq!([1, 2].map(&mut fill), [28_672, 14_336]);
}

#[test]
fn users_share_descriptors() {
    let mut sockets = Sockets::default();
    let other = Taker { account: Owner(1001), has_others: true };
    let mut take = |user: Taker| {
        let mut count = 0;
        while sockets.check_share(user, 400).is_ok() {
            sockets.add_fds(user.account, 1);
            count += 1;
        }
        count
    };
    assert_eq!((take(TAKER), take(other), take(TAKER)), (44, 22, 0));
    sockets.remove_fds(OWNER, 44);
    assert_eq!((sockets.fds(), sockets.check_share(TAKER, 400)), (22, Ok(())));
}

#[test]
fn thread_ends_with_the_last_socket() {
    let threads = ThreadCount::default();
    let reader = SocketReader::new(threads.clone());
    for _ in 0..3 {
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        let result = reader.read(OWNER, ReceivedFd::new(OWNER.0, pipe), SocketRole::Acceptor, None).unwrap();
        let read = result.blocking_recv().unwrap();
        assert!(read.name.is_none() && matches!(read.found, Err(Reason::StreamNotTcp)), "{read:?}");
    }
    drop(reader);
    while !threads.is_unused() {
        std::thread::yield_now();
    }
}
