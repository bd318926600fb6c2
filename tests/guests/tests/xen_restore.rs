//! Guests of Xen that are paused, saved and restored, by the toolstack: programs hear of it, and meet again.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_guests::{XenBed, XenKit, XenMachine, patience};
use isthmus_testbed::eventually;

#[test]
fn guests_of_xen_come_back() {
    let kit = match XenKit::find() {
        Ok(kit) => kit,
        Err(why) => return println!("skipped: {why}"),
    };
    println!("# {}, emulated processors", kit.versions);
    let mut bed = XenBed { xen: XenMachine::boot(&kit), backend: "dom0" };
    bed.configure(&["a".to_owned(), "b".to_owned()]);
    bed.xen.run("backend");
    for name in ["a", "b"] {
        bed.xen.create(name, "pv");
        bed.xen.run(&format!("isthmus guest allow {name}"));
        bed.frontend(name);
    }
    bed.check("a guest that is paused looks silent, and goes on", paused);
    bed.check("a guest that is saved and goes on has lost nothing", checkpoint);
    bed.check("a guest that was forbidden lets go, is saved, restored and allowed, and comes back", prepared);
    bed.check("a guest that is saved as it is comes back under another number", unprepared);
    bed.check("and once more, with its peer in another guest", again);
    bed.check("its daemon ends and starts as any other", restarted);
    bed.check("nothing that was granted is left", |bed| {
        for guest in ["a", "b"] {
            bed.xen.on(guest, "strike frontend");
        }
        eventually(patience(), || {
            bed.xen.grants().into_iter().filter(|(domain, _)| *domain > 0).all(|(_, pages)| pages <= 2)
        })
        .expect("pages of guests are mapped");
    });
}

/// Both hear that they have lost each other: who stayed, of its peer; who was saved, of its daemon. None waits for ever.
fn both_heard(bed: &mut XenBed, stayed: (&str, &str), saved: (&str, &str)) {
    let done = bed.ended(stayed.0, stayed.1);
    let told = done.lines.iter().any(|line| line.ends_with("the endpoint cannot be reached"));
    assert!(done.code != 0 && told || stayed.1 == "server", "{done:?}");
    let done = bed.ended(saved.0, saved.1);
    println!("#   {}: {}", done.code, done.lines.join("; "));
    assert!(done.code != 0 || saved.1 == "server", "{done:?}");
}

/// Restores a guest, which comes back once it is allowed; its number before is not its number now.
fn restore(bed: &mut XenBed, name: &str, before: &str) {
    let now = bed.xen.say(&format!("restore {name}"));
    assert_ne!(now, before);
    bed.xen.run(&format!("isthmus guest allow {name}"));
    bed.is(name, "there");
    bed.xen.on(name, "answers frontend");
    let said = bed.xen.on(name, "dmesg | grep -e BUG -e Oops -e 'kernel bug' || true");
    assert!(said.is_empty(), "{said:?}");
}

fn paused(bed: &mut XenBed) {
    bed.talk("dom0", "a");
    bed.xen.run("xl pause a");
    bed.is("a", "silent");
    let then = bed.passed_on();
    bed.xen.run("xl unpause a");
    bed.is("a", "there");
    eventually(patience(), || bed.passed_on() > then + (1 << 20)).expect("the two do not talk any more");
    bed.xen.run("strike client");
    bed.ended("a", "server");
}

fn checkpoint(bed: &mut XenBed) {
    bed.talk("dom0", "a");
    let number = bed.number("a");
    bed.xen.run("save -c a && rm /save/a");
    assert_eq!(bed.number("a"), number);
    let then = bed.passed_on();
    eventually(patience(), || bed.passed_on() > then + (1 << 20)).expect("the two do not talk any more");
    bed.xen.run("strike client");
    bed.ended("a", "server");
    bed.pingpong("a", "b");
}

fn prepared(bed: &mut XenBed) {
    bed.talk("dom0", "a");
    let number = bed.number("a");
    bed.xen.run("isthmus guest forbid a");
    assert_eq!(bed.guest("a")["state"], "absent", "who was forbidden and let go is there");
    both_heard(bed, ("dom0", "client"), ("a", "server"));
    bed.xen.run("save a");
    restore(bed, "a", &number);
    assert_eq!(bed.xen.on("a", "ps | grep -c '[s]leep infinity' || true"), ["0"], "a port was open");
    bed.pingpong("dom0", "a");
}

fn unprepared(bed: &mut XenBed) {
    bed.talk("dom0", "a");
    let number = bed.number("a");
    bed.xen.run("save a");
    bed.is("a", "absent");
    restore(bed, "a", &number);
    both_heard(bed, ("dom0", "client"), ("a", "server"));
    assert_eq!(bed.xen.on("a", "ps | grep -c '[s]leep infinity'"), ["1"], "nobody holds the port");
    bed.pingpong("dom0", "a");
    bed.pingpong("a", "a");
}

fn again(bed: &mut XenBed) {
    bed.talk("a", "b");
    let number = bed.number("a");
    bed.xen.run("save a");
    bed.is("a", "absent");
    restore(bed, "a", &number);
    both_heard(bed, ("b", "server"), ("a", "client"));
    bed.pingpong("a", "b");
    bed.pingpong("b", "a");
}

fn restarted(bed: &mut XenBed) {
    bed.xen.on("a", "strike frontend; frontend");
    bed.is("a", "there");
    bed.pingpong("b", "a");
}
