use super::*;

const LIMITS: SessionLimits = SessionLimits { shared: 160, per_user: 100 };

fn users() -> Users {
    Users::new(LIMITS, 1000)
}

#[track_caller]
fn refusal(outcome: Result<UserSession, Refusal>) -> String {
    let refusal = outcome.expect_err("a refusal");
    assert_eq!(refusal.reason, Reason::ConnectionsFull);
    refusal.text().to_owned()
}

#[test]
fn users_share_the_places_of_connections() {
    let (mut users, now) = (users(), Instant::now());
    let mut held = Vec::new();
    let mut fill = |users: &mut Users, uid| loop {
        match users.admit(uid, true, now) {
            Ok(session) => held.push(session),
            Err(full) => return (held.len(), refusal(Err(full))),
        }
    };
    let (first, text) = fill(&mut users, 1);
    assert_eq!((first, text.contains("the user has 79 of 180")), (79, true), "{text}");
    // The last places go to users that have none.
    assert!((2..300).map(|uid| fill(&mut users, uid)).last().unwrap().1.contains("the limit for all users is 180"));
    assert_eq!((users.sessions.get(), held.len()), (180, 180));
    let of_user = |uid| held.iter().filter(|session| session.uid == uid).count();
    assert_eq!([2, 3, 4, 20].map(of_user), [39, 20, 10, 1]);
    drop(held);
    assert_eq!(users.sessions.get(), 0);
}

#[test]
fn the_only_user_has_its_limit_of_connections() {
    let (mut users, now) = (users(), Instant::now());
    let held: Vec<_> = (0..100).map(|_| users.admit(1, false, now).unwrap()).collect();
    assert!(refusal(users.admit(1, false, now)).contains("100 connections"));
    drop(held);
}

#[test]
fn refused_connections_take_no_place() {
    let (mut users, now) = (users(), Instant::now());
    let held: Vec<_> = (0..100).map(|_| users.admit(1, false, now).unwrap()).collect();
    for _ in 0..10_000 {
        refusal(users.admit(1, false, now));
    }
    assert_eq!(users.sessions.get(), held.len());
    drop(users.admit(2, false, now).unwrap());
}

#[test]
fn connections_cost_as_much_as_many_requests() {
    let (mut users, now) = (users(), Instant::now());
    let held = users.admit(1, true, now).unwrap();
    let mut connects = 1;
    while held.requests_allowed_at(now).is_none() {
        drop(users.admit(1, true, now).unwrap());
        connects += 1;
    }
    assert_eq!(f64::from(connects), BURST_REQUESTS / CONNECT_COST);
    assert_eq!(users.admit(2, true, now).unwrap().requests_allowed_at(now), None);
}

#[test]
fn bounds_the_requests_of_each_user() {
    let (mut users, now) = (users(), Instant::now());
    let sessions = [1, 1, 2].map(|uid| users.admit(uid, true, now).unwrap());
    sessions[0].take_requests(BURST_REQUESTS);
    let allowed = sessions.each_ref().map(|session| session.requests_allowed_at(now));
    assert_eq!(allowed, [Some(now + REQUESTS_PAUSE_MIN), Some(now + REQUESTS_PAUSE_MIN), None]);
    assert_eq!(sessions[1].requests_allowed_at(now + REQUESTS_PAUSE_MIN), None);
}

#[tokio::test(flavor = "current_thread")]
async fn users_take_turns_however_many_connections_they_have() {
    let handled = Rc::new(RefCell::new(Vec::new()));
    let serve = |session: UserSession, packets: usize| {
        let handled = Rc::clone(&handled);
        async move {
            for _ in 0..packets {
                session.turn().await;
                handled.borrow_mut().push(session.uid);
            }
        }
    };
    let local = tokio::task::LocalSet::new();
    let (mut users, now) = (users(), Instant::now());
    for _ in 0..50 {
        local.spawn_local(serve(users.admit(1, true, now).unwrap(), 100));
    }
    local.spawn_local(serve(users.admit(2, true, now).unwrap(), 2 * TURN_PACKETS));
    local.await;
    let handled = handled.borrow();
    assert_eq!(handled.len(), 50 * 100 + 2 * TURN_PACKETS);
    let last = handled.iter().rposition(|uid| *uid == 2).unwrap();
    // Each turn may have begun with permits of the one before.
    assert!(last < 8 * TURN_PACKETS, "user 2 had to wait for {last} packets");
}

#[test]
fn users_share_descriptors_in_flight() {
    let (mut users, now) = (users(), Instant::now());
    let sessions: Vec<_> = (0..4).map(|uid| users.admit(uid, true, now).unwrap()).collect();
    for session in &sessions {
        while session.may_send_fds(5) {
            session.fds_sent(5);
        }
    }
    let shares: Vec<_> = sessions.iter().map(|session| session.unread_fds.get()).collect();
    assert_eq!(shares, [250, 125, 60, 30]);
    sessions[1].fds_received(125);
    assert!(sessions[2].may_send_fds(5) && !sessions[0].may_send_fds(5));
}

#[test]
fn descriptors_of_ended_connections_count_until_they_are_received() {
    let (mut users, now) = (users(), Instant::now());
    let session = users.admit(1, true, now).unwrap();
    let (ours, theirs) = seqpacket::pair().unwrap();
    seqpacket::send(&ours, b"packet", &[]).unwrap();
    session.fds_sent(5);
    session.keep_unread(ours, 5);
    session.forget_received();
    assert_eq!((session.unread_fds.get(), users.unread_fds.total.get()), (5, 5));
    drop(theirs);
    session.forget_received();
    assert_eq!((session.unread_fds.get(), users.unread_fds.total.get()), (0, 0));
}

#[tokio::test(flavor = "current_thread")]
async fn one_report_of_a_user_is_under_way() {
    let (mut users, now) = (users(), Instant::now());
    let sessions: Vec<_> = (0..20).map(|uid| users.admit(uid, true, now).unwrap()).collect();
    let first = sessions[0].report_permit().await;
    let mut second = std::pin::pin!(sessions[0].report_permit());
    let is_ready = |polled: std::task::Poll<ReportPermit>| polled.map(Some).is_ready();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(!is_ready(second.as_mut().poll(&mut context)));
    drop(first);
    assert!(is_ready(second.as_mut().poll(&mut context)));
    let mut held = Vec::new();
    for session in &sessions[..REPORTS_MAX] {
        held.push(session.report_permit().await);
    }
    let mut late = std::pin::pin!(sessions[REPORTS_MAX].report_permit());
    assert!(!is_ready(late.as_mut().poll(&mut context)));
    held.pop();
    assert!(is_ready(late.as_mut().poll(&mut context)));
}

#[test]
fn forgets_idle_users() {
    let (mut users, now) = (users(), Instant::now());
    for uid in 0..3 * IDLE_USERS_MAX as u32 {
        drop(users.admit(uid, true, now + Duration::from_millis(5) * uid).unwrap());
    }
    assert!(users.users.len() <= IDLE_USERS_MAX, "{}", users.users.len());
}
