//! A backend in a driver domain: a guest of Xen serves others, and domain 0 has no part in it but that it allows it.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_guests::{XenBed, XenKit, XenMachine, patience};
use isthmus_testbed::eventually;

const GUESTS: [&str; 2] = ["a", "b"];

#[test]
fn a_driver_domain_serves_guests() {
    let kit = match XenKit::find() {
        Ok(kit) => kit,
        Err(why) => return println!("skipped: {why}"),
    };
    println!("# {}, emulated processors", kit.versions);
    let mut bed = XenBed { xen: XenMachine::boot(&kit), backend: "driver", channels: false };
    for name in GUESTS {
        bed.xen.create(name, "pv");
    }
    start(&mut bed);
    for name in GUESTS {
        bed.frontend(name);
    }
    bed.check("both guests are there, by their names", are_there);
    bed.check("programs of two guests meet", |bed| bed.pingpong("b", "a"));
    bed.check("programs of a guest and of the driver domain meet", |bed| bed.pingpong("driver", "a"));
    bed.check("two programs of one guest meet, by a channel", |bed| bed.pingpong("a", "a"));
    bed.check("a driver domain that is destroyed is an error, and the next one serves as well", |bed| {
        bed.talk("a", "b");
        bed.passes_on(1 << 20);
        bed.xen.run("xl destroy driver");
        bed.lose("a");
        bed.xen.on("b", "strike server");
        start(bed);
        are_there(bed);
        bed.pingpong("b", "a");
    });
    bed.check("a guest that is forbidden is gone", |bed| {
        bed.xen.run("isthmus guest forbid a");
        bed.is("a", "absent");
    });
    bed.check("nothing that was granted is left", |bed| {
        bed.xen.on("b", "strike frontend");
        let is_ours = |pages: &usize| *pages > 2; // The others are the console's and the store's.
        eventually(patience(), || !bed.xen.grants().values().any(is_ours)).expect("pages of guests are mapped");
    });
}

/// Starts a driver domain, whose number is another one each time, and allows the guests to attach there and nowhere else.
fn start(bed: &mut XenBed) {
    bed.xen.create("driver", "pv");
    bed.xen.configure("driver", "", &GUESTS);
    for guest in GUESTS {
        bed.xen.run(&format!("isthmus guest allow {guest} --backend driver"));
    }
    bed.xen.on("driver", "backend");
}

fn are_there(bed: &mut XenBed) {
    GUESTS.into_iter().for_each(|guest| bed.is(guest, "there"));
}
