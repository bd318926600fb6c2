//! Twenty domains on each host.

use isthmus_hosts::{Flow, MxProgram, TwoHosts};

#[test]
fn forty_domains_in_opposite_pairs() {
    const PAIRS: usize = 20;
    const EACH: u64 = 2;
    let Some((world, _cable)) = TwoHosts::plain(9000, "") else { return };
    let mut pairs: Vec<_> = (0..PAIRS).map(|_| (MxProgram::open(&world.a), MxProgram::open(&world.b))).collect();
    for (a, b) in &mut pairs {
        a.connect(0, b);
        b.connect(0, a);
    }
    for (at, (a, b)) in (0..).zip(&mut pairs) {
        a.begin(EACH, 2, "large", 0, &[Flow::To(0, 2 * at), Flow::From(2 * at + 1)]);
        b.begin(EACH, 2, "large", 0, &[Flow::To(0, 2 * at + 1), Flow::From(2 * at)]);
    }
    for (a, b) in &mut pairs {
        a.done(2 * EACH);
        b.done(2 * EACH);
    }
    for (a, b) in pairs {
        a.close();
        b.close();
    }
    world.wait_until_idle();
}
