//! Traffic within one host never reaches a wire.

use isthmus_hosts::{MxProgram, TestHost, board_on_wire, testbed};
use isthmus_netns::Wire;

/// Nothing is said on the wire without being asked for.
const SILENT: &str = "discovery = false\n";

#[test]
fn programs_of_one_host_do_not_use_its_wire() {
    let Some(mut bed) = testbed() else { return };
    let [a, b] = ["a", "b"].map(|name| bed.host(name).unwrap());
    let cable = bed.link(&a, &b, &Wire::default()).unwrap();
    let peer = |end: &isthmus_netns::WireInterface, name: &str| {
        let mac = end.mac.map(|octet| format!("{octet:02x}")).join(":");
        format!("{SILENT}peers = [{{ mac = \"{mac}\", name = \"{name}\" }}]\n")
    };
    let b = TestHost::start(&b, &board_on_wire("b:0", &peer(cable.a(), "a:0")));
    let a = TestHost::start(&a, &board_on_wire("a:0", &peer(cable.b(), "b:0")));
    a.wait_for_peer("b:0"); // A peer that is named in a table is asked whether it is there; that is over now.
    a.wait_until("an answer", |side| side.peer("b:0").is_some_and(|peer| peer["last_seen_ms"].is_u64()));
    b.wait_until("an answer", |side| side.peer("a:0").is_some_and(|peer| peer["last_seen_ms"].is_u64()));
    let before = a.frames();
    let (mut one, mut other) = MxProgram::pair(&a, &a);
    one.exchange(&mut other, [1, 2], 100);
    assert_eq!(a.frames(), before);
    let mut far = MxProgram::open(&b);
    far.connect(0, &one);
    one.connect(0, &far);
    one.exchange(&mut far, [3, 4], 20);
    a.wait_until("frames to the other host", |side| side.frames() > before + 20);
    [one, other, far].into_iter().for_each(MxProgram::close);
}

#[test]
fn boards_of_one_host_do_not_use_their_wires() {
    let Some(mut bed) = testbed() else { return };
    let [a, b] = ["a", "b"].map(|name| bed.host(name).unwrap());
    bed.link(&a, &b, &Wire::default()).unwrap();
    bed.link(&a, &b, &Wire::default()).unwrap();
    let second = board_on_wire("a:1", SILENT).replace("wire0", "wire1");
    let a = TestHost::start(&a, &(board_on_wire("a:0", SILENT) + &second));
    let [mut one, mut other] = [0, 1].map(|board| {
        let mut program = MxProgram::start(&a, &[]);
        program.open_on(board, 7);
        program
    });
    assert_eq!([&one.at.0, &other.at.0], ["a:0", "a:1"]);
    one.connect(0, &other);
    other.connect(0, &one);
    one.exchange(&mut other, [1, 2], 100);
    assert_eq!(a.frames(), 0);
    one.close();
    other.close();
}
