//! A long or synchronous send is over when its bytes are in the buffer of the receiving program.

use isthmus_hosts::{MxProgram, TestHost, TwoHosts, testbed};

/// Long messages of one test. Each is followed by a mark.
const COUNT: u32 = 20;

/// Standard sends at two lengths, and synchronous ones.
const SENDS: [(u32, u32); 4] = [(1 << 20, 0), (4 << 20, 0), (1 << 20, 1), (20_000, 1)];

/// Slots: of the receiver, and of the program that passes marks on.
const RECEIVER: usize = 0;
const RELAY: usize = 1;

/// `from` sends long messages, and a mark to the program in `mark` when each is over.
fn check(from: &mut MxProgram, mark: usize, relay: Option<&mut MxProgram>, to: &mut MxProgram) {
    let mut relay = relay;
    for (size, sync) in SENDS {
        to.send_line(&format!("trust {COUNT} {size}"));
        if let Some(relay) = &mut relay {
            relay.send_line(&format!("relay {COUNT} {RECEIVER}"));
        }
        from.expect(&format!("order {COUNT} {size} {sync} {RECEIVER} {mark}"), &format!("ordered {COUNT}"));
        if let Some(relay) = &mut relay {
            assert_eq!(relay.answer(), format!("relayed {COUNT}"));
        }
        assert_eq!(to.answer(), format!("trusted {COUNT} 0"), "{size} bytes, synchronous: {sync}");
    }
}

#[test]
fn short_message_does_not_overtake_the_long_one_before_it() {
    let Some((world, _cable)) = TwoHosts::plain(9000, "") else { return };
    let (mut a, mut b) = MxProgram::pair(&world.a, &world.b);
    check(&mut a, RECEIVER, None, &mut b);
    a.close();
    b.close();
}

/// The mark comes by a channel of the receiver's host, so that it does not wait behind the long message in any ring.
#[test]
fn message_of_another_program_does_not_overtake_the_long_one_before_it() {
    let Some((world, _cable)) = TwoHosts::plain(9000, "") else { return };
    let (mut a, mut b) = MxProgram::pair(&world.a, &world.b);
    let mut relay = MxProgram::open(&world.b);
    a.connect(RELAY, &relay);
    relay.connect(RECEIVER, &b);
    check(&mut a, RELAY, Some(&mut relay), &mut b);
    [a, relay, b].into_iter().for_each(MxProgram::close);
}

/// Programs of one host that use no channel.
#[test]
fn short_message_does_not_overtake_the_long_one_on_the_daemon_path() {
    let Some(mut bed) = testbed() else { return };
    let host = bed.host("a").unwrap();
    let side = TestHost::start(&host, "[[mx.board]]\nname = \"a:0\"\n");
    let [mut a, mut b] = [0, 1].map(|_| {
        let mut program = MxProgram::start(&side, &[("OMX_DISABLE_SHARED", "1")]);
        program.open_on(0, 7);
        program
    });
    a.connect(RECEIVER, &b);
    b.connect(RECEIVER, &a);
    check(&mut a, RECEIVER, None, &mut b);
    a.close();
    b.close();
}
