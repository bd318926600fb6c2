//! Tests of discovery: which hosts find each other, which do not, and the errors that programs get.

use isthmus_hosts::{MxProgram, TestHost, TwoHosts, board_on_wire, code, testbed, timeout};
use isthmus_netns::{Wire, WireInterface};
use isthmus_testbed::{Scratch, eventually};

fn mac(end: &WireInterface) -> String {
    end.mac.map(|octet| format!("{octet:02x}")).join(":")
}

#[test]
fn hosts_find_each_other_and_again_after_a_restart() {
    let Some((mut world, cable)) = TwoHosts::plain(1500, "resend_ms = 100\ngive_up_s = 2\n") else { return };
    let peer = world.a.peer("b:0").unwrap();
    assert_eq!((&peer["origin"], &peer["mac"]), (&"announced".into(), &mac(cable.b()).into()));
    assert_eq!((&peer["restarts"], &peer["link"]), (&0.into(), &"wire0".into()));
    let own = world.a.peer("a:0").unwrap();
    assert_eq!((&own["origin"], &own["mac"]), (&"local".into(), &mac(cable.a()).into()));
    let (mut a, mut b) = MxProgram::pair(&world.a, &world.b);
    a.exchange(&mut b, [1, 2], 20);
    world.b.kill_and_restart();
    world.a.wait_until("a restart of b", |side| side.peer("b:0").is_some_and(|peer| peer["restarts"] == 1));
    world.wait_for_peers();
    b.reconnect(0, &a); // First: a program comes back to its daemon when it calls the library.
    a.reconnect(0, &b);
    a.exchange(&mut b, [3, 4], 20);
    a.close();
    b.close();
}

#[test]
fn tables_need_no_discovery() {
    let Some(mut bed) = testbed() else { return };
    let [a, b] = ["a", "b"].map(|name| bed.host(name).unwrap());
    let cable = bed.link(&a, &b, &Wire::default()).unwrap();
    let scratch = Scratch::new().unwrap();
    let table = scratch.write("peers", format!("# the other one\n{} first\n", mac(cable.a()))).unwrap();
    let inline = format!("peers = [{{ mac = \"{}\", name = \"second\" }}]", mac(cable.b()));
    let a = TestHost::start(&a, &board_on_wire("a:0", &format!("discovery = false\n{inline}\n")));
    let b = TestHost::start(
        &b,
        &board_on_wire("b:0", &format!("discovery = false\npeers_file = \"{}\"\n", table.display())),
    );
    for (side, name, end) in [(&a, "second", cable.b()), (&b, "first", cable.a())] {
        side.wait_for_peer(name);
        let peer = side.peer(name).unwrap();
        assert_eq!((&peer["origin"], &peer["mac"]), (&"static".into(), &mac(end).into()));
    }
    let (mut one, mut other) = (MxProgram::open(&a), MxProgram::open(&b));
    one.expect(&format!("connect 0 second {} 7 0", other.at.1), "connected");
    other.expect(&format!("connect 0 first {} 7 0", one.at.1), "connected");
    one.exchange(&mut other, [1, 2], 50);
    one.close();
    other.close();
}

#[test]
fn failed_connects_return_the_matching_code() {
    let settings = "resend_ms = 100\ngive_up_s = 2\npeers = [{ mac = \"02:00:00:00:00:99\", name = \"absent\" }]\n";
    let Some((world, _cable)) = TwoHosts::plain(1500, settings) else { return };
    let (mut a, mut b) = (MxProgram::open(&world.a), MxProgram::open(&world.b));
    a.expect_refusal("connect 0 elsewhere 0 7 0", code::HOST_NOT_FOUND);
    a.expect_refusal("connect 0 0x020000000098 0 7 0", code::NIC_NOT_FOUND);
    let number = b.at.1;
    a.expect_refusal(&format!("connect 0 b:0 {number} 8 0"), code::BAD_CONNECTION_KEY);
    a.expect_refusal("connect 0 b:0 17 7 0", code::CONNECTION_FAILED);
    a.expect_refusal("connect 0 b:0 200 7 0", code::BAD_ENDPOINT_ID);
    a.expect_refusal("connect 0 absent 0 7 300", code::TIMEOUT);
    a.expect_refusal("connect 0 absent 0 7 0", code::TIMEOUT);
    // The same as requests.
    for (order, status) in [
        (format!("begin b:0 {number} 8"), code::STATUS_BAD_KEY),
        ("begin b:0 17 7".to_owned(), code::STATUS_ENDPOINT_CLOSED),
        ("begin b:0 200 7".to_owned(), code::STATUS_BAD_ENDPOINT),
    ] {
        a.expect(&order, "begun");
        a.expect("end", &format!("over {status}"));
    }
    // After all that, it works.
    a.connect(0, &b);
    b.connect(0, &a);
    a.exchange(&mut b, [1, 2], 20);
    // A program that has left.
    let order = format!("connect 0 {} 0", b.address());
    b.close();
    let refused = format!("refused {} ", code::CONNECTION_FAILED);
    // Its daemon keeps it until its last words are acknowledged.
    eventually(timeout(), || a.request(&order).starts_with(&refused)).unwrap();
    a.close();
}

#[test]
fn unresponsive_host_does_not_delay_others() {
    let settings = "resend_ms = 100\ngive_up_s = 2\npeers = [{ mac = \"02:00:00:00:00:99\", name = \"absent\" }]\n";
    let Some((world, _cable)) = TwoHosts::plain(1500, settings) else { return };
    let (mut a, mut b) = MxProgram::pair(&world.a, &world.b);
    a.expect("begin absent 3 7", "begun");
    a.expect("state", "pending");
    a.expect("end", &format!("over {}", code::STATUS_TIMEOUT));
    a.exchange(&mut b, [1, 2], 20);
    a.close();
    b.close();
}
