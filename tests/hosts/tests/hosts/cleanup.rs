//! Programs come and go, and nothing of them stays.

use isthmus_hosts::{Flow, MxProgram, TestHost, TwoHosts};

/// Threads and descriptors of a daemon.
fn daemon_resources(side: &TestHost) -> (usize, usize) {
    let view = side.view();
    (view.threads().unwrap().len(), view.held_fds().unwrap())
}

#[test]
fn two_hundred_connections_leave_nothing_behind() {
    const CONNECTIONS: u64 = 200;
    let Some((world, _cable)) = TwoHosts::plain(1500, "") else { return };
    let before = [&world.a, &world.b].map(daemon_resources);
    let visits = |stream: u32| {
        let mut host = MxProgram::open(&world.b);
        host.begin(CONNECTIONS, 4, "64", 0, &[Flow::From(stream)]);
        let mut client = MxProgram::start(&world.a, &[]);
        client.expect(&format!("cycle {CONNECTIONS} {} {stream}", host.address()), &format!("cycled {CONNECTIONS}"));
        host.done(CONNECTIONS);
        host.close();
        drop(client);
        world.wait_until_idle();
        [&world.a, &world.b].map(TestHost::rss_bytes)
    };
    visits(1); // Pools and tables have their size after that.
    let [first, then] = [visits(2), visits(3)];
    for (first, then) in first.into_iter().zip(then) {
        assert!(then < first + (4 << 20), "a daemon grew from {first} to {then} bytes by {CONNECTIONS} visits");
    }
    for (side, (threads, fds)) in [&world.a, &world.b].into_iter().zip(before) {
        // A tool that had just asked, to see that the hosts are up, may still have been on its way out then.
        side.wait_until(&format!("at most {threads} threads and {fds} descriptors, as before"), |side| {
            let now = daemon_resources(side);
            now.0 <= threads && now.1 <= fds
        });
    }
    assert!(world.a.list("domain")["domains"].as_array().is_some_and(Vec::is_empty));
}
