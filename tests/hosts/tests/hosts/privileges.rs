//! The privileges that a daemon keeps once its links are open.

use isthmus_hosts::{MxProgram, TestHost, TwoHosts};
use isthmus_netns::{Wire, WireInterface};
use std::process::Command;

fn ip(side: &TestHost, words: &str) {
    let mut command = Command::new("ip");
    command.args(words.split(' '));
    let done = side.host().output(command).unwrap();
    assert!(done.status.success(), "ip {words}: {done:?}");
}

fn link_is(side: &TestHost, state: &str) {
    side.wait_until(state, |side| side.board(0)["links"][0]["state"] == state);
}

/// Another card in place of one that was pulled out, with its name and its address.
fn replaced(side: &TestHost, new: &WireInterface, old: &WireInterface) {
    let mac = old.mac.map(|octet| format!("{octet:02x}")).join(":");
    ip(side, &format!("link set {} down", new.name));
    ip(side, &format!("link set {} name {} address {mac}", new.name, old.name));
    ip(side, &format!("link set {} up", old.name));
}

#[test]
fn packet_sockets_need_no_privilege_once_they_are_open() {
    let Some((mut world, cable)) = TwoHosts::plain(9000, "") else { return };
    for side in [&world.a, &world.b] {
        assert_eq!(side.view().capabilities().unwrap(), 0);
        assert_eq!(side.view().status("NoNewPrivs").unwrap(), "1");
    }
    let (mut a, mut b) = MxProgram::pair(&world.a, &world.b);
    a.exchange(&mut b, [1, 2], 20);
    ip(&world.a, "link delete wire0");
    link_is(&world.a, "gone");
    let new = world.bed.link(world.a.host(), world.b.host(), &Wire::mtu(9000)).unwrap();
    replaced(&world.a, new.a(), cable.a());
    replaced(&world.b, new.b(), cable.b());
    link_is(&world.a, "up");
    link_is(&world.b, "up");
    a.exchange(&mut b, [3, 4], 20);
    a.close();
    b.close();
}
