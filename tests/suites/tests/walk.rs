//! `docs/design/walk.md` is true: a real message passes the functions it names, in that order, and no other noted step.

/// The functions that the document names, in order: each numbered item begins with a link, and the link's text is a function.
#[cfg(debug_assertions)]
fn documented() -> Vec<String> {
    let text = include_str!("../../../docs/design/walk.md");
    let named = |line: &str| {
        let (number, rest) = line.split_once(". [`")?;
        number.parse::<u32>().ok()?;
        Some(rest.split_once("`]")?.0.to_owned())
    };
    text.lines().filter_map(named).collect()
}

#[cfg(debug_assertions)]
#[test]
fn a_message_takes_the_steps_of_the_document() {
    use isthmus_client::{Domain, EndpointAddress, Options, Outcome, PathKind};
    use isthmus_testbed::{Deadline, Scratch, eventually};

    let scratch = Scratch::new().unwrap();
    let daemon = isthmus_suites::daemon(&scratch, "");
    let options = Options { socket: Some(daemon.socket()), no_autostart: true, ..Options::default() };
    let [mut a, mut b] = [(), ()].map(|()| Domain::attach_with(&options).unwrap());
    let [from, to] = [&mut a, &mut b].map(|domain| {
        let endpoint = domain.open(None, "").unwrap();
        EndpointAddress { domain: domain.id(), endpoint }
    });
    // The first message makes the channel; both send by it when both say so.
    a.send(from.endpoint, to, 0, vec![0; 8].into()).unwrap();
    let uses_it = |domain: &mut Domain| domain.channels().iter().any(|peer| matches!(peer.path, PathKind::Channel(_)));
    let made = eventually(Deadline::secs(isthmus_suites::TIMEOUT_S), || {
        a.poll();
        b.poll();
        uses_it(&mut a) && uses_it(&mut b)
    });
    made.unwrap();
    b.receive(to.endpoint, vec![0; 8].into()).unwrap();
    let mut first = None;
    eventually(Deadline::secs(isthmus_suites::TIMEOUT_S), || {
        a.poll();
        first = first.take().or_else(|| b.poll());
        first.is_some() && b.arm()
    })
    .unwrap();
    b.receive(to.endpoint, vec![0; 8].into()).unwrap();
    eventually(Deadline::secs(isthmus_suites::TIMEOUT_S), || b.arm()).unwrap();

    isthmus_shm::step::take();
    a.send(from.endpoint, to, 7, vec![9; 8].into()).unwrap();
    // The first look finds the mark, the second the message.
    let got = b.poll().or_else(|| b.poll()).expect("the message is there when send has returned");
    let steps = isthmus_shm::step::take();

    assert_eq!(got.outcome, Outcome::Received { from, tag: 7, len: 8 });
    assert_eq!(steps, documented());
}

#[cfg(not(debug_assertions))]
#[test]
fn a_message_takes_the_steps_of_the_document() {
    println!("skipped: a release notes no steps");
}
