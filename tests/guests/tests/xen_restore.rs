//! Guests of Xen that are paused, saved and restored, by the toolstack: programs hear of it, and meet again.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use isthmus_guests::{Done, XenKit, XenMachine, patience};
use isthmus_testbed::eventually;
use serde_json::Value;

/// Without end.
const LONG: &str = "-n 100000 -W 0 -S 262144 -E 262144";

#[test]
fn guests_of_xen_come_back() {
    let kit = match XenKit::find() {
        Ok(kit) => kit,
        Err(why) => return println!("skipped: {why}"),
    };
    println!("# {}, emulated processors", kit.versions);
    let mut bed = Bed(XenMachine::boot(&kit));
    let guest = |name: &str| format!("[[xen.guest]]\\nname = \\\"{name}\\\"\\nuser = 0\\n");
    bed.0.run(&format!("printf \"{}{}\" >/tmp/isthmusd.toml; backend", guest("a"), guest("b")));
    for name in ["a", "b"] {
        bed.0.create(name, "pv");
        bed.0.run(&format!("isthmus guest allow {name}"));
        bed.0.on(name, "echo 30000 >/sys/module/xen_gntalloc/parameters/limit; frontend");
    }
    bed.check("a guest that is paused looks silent, and goes on", paused);
    bed.check("a guest that is saved and goes on has lost nothing", checkpoint);
    bed.check("a guest that was forbidden lets go, is saved, restored and allowed, and comes back", prepared);
    bed.check("a guest that is saved as it is comes back under another number", unprepared);
    bed.check("and once more, with its peer in another guest", again);
    bed.check("its daemon ends and starts as any other", restarted);
    bed.check("nothing that was granted is left", |bed| {
        for guest in ["a", "b"] {
            bed.0.on(guest, "strike frontend");
        }
        eventually(patience(), || {
            bed.0.grants().into_iter().filter(|(domain, _)| *domain > 0).all(|(_, pages)| pages <= 2)
        })
        .expect("pages of guests are mapped");
    });
}

struct Bed(XenMachine);

impl Bed {
    fn check(&mut self, what: &str, check: impl FnOnce(&mut Self)) {
        println!("# {what} …");
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(self))) {
            let logs = ["tail -n 30 /tmp/backend", "on a 'tail -n 30 /tmp/frontend; dmesg | tail -n 30'"];
            logs.map(|log| self.0.done(log))
                .iter()
                .flat_map(|said| &said.lines)
                .for_each(|line| println!("#   {line}"));
            resume_unwind(panic);
        }
        println!("PASS {what}");
    }

    /// What the backend says of a guest.
    fn guest(&mut self, name: &str) -> Value {
        let listed: Value = serde_json::from_str(&self.0.run("isthmus guest list --json").join("\n")).unwrap();
        let is_it = |guest: &&Value| guest["name"] == name;
        listed["guests"].as_array().unwrap().iter().find(is_it).unwrap().clone()
    }

    fn is(&mut self, name: &str, state: &str) {
        let mut seen = Value::Null;
        let is = eventually(patience(), || {
            seen = self.guest(name);
            seen["state"] == state
        });
        assert!(is.is_ok(), "{name} is not {state}: {seen}");
    }

    fn serve(&mut self, server: &str, program: &str) -> String {
        let said = self.0.on(server, &format!("begin server {program} -w; await server endpoint"));
        said.iter().find_map(|line| line.strip_prefix("endpoint ")).unwrap_or_else(|| panic!("{said:?}")).to_owned()
    }

    /// What became of a program that was begun.
    fn ended(&mut self, on: &str, name: &str) -> Done {
        let order = format!("ended {name}");
        self.0.done(&if on == "dom0" { order } else { format!("on {on} \"{order}\"") })
    }

    /// All sizes, every byte looked at.
    fn pingpong(&mut self, client: &str, server: &str) {
        let endpoint = self.serve(server, "mx_pingpong");
        self.0.on(client, &format!("mx_pingpong -w -r {endpoint} -n 1 -W 0 -v -S 1 -E 65536"));
        self.ended(server, "server").expect_success("the server");
    }

    /// Bytes that the backend has passed on.
    fn passed_on(&mut self) -> u64 {
        let listed: Value = serde_json::from_str(&self.0.run("isthmus domain list --json").join("\n")).unwrap();
        let of = |domain: &Value| domain["ordinary_received_bytes"].as_u64().unwrap();
        listed["domains"].as_array().unwrap().iter().map(of).sum()
    }

    /// A program of `client` begins to talk to one of `server` without end.
    fn talk(&mut self, client: &str, server: &str) {
        let endpoint = self.serve(server, "mx_pingpong");
        self.0.on(client, &format!("begin client mx_pingpong -w -r {endpoint} {LONG}"));
        eventually(patience(), || self.passed_on() > 1 << 20).expect("the two do not talk");
    }

    /// Both hear that they have lost each other: who stayed, of its peer; who was saved, of its daemon. None waits for ever.
    fn both_heard(&mut self, stayed: (&str, &str), saved: (&str, &str)) {
        let done = self.ended(stayed.0, stayed.1);
        let told = done.lines.iter().any(|line| line.ends_with("the endpoint cannot be reached"));
        assert!(done.code != 0 && told || stayed.1 == "server", "{done:?}");
        let done = self.ended(saved.0, saved.1);
        println!("#   {}: {}", done.code, done.lines.join("; "));
        assert!(done.code != 0 || saved.1 == "server", "{done:?}");
    }

    /// Restores a guest, which comes back once it is allowed; its number before is not its number now.
    fn restore(&mut self, name: &str, before: &str) {
        let now = self.0.say(&format!("restore {name}"));
        assert_ne!(now, before);
        self.0.run(&format!("isthmus guest allow {name}"));
        self.is(name, "there");
        self.0.on(name, "answers frontend");
        let said = self.0.on(name, "dmesg | grep -e BUG -e Oops -e 'kernel bug' || true");
        assert!(said.is_empty(), "{said:?}");
    }

    fn number(&mut self, name: &str) -> String {
        self.0.say(&format!("xl domid {name}"))
    }
}

fn paused(bed: &mut Bed) {
    bed.talk("dom0", "a");
    bed.0.run("xl pause a");
    bed.is("a", "silent");
    let then = bed.passed_on();
    bed.0.run("xl unpause a");
    bed.is("a", "there");
    eventually(patience(), || bed.passed_on() > then + (1 << 20)).expect("the two do not talk any more");
    bed.0.run("strike client");
    bed.ended("a", "server");
}

fn checkpoint(bed: &mut Bed) {
    bed.talk("dom0", "a");
    let number = bed.number("a");
    bed.0.run("save -c a && rm /save/a");
    assert_eq!(bed.number("a"), number);
    let then = bed.passed_on();
    eventually(patience(), || bed.passed_on() > then + (1 << 20)).expect("the two do not talk any more");
    bed.0.run("strike client");
    bed.ended("a", "server");
    bed.pingpong("a", "b");
}

fn prepared(bed: &mut Bed) {
    bed.talk("dom0", "a");
    let number = bed.number("a");
    bed.0.run("isthmus guest forbid a");
    assert_eq!(bed.guest("a")["state"], "absent", "who was forbidden and let go is there");
    bed.both_heard(("dom0", "client"), ("a", "server"));
    bed.0.run("save a");
    bed.restore("a", &number);
    assert_eq!(bed.0.on("a", "ps | grep -c '[s]leep infinity' || true"), ["0"], "a port was open");
    bed.pingpong("dom0", "a");
}

fn unprepared(bed: &mut Bed) {
    bed.talk("dom0", "a");
    let number = bed.number("a");
    bed.0.run("save a");
    bed.is("a", "absent");
    bed.restore("a", &number);
    bed.both_heard(("dom0", "client"), ("a", "server"));
    assert_eq!(bed.0.on("a", "ps | grep -c '[s]leep infinity'"), ["1"], "nobody holds the port");
    bed.pingpong("dom0", "a");
    bed.pingpong("a", "a");
}

fn again(bed: &mut Bed) {
    bed.talk("a", "b");
    let number = bed.number("a");
    bed.0.run("save a");
    bed.is("a", "absent");
    bed.restore("a", &number);
    bed.both_heard(("b", "server"), ("a", "client"));
    bed.pingpong("a", "b");
    bed.pingpong("b", "a");
}

fn restarted(bed: &mut Bed) {
    bed.0.on("a", "strike frontend; frontend");
    bed.is("a", "there");
    bed.pingpong("b", "a");
}
