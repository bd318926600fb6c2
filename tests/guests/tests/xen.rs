//! Domains of Xen: what `isthmus-platform-xen` does with the devices of real guests. One machine for all, since it takes long to start.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use isthmus_guests::{XenKit, XenMachine, patience};
use isthmus_mx_tests::build;
use isthmus_testbed::eventually;

/// Pages of the regions that are granted where their number does not matter.
const PAGES: u32 = 100;

/// Pages of one that takes a list of lists.
const MANY: u32 = 3000;

#[test]
fn domains_of_xen() {
    let kit = match XenKit::find() {
        Ok(kit) => kit.with(vec![build::compiled(&Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/granted.c"))]),
        Err(why) => return println!("skipped: {why}"),
    };
    println!("# {}, emulated processors", kit.versions);
    let mut bed = Bed { xen: XenMachine::boot(&kit), a: 0, b: 0 };
    bed.a = bed.create("a", "pv");
    bed.b = bed.create("b", "pv");
    let at_first = bed.xen.grants();
    bed.check("the conformance suite, domain 0 and a guest", |bed| bed.suite("dom0", "a"));
    bed.check("the conformance suite, two guests", |bed| bed.suite("a", "b"));
    bed.check("more pages than the kernel grants are refused, with the reason", too_many);
    bed.check("a region of many pages, by lists of references", many_pages);
    bed.check("a mapper that is killed says farewell", killed_mapper);
    bed.check("an owner that is killed says farewell, and its pages stay", killed_owner);
    bed.check("pages that a kernel's node grants are no memory for a program's buffers", no_memory_of_programs);
    bed.check("nothing that was granted so far is left", |bed| assert_eq!(bed.xen.grants(), at_first));
    bed.check("a guest is allowed what it may, by domain 0", allowed);
    bed.check("guests are seen to come, start again and fall silent", presence);
    bed.check("a guest that is destroyed is missed by all, and goes when its pages do", destroyed);
    bed.check("after that, everything works with the next guest", |bed| {
        bed.b = bed.create("b", "pv");
        bed.suite("a", "b");
        let now: Vec<usize> = bed.xen.grants().into_values().collect();
        let then: Vec<usize> = at_first.values().copied().collect();
        assert_eq!(now, then, "pages are left over");
    });
    if bed.xen.done("xl info | grep -q virt_caps.*hvm").code == 0 {
        bed.check("the same with a PVH guest", hardware);
    } else {
        println!("SKIP the same with a PVH guest: this QEMU's processor cannot run any");
    }
}

/// The machine, and the numbers of its guests a and b.
struct Bed {
    xen: XenMachine,
    a: u16,
    b: u16,
}

impl Bed {
    fn check(&mut self, what: &str, check: impl FnOnce(&mut Self)) {
        println!("# {what} …");
        check(self);
        println!("PASS {what}");
    }

    fn create(&mut self, name: &str, kind: &str) -> u16 {
        self.xen.create(name, kind)
    }

    fn suite(&mut self, one: &str, other: &str) {
        let said = self.xen.run(&format!("suite {one} {other}"));
        let passed = said.iter().filter(|line| line.starts_with("passed: ")).count();
        println!("#   {passed} halves of checks passed");
        assert!(passed >= 28, "{said:#?}");
    }

    #[track_caller]
    fn on(&mut self, name: &str, order: &str) -> Vec<String> {
        self.xen.on(name, order)
    }

    /// One lets another one into so many pages, who comes.
    #[track_caller]
    fn share(&mut self, owner: &str, mapper: &str, pages: u32) {
        println!("#   {mapper} is let into {pages} pages of {owner}");
        let to = self.number(mapper);
        self.on(owner, &format!("begin offer xen-side offer {to} {pages}"));
        let offer = self.on(owner, "await offer offer");
        let keys = offer.iter().find_map(|line| line.strip_prefix("offer "));
        let keys = keys.unwrap_or_else(|| panic!("{offer:?}")).to_owned();
        self.on(mapper, &format!("begin enter xen-side enter {keys}"));
        assert_eq!(self.on(mapper, "await enter inside"), [format!("inside {pages}")]);
    }

    fn number(&self, name: &str) -> u16 {
        match name {
            "a" => self.a,
            "b" => self.b,
            _ => 0,
        }
    }
}

fn too_many(bed: &mut Bed) {
    let done = bed.xen.done(&format!("on a 'xen-side offer 0 {MANY}'"));
    assert_ne!(done.code, 0);
    let why = done.lines.join("\n");
    assert!(why.contains("granting pages (see the module parameter limit of xen_gntalloc)"), "{why}");
    bed.on("a", "echo 100000 >/sys/module/xen_gntalloc/parameters/limit");
}

fn many_pages(bed: &mut Bed) {
    bed.share("a", "b", MANY);
    bed.on("b", "tell enter look");
    bed.on("b", "await enter there");
    bed.on("b", "tell enter end");
    bed.on("a", "await offer farewell");
    assert_eq!(bed.on("a", "await offer answered"), [format!("answered {MANY}")]);
}

fn killed_mapper(bed: &mut Bed) {
    for [owner, mapper] in [["a", "b"], ["dom0", "a"], ["a", "dom0"]] {
        bed.share(owner, mapper, PAGES);
        bed.on(mapper, "strike enter");
        bed.on(owner, "await offer farewell");
        assert_eq!(bed.on(owner, "await offer answered"), [format!("answered {PAGES}")]);
    }
}

fn killed_owner(bed: &mut Bed) {
    for [owner, mapper] in [["a", "b"], ["dom0", "a"], ["a", "dom0"]] {
        bed.share(owner, mapper, PAGES);
        bed.on(owner, "strike offer");
        bed.on(mapper, "await enter farewell");
        bed.on(mapper, "tell enter look");
        bed.on(mapper, "await enter there");
        bed.on(mapper, "tell enter end");
    }
}

/// What decision 18 stands on (docs/decisions): where one of these comes out otherwise, there may be another choice.
fn no_memory_of_programs(bed: &mut Bed) {
    let to = bed.b;
    let expected = [
        "a private mapping: EINVAL",
        "what a child writes: seen",
        "a lock: ok",
        "MADV_DONTNEED: ok",
        "a touch after that: BUS",
        "granting pages of others: ENOTTY",
    ];
    assert_eq!(bed.on("a", &format!("granted {to}")), expected);
}

/// Guest b may attach to guest a, and then may not.
fn allowed(bed: &mut Bed) {
    let (a, b) = (bed.a, bed.b);
    let admitted =
        |bed: &mut Bed| [bed.on("a", "xen-side admitted").remove(1), bed.on("b", "xen-side admitted").remove(0)];
    assert_eq!(admitted(bed), ["guests:", "backends:"]);
    println!("#   {}", bed.on("dom0", "isthmus guest allow b --backend a").join("; "));
    assert_eq!(admitted(bed), [format!("guests: {b}"), format!("backends: {a}")]);
    bed.on("dom0", &format!("isthmus guest forbid {b}"));
    assert_eq!(admitted(bed), ["guests:", "backends:"]);
    let unknown = bed.xen.done("isthmus guest allow c");
    assert!(unknown.code == 1 && unknown.lines.join(" ").contains("no domain of this host"), "{unknown:?}");
}

/// Guest b looks out for guest a, which lets it, and domain 0 for all.
fn presence(bed: &mut Bed) {
    let (a, b) = (bed.a, bed.b);
    bed.on("dom0", "begin lookout xen-side lookout all");
    bed.on("b", &format!("begin lookout xen-side lookout {a}"));
    bed.on("a", &format!("begin announce xen-side announce 1 {b}"));
    for who in ["dom0", "b"] {
        bed.on(who, &format!("await lookout came {a} as 1"));
    }
    bed.on("a", "strike announce");
    bed.on("a", &format!("begin announce xen-side announce 2 {b}"));
    for who in ["dom0", "b"] {
        bed.on(who, &format!("await lookout went {a}: it has started again"));
        bed.on(who, &format!("await lookout came {a} as 2"));
    }
    bed.on("a", "strike announce");
    for who in ["dom0", "b"] {
        bed.on(who, &format!("await lookout went {a}: it was silent"));
    }
}

/// Guest b, of which a has pages mapped and which has pages of a mapped, is there no more.
fn destroyed(bed: &mut Bed) {
    let (a, b) = (bed.a, bed.b);
    bed.share("a", "b", PAGES);
    bed.share("b", "a", PAGES);
    bed.on("a", &format!("begin lookout xen-side lookout {b}"));
    bed.on("b", &format!("begin announce xen-side announce 3 {a}"));
    for who in ["dom0", "a"] {
        bed.on(who, &format!("await lookout came {b} as 3"));
    }
    bed.xen.run("xl destroy b");
    for who in ["dom0", "a"] {
        println!("#   {who}: {}", bed.on(who, &format!("await lookout went {b}")).remove(0));
    }
    // Nothing else says so: a's windows are as they were.
    bed.on("a", "tell enter look");
    bed.on("a", "await enter there");
    assert_eq!(bed.on("a", "last offer").remove(0).split(' ').next(), Some("offer"), "it said farewell");
    // As long as a has a window of its pages, there is something left of b.
    assert!(bed.domains().contains(&b), "b has gone, and its pages with it");
    bed.on("a", "tell enter end");
    eventually(patience(), || !bed.domains().contains(&b)).expect("b goes with the last window of its pages");
    bed.on("a", "strike offer");
    bed.on("a", "strike lookout");
    assert_eq!(bed.on("a", "dmesg | grep -c leaking; true"), ["0"], "a could not take its pages back");
}

/// Guest b again, of the kind that runs on the processor's own virtualization.
fn hardware(bed: &mut Bed) {
    bed.xen.run("xl destroy b");
    bed.b = bed.create("b", "pvh");
    bed.suite("dom0", "b");
    bed.suite("a", "b");
    for who in ["dom0", "b"] {
        bed.on(who, "echo 100000 >/sys/module/xen_gntalloc/parameters/limit");
    }
    killed_mapper(bed);
    killed_owner(bed);
    for [owner, mapper] in [["b", "a"], ["dom0", "b"]] {
        bed.share(owner, mapper, MANY);
        bed.on(mapper, "tell enter end");
        bed.on(owner, "await offer farewell");
    }
    destroyed(bed);
}

impl Bed {
    /// The numbers of all domains, of those too that are dying.
    fn domains(&mut self) -> Vec<u16> {
        let listed = self.xen.run("xl list");
        let number = |line: &String| line.split_whitespace().nth(1).and_then(|number| number.parse().ok());
        listed.iter().filter_map(number).collect()
    }
}
