//! Several backends on one Xen host: the daemons of domain 0 and of a driver domain, each with its own guests, which may change.

use isthmus_platform_xen::Domid;
use isthmus_platform_xen::fake::{self, FakeHost};

use crate::testbed::{Client, channel};
use crate::xen::{Running, WEB, admitted, allow, attached, domid, until};

const BASE: u16 = 8;
const DRIVER: u16 = 9;

/// A guest of domain 0, web, and one of the driver domain, base. Both backends know both guests.
struct Testbed {
    host: FakeHost,
    zero: Running,
    driver: Running,
    web: Running,
    base: Running,
}

impl Testbed {
    fn start() -> Self {
        let host = FakeHost::new();
        let driver = host.start(domid(DRIVER));
        let [web, base]: [fake::FakeDomain; 2] =
            [(WEB, "web"), (BASE, "base")].map(|(number, name)| admitted(&host, number, name));
        allow(&host, BASE, "base", &[domid(DRIVER)]);
        let names = ["web", "base"];
        let (zero, driver) = (Running::backend(&host, &names, ""), Running::backend_in(driver, &names, ""));
        Self { host, zero, driver, web: Running::frontend(&web), base: Running::frontend(&base) }
    }

    /// Returns the number of pages that a guest grants to domain 0 and to the driver domain.
    fn granted(&self, guest: u16) -> [usize; 2] {
        [0, DRIVER].map(|backend| self.host.grants_to(domid(guest), domid(backend)))
    }
}

/// Returns the guests of the domains that a backend serves.
fn guests_of(backend: &Running) -> Vec<Option<String>> {
    backend.domains().domains.into_iter().map(|domain| domain.guest).collect()
}

/// Two programs of one guest.
fn meet(guest: &Running) -> [Client; 2] {
    let [mut a, mut b] = [guest.served(), guest.served()];
    attached(&mut a, "a");
    let id = attached(&mut b, "b").id();
    channel(&mut a, &mut b, id);
    [a, b]
}

#[test]
fn two_backends_serve_guests_at_once_and_end_by_themselves() {
    let mut bed = Testbed::start();
    let ([mut a, _b], [mut c, _d]) = (meet(&bed.web), meet(&bed.base));
    assert_eq!(guests_of(&bed.zero), [Some("web".to_owned()), Some("web".to_owned())]);
    assert_eq!(guests_of(&bed.driver), [Some("base".to_owned()), Some("base".to_owned())]);
    assert!(bed.granted(WEB)[1] == 0 && bed.granted(BASE)[0] == 0, "one was granted what is the other's");
    bed.host.destroy(domid(DRIVER));
    c.ended();
    until("what was granted to the driver domain is so still", || (bed.granted(BASE)[1] == 0).then_some(()));
    a.expect_no_message();
    let driver = bed.host.start(domid(DRIVER + 1));
    allow(&bed.host, BASE, "base", &[domid(DRIVER + 1)]);
    bed.driver = Running::backend_in(driver, &["base"], "");
    let [mut c, _d] = meet(&bed.base);
    bed.zero.stop();
    a.ended();
    c.expect_no_message();
}

#[test]
fn a_guest_moves_to_another_backend_and_back() {
    let bed = Testbed::start();
    let mut beside = bed.base.program("beside");
    for (backend, pages_of) in [(domid(DRIVER), 0), (Domid::ZERO, 1)] {
        let mut before = bed.web.program("before");
        allow(&bed.host, WEB, "web", &[backend]);
        before.ended();
        let _after = meet(&bed.web);
        until("what the backend before had is granted", || (bed.granted(WEB)[pages_of] == 0).then_some(()));
        let of_web = [&bed.zero, &bed.driver].map(|backend| {
            let of_web = |guest: &&Option<String>| guest.as_deref() == Some("web");
            guests_of(backend).iter().filter(of_web).count()
        });
        assert_eq!((of_web[pages_of], of_web[1 - pages_of]), (0, 2));
    }
    beside.expect_no_message();
}

#[test]
fn a_guest_of_several_backends_has_the_first_that_is_there() {
    let mut bed = Testbed::start();
    bed.driver.stop();
    allow(&bed.host, WEB, "web", &[domid(DRIVER), Domid::ZERO]);
    let mut a = bed.web.program("a");
    assert_eq!(guests_of(&bed.zero), [Some("web".to_owned())]);
    bed.driver = Running::backend_in(bed.host.domain(domid(DRIVER)), &["web", "base"], "");
    let _base = bed.base.served(); // The other one is there.
    a.expect_no_message(); // It stays where it is.
    bed.zero.stop();
    a.ended();
    let _a = bed.web.program("a");
    assert_eq!(guests_of(&bed.driver), [Some("web".to_owned())]);
}
