//! Domains of Xen: `isthmus-platform-xen` with the devices of real guests. All checks share one machine, because it takes long to start.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use isthmus_guests_tests::{XenKit, XenMachine, timeout};
use isthmus_mx_tests::build;
use isthmus_testbed::eventually;

/// The default number of granted pages.
const PAGES: u32 = 100;

/// The number of pages for which a list of lists of references is needed.
const MANY: u32 = 3000;

#[test]
fn domains_of_xen() {
    let kit = match XenKit::find() {
        Ok(kit) => kit.with(vec![build::compiled(&Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/granted.c"))]),
        Err(why) => return println!("skipped: {why}"),
    };
    println!("# {}, emulated processors", kit.versions);
    let mut xen_pair = XenPair { xen: XenMachine::boot(&kit), a: 0, b: 0 };
    xen_pair.a = xen_pair.create("a", "pv");
    xen_pair.b = xen_pair.create("b", "pv");
    let at_first = xen_pair.xen.grants();
    xen_pair.check("the conformance suite, domain 0 and a guest", |xen_pair| xen_pair.run_conformance("dom0", "a"));
    xen_pair.check("the conformance suite, two guests", |xen_pair| xen_pair.run_conformance("a", "b"));
    xen_pair.check("more pages than the kernel grants are refused, with the reason", too_many);
    xen_pair.check("a region of many pages, by lists of references", many_pages);
    xen_pair.check("the unmap notification of a killed mapper arrives", killed_mapper);
    xen_pair.check("the unmap notification of a killed owner arrives, and its pages stay", killed_owner);
    xen_pair.check("pages that the kernel's device grants cannot hold a program's buffers", no_memory_of_programs);
    xen_pair.check("no granted page is left", |xen_pair| assert_eq!(xen_pair.xen.grants(), at_first));
    xen_pair.check("domain 0 allows a guest and denies it again", allowed);
    xen_pair.check("a watcher notices a guest that appears, restarts and stops its heartbeat", presence_watch);
    xen_pair
        .check("a destroyed guest is reported to all watchers, and ends with the last mapping of its pages", destroyed);
    xen_pair.check("the next guest with the same name works", |xen_pair| {
        xen_pair.b = xen_pair.create("b", "pv");
        xen_pair.run_conformance("a", "b");
        let now: Vec<usize> = xen_pair.xen.grants().into_values().collect();
        let then: Vec<usize> = at_first.values().copied().collect();
        assert_eq!(now, then, "pages are left over");
    });
    if xen_pair.xen.done("xl info | grep -q virt_caps.*hvm").code == 0 {
        xen_pair.check("the same with a PVH guest", hardware);
    } else {
        println!("SKIP the same with a PVH guest: this QEMU's processor cannot run any");
    }
}

/// The machine, and the domain numbers of its guests a and b.
struct XenPair {
    xen: XenMachine,
    a: u16,
    b: u16,
}

impl XenPair {
    fn check(&mut self, what: &str, check: impl FnOnce(&mut Self)) {
        println!("# {what} …");
        check(self);
        println!("PASS {what}");
    }

    fn create(&mut self, name: &str, kind: &str) -> u16 {
        self.xen.create(name, kind)
    }

    fn run_conformance(&mut self, one: &str, other: &str) {
        let said = self.xen.run(&format!("suite {one} {other}"));
        let passed = said.iter().filter(|line| line.starts_with("passed: ")).count();
        println!("#   {passed} halves of checks passed");
        assert!(passed >= 28, "{said:#?}");
    }

    #[track_caller]
    fn run_in_guest(&mut self, name: &str, order: &str) -> Vec<String> {
        self.xen.run_in_guest(name, order)
    }

    /// Grants `pages` pages from one domain to another, which maps them.
    #[track_caller]
    fn map_pages(&mut self, owner: &str, mapper: &str, pages: u32) {
        println!("#   {owner} grants {pages} pages to {mapper}");
        let to = self.number(mapper);
        self.run_in_guest(owner, &format!("begin offer xen-test-agent grant-pages {to} {pages}"));
        let offer = self.run_in_guest(owner, "await offer offer");
        let keys = offer.iter().find_map(|line| line.strip_prefix("offer "));
        let keys = keys.unwrap_or_else(|| panic!("{offer:?}")).to_owned();
        self.run_in_guest(mapper, &format!("begin enter xen-test-agent map-grant {keys}"));
        assert_eq!(self.run_in_guest(mapper, "await enter inside"), [format!("inside {pages}")]);
    }

    fn number(&self, name: &str) -> u16 {
        match name {
            "a" => self.a,
            "b" => self.b,
            _ => 0,
        }
    }
}

fn too_many(xen_pair: &mut XenPair) {
    let done = xen_pair.xen.done(&format!("on a 'xen-test-agent grant-pages 0 {MANY}'"));
    assert_ne!(done.code, 0);
    let why = done.lines.join("\n");
    assert!(why.contains("granting pages (see the module parameter limit of xen_gntalloc)"), "{why}");
    xen_pair.run_in_guest("a", "echo 100000 >/sys/module/xen_gntalloc/parameters/limit");
}

fn many_pages(xen_pair: &mut XenPair) {
    xen_pair.map_pages("a", "b", MANY);
    xen_pair.run_in_guest("b", "tell enter look");
    xen_pair.run_in_guest("b", "await enter there");
    xen_pair.run_in_guest("b", "tell enter end");
    xen_pair.run_in_guest("a", "await offer unmapped");
    assert_eq!(xen_pair.run_in_guest("a", "await offer answered"), [format!("answered {MANY}")]);
}

fn killed_mapper(xen_pair: &mut XenPair) {
    for [owner, mapper] in [["a", "b"], ["dom0", "a"], ["a", "dom0"]] {
        xen_pair.map_pages(owner, mapper, PAGES);
        xen_pair.run_in_guest(mapper, "strike enter");
        xen_pair.run_in_guest(owner, "await offer unmapped");
        assert_eq!(xen_pair.run_in_guest(owner, "await offer answered"), [format!("answered {PAGES}")]);
    }
}

fn killed_owner(xen_pair: &mut XenPair) {
    for [owner, mapper] in [["a", "b"], ["dom0", "a"], ["a", "dom0"]] {
        xen_pair.map_pages(owner, mapper, PAGES);
        xen_pair.run_in_guest(owner, "strike offer");
        xen_pair.run_in_guest(mapper, "await enter unmapped");
        xen_pair.run_in_guest(mapper, "tell enter look");
        xen_pair.run_in_guest(mapper, "await enter there");
        xen_pair.run_in_guest(mapper, "tell enter end");
    }
}

/// Checks the facts on which decision 18 (docs/decisions) rests. A different result may allow another choice.
fn no_memory_of_programs(xen_pair: &mut XenPair) {
    let to = xen_pair.b;
    let expected = [
        "a private mapping: EINVAL",
        "what a child writes: seen",
        "a lock: ok",
        "MADV_DONTNEED: ok",
        "a touch after that: BUS",
        "granting pages of others: ENOTTY",
    ];
    assert_eq!(xen_pair.run_in_guest("a", &format!("granted {to}")), expected);
}

/// Allows guest b to attach to guest a, and denies it again.
fn allowed(xen_pair: &mut XenPair) {
    let (a, b) = (xen_pair.a, xen_pair.b);
    let admitted = |xen_pair: &mut XenPair| {
        [
            xen_pair.run_in_guest("a", "xen-test-agent show-admission").remove(1),
            xen_pair.run_in_guest("b", "xen-test-agent show-admission").remove(0),
        ]
    };
    assert_eq!(admitted(xen_pair), ["guests:", "backends:"]);
    println!("#   {}", xen_pair.run_in_guest("dom0", "isthmus guest allow b --backend a").join("; "));
    assert_eq!(admitted(xen_pair), [format!("guests: {b}"), format!("backends: {a}")]);
    xen_pair.run_in_guest("dom0", &format!("isthmus guest deny {b}"));
    assert_eq!(admitted(xen_pair), ["guests:", "backends:"]);
    let unknown = xen_pair.xen.done("isthmus guest allow c");
    assert!(unknown.code == 1 && unknown.lines.join(" ").contains("no domain of this host"), "{unknown:?}");
}

/// Watches guest a from guest b, which a permits, and all guests from domain 0.
fn presence_watch(xen_pair: &mut XenPair) {
    let (a, b) = (xen_pair.a, xen_pair.b);
    xen_pair.run_in_guest("dom0", "begin lookout xen-test-agent watch-presence all");
    xen_pair.run_in_guest("b", &format!("begin lookout xen-test-agent watch-presence {a}"));
    xen_pair.run_in_guest("a", &format!("begin announce xen-test-agent advertise 1 {b}"));
    for watcher in ["dom0", "b"] {
        xen_pair.run_in_guest(watcher, &format!("await lookout came {a} as 1"));
    }
    xen_pair.run_in_guest("a", "strike announce");
    xen_pair.run_in_guest("a", &format!("begin announce xen-test-agent advertise 2 {b}"));
    for watcher in ["dom0", "b"] {
        xen_pair.run_in_guest(watcher, &format!("await lookout went {a}: the daemon has restarted"));
        xen_pair.run_in_guest(watcher, &format!("await lookout came {a} as 2"));
    }
    xen_pair.run_in_guest("a", "strike announce");
    for watcher in ["dom0", "b"] {
        xen_pair.run_in_guest(watcher, &format!("await lookout went {a}: no heartbeat"));
    }
}

/// Destroys guest b while it has pages of a mapped, and a has pages of b mapped.
fn destroyed(xen_pair: &mut XenPair) {
    let (a, b) = (xen_pair.a, xen_pair.b);
    xen_pair.map_pages("a", "b", PAGES);
    xen_pair.map_pages("b", "a", PAGES);
    xen_pair.run_in_guest("a", &format!("begin lookout xen-test-agent watch-presence {b}"));
    xen_pair.run_in_guest("b", &format!("begin announce xen-test-agent advertise 3 {a}"));
    for watcher in ["dom0", "a"] {
        xen_pair.run_in_guest(watcher, &format!("await lookout came {b} as 3"));
    }
    xen_pair.xen.run("xl destroy b");
    for watcher in ["dom0", "a"] {
        println!("#   {watcher}: {}", xen_pair.run_in_guest(watcher, &format!("await lookout went {b}")).remove(0));
    }
    // There is no other sign: the mappings of a are unchanged.
    xen_pair.run_in_guest("a", "tell enter look");
    xen_pair.run_in_guest("a", "await enter there");
    assert_eq!(
        xen_pair.run_in_guest("a", "last offer").remove(0).split(' ').next(),
        Some("offer"),
        "it sent an unmap notification"
    );
    // While a maps pages of b, the domain b still exists.
    assert!(xen_pair.domains().contains(&b), "b has ended, with pages that are mapped");
    xen_pair.run_in_guest("a", "tell enter end");
    eventually(timeout(), || !xen_pair.domains().contains(&b)).expect("b ends with the last mapping of its pages");
    xen_pair.run_in_guest("a", "strike offer");
    xen_pair.run_in_guest("a", "strike lookout");
    assert_eq!(xen_pair.run_in_guest("a", "dmesg | grep -c leaking; true"), ["0"], "a could not take its pages back");
}

/// Runs the checks with guest b as a PVH guest, which uses hardware virtualization.
fn hardware(xen_pair: &mut XenPair) {
    xen_pair.xen.run("xl destroy b");
    xen_pair.b = xen_pair.create("b", "pvh");
    xen_pair.run_conformance("dom0", "b");
    xen_pair.run_conformance("a", "b");
    for watcher in ["dom0", "b"] {
        xen_pair.run_in_guest(watcher, "echo 100000 >/sys/module/xen_gntalloc/parameters/limit");
    }
    killed_mapper(xen_pair);
    killed_owner(xen_pair);
    for [owner, mapper] in [["b", "a"], ["dom0", "b"]] {
        xen_pair.map_pages(owner, mapper, MANY);
        xen_pair.run_in_guest(mapper, "tell enter end");
        xen_pair.run_in_guest(owner, "await offer unmapped");
    }
    destroyed(xen_pair);
}

impl XenPair {
    /// Returns the numbers of all domains, including dying ones.
    fn domains(&mut self) -> Vec<u16> {
        let listed = self.xen.run("xl list");
        let number = |line: &String| line.split_whitespace().nth(1).and_then(|number| number.parse().ok());
        listed.iter().filter_map(number).collect()
    }
}
