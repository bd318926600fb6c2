//! Two hosts with a daemon each.

use crate::test_host::{TestHost, timeout};
use isthmus_mx_tests::build;
use isthmus_netns::{Cable, Host, ImpairedWire, Impairments, Testbed, Wire};
use isthmus_testbed::eventually;

/// A testbed, or none, with the reason on standard error.
pub fn testbed() -> Option<Testbed> {
    Testbed::new().map_err(|why| eprintln!("skipped: {why}")).ok()
}

/// A board with one packet link, by `wire0`, and further settings.
pub fn board_on_wire(name: &str, settings: &str) -> String {
    format!("[[mx.board]]\nname = \"{name}\"\nlinks = [{{ interface = \"wire0\" }}]\n{settings}\n")
}

/// Hosts `a` and `b` with boards `a:0` and `b:0` that know each other.
#[derive(Debug)]
pub struct TwoHosts {
    /// The first.
    pub a: TestHost,
    /// The second.
    pub b: TestHost,
    /// The machine's own: dropped last.
    pub bed: Testbed,
}

impl TwoHosts {
    /// A plain wire between the two.
    pub fn plain(mtu: u32, settings: &str) -> Option<(Self, Cable)> {
        Self::made(settings, |bed, a, b| bed.link(a, b, &Wire::mtu(mtu)))
    }

    /// A wire in these conditions. They begin when the two know each other.
    pub fn impaired(mtu: u32, conditions: Impairments, settings: &str) -> Option<(Self, ImpairedWire)> {
        let made = Self::made(settings, |bed, a, b| bed.impaired(a, b, &Wire::mtu(mtu), Impairments::default()))?;
        made.1.change(conditions);
        Some(made)
    }

    fn made<T>(
        settings: &str,
        wire: impl FnOnce(&mut Testbed, &Host, &Host) -> Result<T, isthmus_netns::SetupError>,
    ) -> Option<(Self, T)> {
        let mut bed = testbed()?;
        let [a, b] = ["a", "b"].map(|name| bed.host(name).unwrap_or_else(|error| panic!("{error}")));
        let wire = wire(&mut bed, &a, &b).unwrap_or_else(|error| panic!("{error}"));
        build::library(); // Built before any deadline runs.
        let a = TestHost::start(&a, &board_on_wire("a:0", settings));
        let b = TestHost::start(&b, &board_on_wire("b:0", settings));
        let world = Self { a, b, bed };
        world.wait_for_peers();
        Some((world, wire))
    }

    /// Waits until each knows the other.
    pub fn wait_for_peers(&self) {
        self.a.wait_for_peer("b:0");
        self.b.wait_for_peer("a:0");
    }

    /// Waits until no domain on either host knows a remote peer any more, and no endpoint is open.
    pub fn wait_until_idle(&self) {
        for side in [&self.a, &self.b] {
            let is_over = || side.board(0)["endpoints"].as_array().is_some_and(Vec::is_empty);
            assert!(eventually(timeout(), is_over).is_ok(), "endpoints stay: {:#}", side.board(0));
        }
    }
}
