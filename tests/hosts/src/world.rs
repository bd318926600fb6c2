//! Two hosts with a daemon each.

use crate::side::{Side, patience};
use isthmus_mx_tests::build;
use isthmus_netbed::{Bed, Cable, Conditions, Host, LossyWire, Wire};
use isthmus_testbed::eventually;

/// A bed, or a word of why there is none.
pub fn bed() -> Option<Bed> {
    Bed::new().map_err(|why| eprintln!("skipped: {why}")).ok()
}

/// A board with one packet link, by `wire0`, and further settings.
pub fn wired(name: &str, settings: &str) -> String {
    format!("[[mx.board]]\nname = \"{name}\"\nlinks = [{{ interface = \"wire0\" }}]\n{settings}\n")
}

/// Hosts `a` and `b` with boards `a:0` and `b:0` that know each other.
#[derive(Debug)]
pub struct World {
    /// The first.
    pub a: Side,
    /// The second.
    pub b: Side,
    /// The machine's own: dropped last.
    pub bed: Bed,
}

impl World {
    /// A plain wire between the two.
    pub fn plain(mtu: u32, settings: &str) -> Option<(Self, Cable)> {
        Self::made(settings, |bed, a, b| bed.link(a, b, &Wire::mtu(mtu)))
    }

    /// A wire in these conditions. They begin when the two know each other.
    pub fn lossy(mtu: u32, conditions: Conditions, settings: &str) -> Option<(Self, LossyWire)> {
        let made = Self::made(settings, |bed, a, b| bed.lossy(a, b, &Wire::mtu(mtu), Conditions::default()))?;
        made.1.change(conditions);
        Some(made)
    }

    fn made<T>(
        settings: &str,
        wire: impl FnOnce(&mut Bed, &Host, &Host) -> Result<T, isthmus_netbed::CannotMake>,
    ) -> Option<(Self, T)> {
        let mut bed = bed()?;
        let [a, b] = ["a", "b"].map(|name| bed.host(name).unwrap_or_else(|error| panic!("{error}")));
        let wire = wire(&mut bed, &a, &b).unwrap_or_else(|error| panic!("{error}"));
        build::library(); // Built before anybody's patience runs.
        let a = Side::start(&a, &wired("a:0", settings));
        let b = Side::start(&b, &wired("b:0", settings));
        let world = Self { a, b, bed };
        world.meet();
        Some((world, wire))
    }

    /// Waits until each knows the other.
    pub fn meet(&self) {
        self.a.await_peer("b:0");
        self.b.await_peer("a:0");
    }

    /// Waits until nobody on either host knows a stranger any more, and no endpoint is open.
    pub fn settle(&self) {
        for side in [&self.a, &self.b] {
            let is_over = || side.board(0)["endpoints"].as_array().is_some_and(Vec::is_empty);
            assert!(eventually(patience(), is_over).is_ok(), "endpoints stay: {:#}", side.board(0));
        }
    }
}
