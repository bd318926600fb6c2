//! Programs come and go, and nothing of them stays.

use isthmus_hosts::{Flow, Party, Side, World};

/// Threads and descriptors of a daemon.
fn held(side: &Side) -> (usize, usize) {
    let view = side.view();
    (view.threads().unwrap().len(), view.held_fds().unwrap())
}

#[test]
fn two_hundred_visits_leave_nothing_behind() {
    const VISITS: u64 = 200;
    let Some((world, _cable)) = World::plain(1500, "") else { return };
    let before = [&world.a, &world.b].map(held);
    let visits = |stream: u32| {
        let mut host = Party::open(&world.b);
        host.begin(VISITS, 4, "64", 0, &[Flow::From(stream)]);
        let mut visitor = Party::start(&world.a, &[]);
        visitor.expect(&format!("cycle {VISITS} {} {stream}", host.place()), &format!("cycled {VISITS}"));
        host.done(VISITS);
        host.leave();
        drop(visitor);
        world.settle();
        [&world.a, &world.b].map(Side::rss_bytes)
    };
    visits(1); // Pools and tables have their size after that.
    let [first, then] = [visits(2), visits(3)];
    for (first, then) in first.into_iter().zip(then) {
        assert!(then < first + (4 << 20), "a daemon grew from {first} to {then} bytes by {VISITS} visits");
    }
    for (side, (threads, fds)) in [&world.a, &world.b].into_iter().zip(before) {
        // Whoever had just asked, to see that the world is up, may still have been on its way out then.
        side.await_that(&format!("at most {threads} threads and {fds} descriptors, as before"), |side| {
            let now = held(side);
            now.0 <= threads && now.1 <= fds
        });
    }
    assert!(world.a.list("domain")["domains"].as_array().is_some_and(Vec::is_empty));
}
