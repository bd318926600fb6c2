use isthmus_client::Reason;
use isthmus_report::ReasonCount;

use super::*;

fn process(pid: u32, program: &str, library: Library) -> Process {
    Process { pid, program: program.to_owned(), uid: Some(1000), started: None, library, obstacle: None }
}

fn end(pid: Option<i32>, address: &str, state: &str, path: &str) -> StreamEndRow {
    StreamEndRow {
        pid,
        uid: 1000,
        program: "nginx".to_owned(),
        address: address.to_owned(),
        peer_address: None,
        state: Some(state.to_owned()),
        path: Some(path.to_owned()),
        shared_bytes: Some(900),
        tcp_bytes: Some(32_768),
        read_bytes: Some(900),
        switches: Some(1),
        sleeps: Some(7),
    }
}

fn answer() -> Answer {
    Answer {
        pid: 7,
        fd: 5,
        local: "10.0.0.1:40000".parse().expect("an address"),
        remote: "10.0.0.2:80".parse().expect("an address"),
        state: "established",
        path: Path::Tcp,
        causes: Vec::new(),
        process: process(7, "curl", Library::Loaded),
        peer: Place::ThisHost,
        is_far: false,
        peer_process: Some(process(81, "nginx", Library::Loaded)),
        stream: None,
        is_kept: false,
    }
}

fn report(enabled: bool) -> StreamsReport {
    let refused = vec![ReasonCount::new(Reason::StreamDenied, 2)];
    let (streams, ended, sockets) = (Vec::new(), None, Some(Vec::new()));
    StreamsReport {
        schema: 1,
        enabled,
        recorded: Some(false),
        unrecorded: Some("no helper".to_owned()),
        across: Some(true),
        programs: 2,
        waiting: 0,
        listening: 1,
        paired: 0,
        refused,
        streams,
        hidden: None,
        ended,
        sockets,
    }
}

/// A socket without a stream, of the connection of [`answer`]: `ends` are its address and that of the other end.
fn socket_row(state: &str, inode: u64, ends: (&str, Option<&str>), reason: Reason) -> StreamSocketRow {
    StreamSocketRow {
        state: state.to_owned(),
        pid: Some(7),
        uid: 1000,
        program: "curl".to_owned(),
        inode,
        address: ends.0.to_owned(),
        peer_address: ends.1.map(str::to_owned),
        age_s: 5,
        reason: reason.name().to_owned(),
    }
}

fn socket() -> Socket {
    let Answer { local, remote, state, .. } = answer();
    Socket { local, remote, state, inode: 9 }
}

/// The reasons of the causes of a connection, with these rows of sockets.
fn reasons(shown: &mut Answer, rows: Vec<StreamSocketRow>) -> Vec<Option<String>> {
    let report = StreamsReport { sockets: Some(rows), ..report(true) };
    let kept = Kept::find(&report, &socket());
    shown.find_causes(&Ok(report), kept, None).expect("causes");
    shown.causes.iter().map(|cause| cause.reason.clone()).collect()
}

#[test]
fn refusal_of_the_connection_is_its_cause() {
    let (own, other) = (("10.0.0.1:40000", Some("10.0.0.2:80")), ("10.0.0.2:80", Some("10.0.0.1:40000")));
    let denied = |inode, ends| socket_row("refused", inode, ends, Reason::StreamDenied);
    let cause = |rows| reasons(&mut answer(), rows);
    let is_denied = [Some("stream-denied".to_owned())];
    assert_eq!(cause(vec![denied(9, own)]), is_denied);
    assert_eq!(cause(vec![denied(8, other)]), is_denied);
    assert_eq!(cause(vec![denied(8, ("0.0.0.0:80", None))]), is_denied);
    assert_eq!(cause(vec![denied(8, ("[::ffff:10.0.0.2]:80", None))]), is_denied);
    // Of other connections, and of an earlier socket with these addresses.
    let elsewhere = [denied(9, ("10.0.0.1:40001", Some("10.0.0.2:80"))), denied(8, ("10.0.0.3:80", None))];
    assert_eq!(cause([&elsewhere[..], &[denied(8, own)]].concat()), [None]);
    // The last one counts.
    let full = socket_row("refused", 9, own, Reason::StreamsFull);
    assert_eq!(cause(vec![denied(9, own), full]), [Some("streams-full".to_owned())]);
}

#[test]
fn socket_that_waits_is_a_cause_unless_the_other_end_has_one() {
    let own = ("10.0.0.1:40000", Some("10.0.0.2:80"));
    let waiting = |reason| vec![socket_row("waiting", 9, own, reason)];
    let mut shown = answer();
    assert_eq!(reasons(&mut shown, waiting(Reason::StreamUnidentified)), [Some("stream-unidentified".to_owned())]);
    assert!(text(&shown).contains("this socket waits since 5 s"), "{}", text(&shown));
    let obstacle = Some(process::Obstacle { cause: "it is static".to_owned(), remedy: "Link it.".to_owned() });
    let mut shown = answer();
    shown.peer_process = Some(Process { obstacle, ..process(81, "nginx", Library::NotLoaded) });
    assert_eq!(reasons(&mut shown, waiting(Reason::StreamPeerMissing)), [None]);
}

#[test]
fn stream_is_shown_with_the_path_of_each_direction() {
    let stream = OwnStream {
        id: "0x100000001".to_owned(),
        age_s: 61,
        own: end(Some(7), "10.0.0.1:40000", "attached", "large"),
        peer: end(None, "10.0.0.2:80", "waiting", "tcp"),
    };
    insta::assert_snapshot!(text(&Answer { path: Path::Stream, stream: Some(stream), ..answer() }));
}

#[test]
fn connection_without_a_stream_is_shown_with_every_cause() {
    let mut shown = answer();
    let obstacle = Some(process::Obstacle { cause: "it is static".to_owned(), remedy: "Link it.".to_owned() });
    shown.peer_process = Some(Process { uid: Some(7), obstacle, ..process(81, "nginx", Library::NotLoaded) });
    shown.find_causes(&Ok(report(false)), None, None).expect("causes");
    insta::assert_snapshot!(text(&shown));
    let reasons: Vec<_> = shown.causes.iter().map(|cause| cause.reason.as_deref()).collect();
    assert_eq!(reasons, [None, Some("streams-disabled")]);
}

#[test]
fn refusals_of_other_connections_are_no_cause() {
    // The daemon counts refused sockets of all programs. Those of the same process may be of another connection.
    let mut shown = answer();
    shown.find_causes(&Ok(report(true)), None, None).expect("causes");
    assert_eq!(shown.causes.iter().map(|cause| cause.reason.as_deref()).collect::<Vec<_>>(), [None]);
    let json = serde_json::to_string(&shown).expect("JSON");
    for told in [text(&shown), json] {
        assert!(!told.contains("stream-denied") && !told.contains("denied"), "{told}");
        assert!(told.contains("`isthmus stream list`"), "{told}");
    }
}

#[test]
fn place_of_the_other_end_is_a_cause() {
    for (place, reason) in [
        (Place::Elsewhere, Some("stream-peer-missing")),
        (Place::Ambiguous, None),
        (Place::Closed, Some("stream-wrong-state")),
        (Place::Queued, None),
        (Place::Hidden, None),
    ] {
        let mut shown = Answer { peer: place, peer_process: None, ..answer() };
        shown.find_causes(&Ok(report(true)), None, None).expect("causes");
        assert_eq!(shown.causes.iter().map(|cause| cause.reason.as_deref()).collect::<Vec<_>>(), [reason], "{place:?}");
        assert!(text(&shown).starts_with("curl (7:5) and 10.0.0.2:80: by TCP\n"), "{}", text(&shown));
    }
}

#[test]
fn other_network_namespace_is_the_only_cause_unless_streams_may_cross() {
    let across = |across, peer| {
        let mut shown = Answer { peer, is_far: true, ..answer() };
        let own = ("10.0.0.1:40000", Some("10.0.0.2:80"));
        let sockets = Some(vec![socket_row("waiting", 9, own, Reason::StreamAcrossNamespaces)]);
        let report = StreamsReport { across: Some(across), sockets, ..report(true) };
        let kept = Kept::find(&report, &socket()).filter(|_| !across);
        shown.find_causes(&Ok(report), kept, None).expect("causes");
        shown.causes.into_iter().map(|cause| cause.reason).collect::<Vec<_>>()
    };
    for place in [Place::ThisHost, Place::Ambiguous] {
        assert_eq!(across(false, place), [Some(Reason::StreamAcrossNamespaces.name().to_owned())]);
    }
    assert_eq!(across(true, Place::ThisHost), [None]);
}

#[test]
fn stream_of_an_earlier_daemon_is_possible_if_both_programs_are_older() {
    let shown = |own: u64, peer: u64| {
        let mut answer = answer();
        answer.process.started = Some(own);
        answer.peer_process = Some(Process { started: Some(peer), ..process(81, "nginx", Library::Loaded) });
        answer
    };
    let is_possible = |answer: Answer, daemon| answer.undecided(daemon).text.contains("an earlier daemon");
    assert!(is_possible(shown(10, 20), Some(30)));
    let mut explained = shown(10, 20);
    explained.find_causes(&Ok(report(true)), None, Some(30)).expect("causes");
    assert!(text(&explained).starts_with("curl (7:5) and nginx (81): by TCP, or by a stream of an earlier daemon\n"));
    let kept = |state: &str, ends, peer| {
        let rows = vec![socket_row(state, 9, ends, Reason::StreamDenied)];
        is_kept(&StreamsReport { sockets: Some(rows), ..report(true) }, &socket(), peer)
    };
    let (own, other) = (("10.0.0.1:40000", Some("10.0.0.2:80")), ("10.0.0.2:80", Some("10.0.0.1:40000")));
    assert!(kept("kept", own, None) && !kept("refused", own, None));
    assert!(kept("kept", other, Some(7)) && !kept("kept", other, Some(8)) && !kept("kept", other, None));
    assert!(!kept("kept", ("10.0.0.1:40000", Some("10.0.0.2:81")), Some(7)));
    let learns_later = |answer: Answer| answer.undecided(Some(30)).text.contains("learns of the daemon");
    for (own, peer) in [(10, 40), (40, 10)] {
        assert!(!is_possible(shown(own, peer), Some(30)) && learns_later(shown(own, peer)));
    }
    assert!(!learns_later(shown(40, 50)));
    assert!(!is_possible(shown(10, 20), None) && !is_possible(answer(), Some(30)));
}

#[test]
fn missing_daemon_is_a_cause_and_other_errors_are_errors() {
    let mut shown = answer();
    shown.find_causes(&Err(Refusal::new(Reason::DaemonUnreachable, "/run/x").into()), None, None).expect("causes");
    assert_eq!(shown.causes[0].reason.as_deref(), Some("daemon-unreachable"));
    // In a guest, nothing is said about a connection that is not worth a stream yet.
    let mut shown = answer();
    let refusal = Refusal::not_in_guests_yet(isthmus_layout::Capability::Sockets);
    shown.find_causes(&Err(refusal.into()), None, None).expect("causes");
    assert_eq!(
        shown.causes.iter().map(|cause| cause.reason.as_deref()).collect::<Vec<_>>(),
        [Some("not-in-guests-yet")]
    );
    assert!(text(&shown).contains("supported in guests yet (sockets)"), "{}", text(&shown));
    assert!(shown.find_causes(&Err(anyhow::anyhow!("not JSON")), None, None).is_err());
}

#[test]
fn stream_is_matched_by_addresses_and_process() {
    let socket = Socket {
        local: "10.0.0.2:80".parse().expect("an address"),
        remote: "10.0.0.1:40000".parse().expect("an address"),
        state: "established",
        inode: 9,
    };
    let stream = |pid: Option<i32>, port: u16| StreamRow {
        id: "0x1".to_owned(),
        age_s: 0,
        connector: end(None, &format!("10.0.0.1:{port}"), "attached", "small"),
        acceptor: end(pid, "[::ffff:10.0.0.2]:80", "attached", "small"),
    };
    let is_found = |pid, port| OwnStream::matching(&stream(pid, port), &socket, &[7, 81]).is_some();
    assert!(is_found(Some(81), 40000) && is_found(Some(7), 40000) && is_found(None, 40000));
    assert!(!is_found(Some(82), 40000), "the same addresses in another network namespace");
    assert!(!is_found(Some(81), 40001));
}
