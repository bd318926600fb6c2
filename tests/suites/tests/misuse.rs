//! Programs that misuse the library by mistake, or use it at its edges: an error or a documented meaning, and never a hang.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_client::{Domain, EndpointAddress, EndpointIndex, Options, Outcome};
use isthmus_suites::{TIMEOUT_S, TestProgram, daemon, pattern};
use isthmus_testbed::{DaemonProcess, Deadline, Scratch, eventually};

/// A domain in this process.
fn attach(daemon: &DaemonProcess, name: &str) -> Domain {
    let name = isthmus_layout::control::Name::new(name).expect("a valid name");
    let options = Options { name: Some(name), socket: Some(daemon.socket()), no_autostart: true, ..Options::default() };
    Domain::attach_with(&options).unwrap_or_else(|error| panic!("{error}"))
}

fn endpoint(domain: &mut Domain) -> EndpointAddress {
    let endpoint = domain.open(None, "").expect("an endpoint is free");
    EndpointAddress { domain: domain.id(), endpoint }
}

/// Lets two domains of one thread go on until `done`.
#[track_caller]
fn until(a: &mut Domain, b: &mut Domain, mut done: impl FnMut(&mut Domain, &mut Domain) -> bool) {
    let both = eventually(Deadline::secs(TIMEOUT_S), || {
        for _ in 0..1000 {
            if done(a, b) {
                return true;
            }
        }
        false
    });
    both.unwrap_or_else(|late| panic!("{late}"));
}

#[test]
fn self_message_needs_no_daemon() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let mut domain = attach(&daemon, "self");
    let (one, two) = (endpoint(&mut domain), endpoint(&mut domain));
    for len in [0, 1, 128, 129, 32768, 40000, 3_000_000] {
        domain.send(one.endpoint, two, len as u64, pattern::message(7, len).into()).unwrap();
        let mut into = vec![pattern::GUARD; len + 3];
        let got = domain.receive_into(two.endpoint, &mut into).unwrap();
        assert_eq!((got.from, got.tag, got.len), (one, len as u64, len as u64));
        assert_eq!(pattern::first_wrong(7, len, &into), None);
    }
    let closed = EndpointAddress { endpoint: EndpointIndex::new(9).unwrap(), ..two };
    domain.send(one.endpoint, closed, 0, vec![1].into()).unwrap();
    let ended = std::iter::from_fn(|| domain.poll()).last().unwrap();
    assert_eq!(ended.outcome, Outcome::Failed(isthmus_client::Reason::EndpointClosed));
}

#[test]
fn memory_around_a_receive_is_left_alone() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let mut b = attach(&daemon, "b");
    let to = endpoint(&mut b);
    let mut a = TestProgram::launch_on_host(&daemon, "a");
    let lengths = [0, 1, 40, 41, 127, 128, 129, 2047, 2049, 8193, 32768, 32769, 100_001, 1_048_577];
    let list = lengths.map(|len| len.to_string()).join(",");
    for less in [0, 1, 17] {
        a.send_line(&format!("exchange 0 {to} 50 {list} 0 - window=1 buffers=reused"));
        for (number, len) in lengths.into_iter().enumerate() {
            let room = usize::saturating_sub(len, less);
            let mut around = vec![pattern::GUARD; 64 + room + 64];
            let got = b.receive_into(to.endpoint, &mut around[64..64 + room]).unwrap();
            assert_eq!((got.tag, got.len), (50 + number as u64, len as u64));
            assert_eq!(pattern::first_wrong(got.tag, room, &around[64..]), None, "{len} into {room}");
            assert!(around[..64].iter().all(|&byte| byte == pattern::GUARD));
        }
        assert!(a.answer().starts_with("exchanged"));
    }
}

#[test]
fn send_to_a_closed_endpoint_fails() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let (mut a, mut b) = (attach(&daemon, "a"), attach(&daemon, "b"));
    let (from, to) = (endpoint(&mut a), endpoint(&mut b));
    // Ours.
    let nobody = EndpointIndex::new(20).unwrap();
    let (refusal, buffer) = a.send(nobody, to, 0, vec![1, 2].into()).unwrap_err();
    assert_eq!((refusal.reason, buffer.as_slice()), (isthmus_client::Reason::EndpointClosed, &[1, 2][..]));
    assert!(a.receive(nobody, vec![0].into()).is_err());
    assert!(a.close(nobody).is_err());
    // Theirs: short messages are gone when they are sent, announced ones come back.
    let theirs = EndpointAddress { endpoint: nobody, ..to };
    for round in 0..3 {
        let short = a.send(from.endpoint, theirs, 0, vec![0; 100].into()).unwrap();
        let medium = a.send(from.endpoint, theirs, 0, vec![0; 10_000].into()).unwrap();
        let long = a.send(from.endpoint, theirs, 0, vec![0; 100_000].into()).unwrap();
        let mut outcomes = Vec::new();
        until(&mut a, &mut b, |a, b| {
            assert!(b.poll().is_none());
            outcomes.extend(a.poll().map(|completion| (completion.token, completion.outcome)));
            outcomes.len() == 3
        });
        outcomes.sort_by_key(|(token, _)| *token);
        let failed = Outcome::Failed(isthmus_client::Reason::EndpointClosed);
        let sent = |taken| Outcome::Sent { taken };
        assert_eq!(outcomes, [(short, sent(100)), (medium, sent(10_000)), (long, failed)], "round {round}");
    }
    // Closing completes what was posted, and drops what was announced.
    let posted = b.receive(to.endpoint, vec![0; 8].into()).unwrap();
    let other = b.open(None, "").unwrap();
    b.close(to.endpoint).unwrap();
    let cancelled = b.poll().unwrap();
    assert_eq!((cancelled.token, cancelled.outcome), (posted, Outcome::Cancelled));
    a.send(from.endpoint, EndpointAddress { endpoint: other, ..to }, 0, vec![0; 100_000].into()).unwrap();
    for _ in 0..1000 {
        assert!(a.poll().is_none() && b.poll().is_none());
    }
    b.close(other).unwrap();
    let mut ended = None;
    until(&mut a, &mut b, |a, b| {
        b.poll();
        ended = a.poll();
        ended.is_some()
    });
    assert_eq!(
        ended.map(|completion| completion.outcome),
        Some(Outcome::Failed(isthmus_client::Reason::EndpointClosed))
    );
}

#[test]
fn a_receive_is_cancelled_once_and_only_before_it_began() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let (mut a, mut b) = (attach(&daemon, "a"), attach(&daemon, "b"));
    let (from, to) = (endpoint(&mut a), endpoint(&mut b));
    let first = b.receive(to.endpoint, vec![0; 8].into()).unwrap();
    let second = b.receive(to.endpoint, vec![0; 8].into()).unwrap();
    assert!(b.cancel(to.endpoint, first));
    assert!(!b.cancel(to.endpoint, first));
    assert_eq!(b.poll().map(|completion| (completion.token, completion.outcome)), Some((first, Outcome::Cancelled)));
    a.send(from.endpoint, to, 5, vec![3; 8].into()).unwrap();
    let mut got = None;
    until(&mut a, &mut b, |a, b| {
        a.poll();
        got = b.poll();
        got.is_some()
    });
    let got = got.unwrap();
    assert_eq!((got.token, got.buffer.as_slice()), (second, &[3; 8][..]));
    assert!(!b.cancel(to.endpoint, second));
}

#[test]
fn detaching_with_requests_pending_gives_every_buffer_back() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let mut b = TestProgram::launch_on_host(&daemon, "b");
    for (config, limit) in [("", 0), ("", 200), ("channels=no", 200)] {
        let mut a =
            TestProgram::start_attached(daemon.launch_on_host(isthmus_suites::test_program::program()), "a", config);
        for order in ["receive 0 100", "receive 0 1000000", "send 0 b.e0 50000 1", "send 0 b.e0 8 2", "send 0 a.e0 3 4"]
        {
            assert!(a.ask(order).starts_with("posted "));
        }
        // The message to itself took the first receive; the rest comes back now, the large one unsent.
        let answer = a.ask(&format!("detach {limit}"));
        assert!(answer.starts_with("detached 5 "), "{answer}");
        assert_eq!(a.ask("poll"), "invalid order: not attached");
        let again = a.ask("attach name=a");
        assert!(again.starts_with("attached "), "{again}");
        b.expect("lookup a", &format!("found {}", again.split(' ').nth(1).unwrap()));
    }
}

#[test]
fn messages_sent_before_detach_arrive() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    for options in ["", "channels=no"] {
        let mut b =
            TestProgram::start_attached(daemon.launch_on_host(isthmus_suites::test_program::program()), "b", options);
        for round in 0..5 {
            let mut a = TestProgram::start_attached(
                daemon.launch_on_host(isthmus_suites::test_program::program()),
                "a",
                options,
            );
            let address = a.ask("lookup a").replace("found ", "");
            b.send_line(&format!("exchange 0 {address}.e0 0 - 100 200x8,10x20000,3x100000,5x8 window=300 ms=20000"));
            let list = "200x8,10x20000,3x100000,5x8";
            let mut tag = 100;
            for part in list.split(',') {
                let (times, len) = part.split_once('x').unwrap();
                for _ in 0..times.parse::<usize>().unwrap() {
                    a.send_line(&format!("send 0 b.e0 {len} {tag}"));
                    tag += 1;
                }
            }
            for _ in 100..tag {
                assert!(a.answer().starts_with("posted"));
            }
            let answer = a.ask("detach 10000");
            assert!(answer.starts_with("detached ") && !answer.contains("failed"), "{answer}");
            let answer = b.answer();
            assert!(answer.starts_with("exchanged "), "{options} round {round}: {answer}");
        }
    }
}

#[test]
fn a_descriptor_in_an_event_loop_wakes_for_messages_and_not_otherwise() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    for options in ["", "channels=no"] {
        let program = isthmus_suites::test_program::program;
        let mut a = TestProgram::start_attached(daemon.launch_on_host(program()), "a", options);
        let mut b = TestProgram::start_attached(daemon.launch_on_host(program()), "b", options);
        for tag in 0..200 {
            let len = [8, 5000, 100_000][tag % 3];
            b.send_line(&format!("receive 0 {len}"));
            assert!(b.answer().starts_with("posted"));
            b.send_line("sleep-on-fd 20000");
            assert!(a.ask(&format!("send 0 b.e0 {len} {tag}")).starts_with("posted"));
            a.expect("wait 20000", &format!("sent {}", tag + 1));
            let woken = b.answer();
            assert!(woken.contains(&format!("tag {tag} len {len} good after")), "{woken}");
        }
        // Nothing comes: it sleeps through. (A wake-up or two may be for trimming, and credit.)
        let idle = b.ask("sleep-on-fd 2500");
        let wakes: usize = idle.strip_prefix("nothing after ").and_then(|wakes| wakes.parse().ok()).unwrap_or(99);
        assert!(wakes <= 4, "{idle}");
    }
}

#[test]
fn message_to_an_absent_domain_fails_with_the_reason() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    for options in ["", "channels=no"] {
        let mut a =
            TestProgram::start_attached(daemon.launch_on_host(isthmus_suites::test_program::program()), "a", options);
        assert!(a.ask("lookup absent").contains("[no-such-domain]"));
        for (len, token) in [(8, 1), (5000, 2), (100_000, 3)] {
            assert_eq!(a.ask(&format!("send 0 d4000.e0 {len} 1")), format!("posted {token}"));
            a.expect("wait 10000", &format!("failed {token} no-such-domain"));
        }
        let b =
            TestProgram::start_attached(daemon.launch_on_host(isthmus_suites::test_program::program()), "b", options);
        let address = a.ask("lookup b").replace("found ", "");
        b.kill();
        a.ask(&format!("send 0 {address}.e0 100000 1"));
        let failed = a.ask("wait 10000");
        assert!(failed.starts_with("failed 4 no-such-domain") || failed.starts_with("failed 4 peer-"), "{failed}");
        let channels = a.ask("channels");
        assert!(channels.contains("d4000 daemon ") && !channels.contains("queued 1"), "{channels}");
    }
}

/// Numbers of the upper half stand for domains that the daemon reaches on other hosts.
#[test]
fn remote_peer_gets_no_channel() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let mut a = TestProgram::start_attached(daemon.launch_on_host(isthmus_suites::test_program::program()), "a", "");
    assert_eq!(a.ask(&format!("send 0 d{}.e0 100000 1", 5_u32 | 1 << 31)), "posted 1");
    a.expect("wait 10000", "failed 1 no-such-domain");
    let channels = a.ask("channels");
    assert!(channels.contains("r5 daemon other-host"), "{channels}");
}

#[test]
fn thirty_two_endpoints_keep_their_messages_apart() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let (mut a, mut b) = (attach(&daemon, "a"), attach(&daemon, "b"));
    let from = endpoint(&mut a);
    let all: Vec<_> = (0..32).map(|_| endpoint(&mut b)).collect();
    let refusal = b.open(None, "").unwrap_err();
    assert_eq!(refusal.reason, isthmus_client::Reason::EndpointsFull);
    let refusal = a.open(Some(from.endpoint), "").unwrap_err();
    assert_eq!(refusal.reason, isthmus_client::Reason::EndpointTaken);
    for round in 0..3_u64 {
        for (at, to) in all.iter().enumerate() {
            let tag = round * 100 + at as u64;
            a.send(from.endpoint, *to, tag, pattern::message(tag, 10 * at).into()).unwrap();
        }
        for (at, to) in all.iter().enumerate().rev() {
            let token = b.receive(to.endpoint, vec![0; 10 * at].into()).unwrap();
            let mut got = None;
            until(&mut a, &mut b, |a, b| {
                a.poll();
                got = b.poll();
                got.is_some()
            });
            let got = got.unwrap();
            let tag = round * 100 + at as u64;
            assert_eq!((got.token, got.endpoint), (token, to.endpoint));
            assert_eq!(got.outcome, Outcome::Received { from, tag, len: 10 * at as u64 });
            assert_eq!(pattern::first_wrong(tag, 10 * at, got.buffer.as_slice()), None);
        }
    }
}

#[test]
fn library_adds_no_thread_or_signal_handler() {
    let scratch = Scratch::new().unwrap();
    let daemon = daemon(&scratch, "");
    let mut idle = TestProgram::start(daemon.launch_on_host(isthmus_suites::test_program::program()));
    idle.ask("spin 0"); // It answers, so its runtime has installed what it installs in any program.
    let signals = idle.view().caught_signals().unwrap();
    let (mut a, mut b) = (TestProgram::launch_on_host(&daemon, "a"), TestProgram::launch_on_host(&daemon, "b"));
    a.send_line("exchange 0 b.e0 1 20x8,5x20000,9x400000 1 20x8 buffers=reused");
    b.expect("exchange 0 a.e0 1 20x8 1 20x8,5x20000,9x400000", "exchanged sent 20 of 20 received 34 of 34");
    a.answer();
    for actor in [&a, &b] {
        assert_eq!(actor.view().threads().unwrap().len(), 1);
        assert_eq!(actor.view().caught_signals().unwrap(), signals);
        let fds = actor.view().fds().unwrap();
        let leaky: Vec<_> = fds.iter().filter(|fd| fd.number > 2 && !fd.closes_on_exec).collect();
        assert!(leaky.is_empty(), "{leaky:?}");
    }
    drop((a, b, idle));
}
