//! MX endpoint numbers, by the library and a real `isthmusd`: claimed, found, given back, and claimed again from the next daemon.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_client::{EndpointAddress, MxOpenedEndpoint, QueryClient, Reason};
use isthmus_suites::attach::{attach, options, reason};
use isthmus_suites::{TIMEOUT_S, daemon as start};
use isthmus_testbed::{Deadline, Scratch, eventually};
use std::time::Duration;

const TWO_BOARDS: &str =
    "[[mx.board]]\nname = \"near\"\nendpoints_max = 2\n[[mx.board]]\nname = \"far\"\nendpoints_max = 2\n";

#[test]
fn programs_find_each_other_by_board_number_and_key() {
    let scratch = Scratch::new().unwrap();
    let daemon = start(&scratch, TWO_BOARDS);
    let ((mut a, at_a), (mut b, at_b)) = (attach(&daemon, "a"), attach(&daemon, "b"));
    let boards = QueryClient::connect(&options(&daemon, "asks")).unwrap().mx().unwrap().boards;
    assert_eq!(boards.iter().map(|board| board.name.as_str()).collect::<Vec<_>>(), ["near", "far"]);
    let nics = [boards[0].nic, boards[1].nic];
    // Any and any: the lowest number, on the lowest board that has it free.
    assert_eq!(a.mx_open(None, None, 7, at_a), Ok(MxOpenedEndpoint { board: 0, endpoint: 0, nic: nics[0] }));
    assert_eq!(b.mx_open(None, None, 8, at_b), Ok(MxOpenedEndpoint { board: 1, endpoint: 0, nic: nics[1] }));
    let more = a.open(None, "").unwrap();
    assert_eq!(reason(a.mx_open(Some(1), Some(0), 7, more)), Reason::MxEndpointTaken);
    assert_eq!(reason(a.mx_open(Some(2), None, 7, more)), Reason::MxBoardUnknown);
    assert_eq!(reason(a.mx_open(Some(0), Some(2), 7, more)), Reason::MxEndpointOutOfRange);
    assert_eq!(a.mx_open(None, None, 7, more), Ok(MxOpenedEndpoint { board: 0, endpoint: 1, nic: nics[0] }));
    let to_b = EndpointAddress { domain: b.id(), endpoint: at_b };
    assert_eq!(a.mx_connect(nics[1], 0, 8), Ok(to_b));
    assert_eq!(reason(a.mx_connect(nics[1], 0, 7)), Reason::MxBadKey);
    assert_eq!(reason(a.mx_connect(nics[1], 1, 8)), Reason::MxEndpointClosed);
    assert_eq!(reason(a.mx_connect(nics[1], 2, 8)), Reason::MxEndpointOutOfRange);
    assert_eq!(reason(a.mx_connect(1, 0, 8)), Reason::MxNicUnknown);
    // What was found takes messages like any endpoint.
    b.receive(at_b, vec![0; 5].into()).unwrap();
    a.send(at_a, to_b, 1, b"hello".to_vec().into()).unwrap();
    let completion = Deadline::secs(TIMEOUT_S);
    let received = loop {
        a.poll();
        if let Some(received) = b.poll() {
            break received;
        }
        assert!(!completion.has_passed(), "the message does not come");
    };
    assert_eq!(received.buffer.as_slice(), b"hello");
    let report = a.mx().unwrap();
    let taken: Vec<_> =
        report.boards.iter().flat_map(|board| &board.endpoints).map(|taken| &taken.domain.name).collect();
    assert_eq!(taken, ["a", "a", "b"]);
    assert_eq!(report.peers.iter().map(|peer| peer.nic).collect::<Vec<_>>(), nics);
}

#[test]
fn mx_resolve_answers_for_a_detached_domain() {
    let scratch = Scratch::new().unwrap();
    let daemon = start(&scratch, "");
    let ((mut a, at_a), (mut b, at_b)) = (attach(&daemon, "a"), attach(&daemon, "b"));
    let opened = b.mx_open(None, Some(31), 0, at_b).unwrap();
    let to_b = EndpointAddress { domain: b.id(), endpoint: at_b };
    assert_eq!(a.mx_resolve(to_b), Ok((opened.nic, 31)));
    assert_eq!(reason(a.mx_resolve(EndpointAddress { domain: a.id(), endpoint: at_a })), Reason::MxNumberMissing);
    b.detach(Duration::from_secs(1));
    assert_eq!(a.mx_resolve(to_b), Ok((opened.nic, 31)));
    assert_eq!(a.mx_open(None, Some(31), 0, at_a), Ok(opened), "the number is free again");
}

#[test]
fn the_next_daemon_knows_the_numbers_again() {
    let scratch = Scratch::new().unwrap();
    let mut daemon = start(&scratch, "");
    let ((mut a, at_a), (mut b, at_b)) = (attach(&daemon, "a"), attach(&daemon, "b"));
    let opened = b.mx_open(None, None, 42, at_b).unwrap();
    let closed = b.open(None, "").unwrap();
    b.mx_open(None, Some(9), 42, closed).unwrap();
    b.close(closed).unwrap();
    daemon.kill_and_restart(Deadline::secs(TIMEOUT_S)).unwrap();
    // A program that comes first cannot take the number of another one that will come back.
    let claimed = a.mx_open(None, None, 1, at_a).unwrap();
    assert_ne!(claimed.endpoint, opened.endpoint);
    eventually(Deadline::secs(TIMEOUT_S), || {
        b.wait(Some(Duration::from_millis(10)));
        b.is_connected() && a.mx_connect(opened.nic, opened.endpoint, 42).is_ok()
    })
    .unwrap();
    let to_b = EndpointAddress { domain: b.id(), endpoint: at_b };
    assert_eq!(a.mx_connect(opened.nic, opened.endpoint, 42), Ok(to_b));
    assert_eq!(reason(a.mx_connect(opened.nic, opened.endpoint, 43)), Reason::MxBadKey);
    assert_eq!(reason(a.mx_connect(opened.nic, 9, 42)), Reason::MxEndpointClosed, "it was closed before");
}
