//! Programs of Xen's domains: unchanged MX programs in guests and in domain 0 meet at the daemon of domain 0.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use isthmus_guests::{XenKit, XenMachine, patience};
use isthmus_layout::limits::ORDINARY_CREDIT_BYTES;
use isthmus_testbed::eventually;
use serde_json::Value;

/// Sizes to 1 MiB, every byte looked at.
const EVERY_SIZE: &str = "-n 2 -W 1 -v -S 0 -E 1048576";

/// A heading, nothing, and powers of two.
const LINES: usize = 1 + 1 + 21;

const SHORT: &str = "-n 1 -W 1 -v -S 1 -E 65536";
/// A long way from one to the other. Who sends hears that its receiver is gone.
const STREAM: &str = "-s 65536 -N 10000000";
const LONG: &str = "-n 100000 -W 0 -S 262144 -E 262144";

#[test]
fn programs_of_domains_of_xen() {
    let kit = match XenKit::find() {
        Ok(kit) => kit,
        Err(why) => return println!("skipped: {why}"),
    };
    println!("# {}, emulated processors", kit.versions);
    let mut bed = Bed(XenMachine::boot(&kit));
    let kind = match bed.0.done("xl info | grep -q virt_caps.*hvm").code {
        0 => "pvh",
        _ => {
            println!("SKIP a PVH guest: this QEMU's processor cannot run any; b is a PV guest, too");
            "pv"
        }
    };
    bed.0.run("printf \"[xen]\\ncommon_idle_s = 5\\n[[xen.guest]]\\nname = \\\"a\\\"\\nuser = 0\\n[[xen.guest]]\\nname = \\\"b\\\"\\nuser = 0\\n\" >/tmp/isthmusd.toml");
    bed.start("a", "pv");
    bed.start("b", kind);
    let before = bed.0.grants();
    bed.0.run("backend");
    for guest in ["a", "b"] {
        bed.0.on(guest, "frontend");
    }
    bed.check("the backend shows its guests", |bed| {
        let shown = bed.guests();
        assert!(shown.as_array().unwrap().iter().all(|guest| guest["daemon"] == true), "{shown}");
    });
    for (what, client, server, sizes) in [
        ("programs of a guest and of domain 0 meet", "dom0", "a", EVERY_SIZE),
        ("programs of two guests meet", "b", "a", EVERY_SIZE),
        ("programs of two guests meet the other way round", "a", "b", SHORT),
        ("two programs of one guest meet, by a channel", "a", "a", EVERY_SIZE),
        ("two programs of the other guest meet, by a channel", "b", "b", SHORT),
    ] {
        bed.check(what, |bed| bed.pingpong(client, server, sizes));
    }
    for [client, server] in [["dom0", "b"], ["b", "a"]] {
        bed.check("many messages under way at once come whole and in order", |bed| bed.stream(client, server));
    }
    bed.check("programs of two guests talk past the backend", past_the_backend);
    bed.check("what two guests have in common goes when nobody uses it", |bed| {
        let gone = |bed: &mut Bed| bed.0.done("grep -q \"common window goes: nobody uses it\" /tmp/backend").code == 0;
        eventually(patience(), || gone(bed)).expect("it stays");
    });
    bed.check("a guest's daemon that is killed ends its channels, and nothing else", |bed| killed_neighbour(bed, "b"));
    bed.check("so does the other one's", |bed| killed_neighbour(bed, "a"));
    bed.check("a guest's daemon that is killed comes back", killed_frontend);
    bed.check("a backend that is killed comes back", killed_backend);
    bed.check("whatever stands in a guest's node, the others go on", garbled);
    bed.check("a guest that is destroyed is an error for its peers and nothing else", destroyed);
    bed.check("nothing that was granted is left", |bed| {
        bed.0.on("a", "strike frontend");
        let a = bed.number("a");
        let then = before[&a];
        eventually(patience(), || bed.0.grants().get(&a) == Some(&then)).expect("pages of a are mapped");
    });
}

struct Bed(XenMachine);

impl Bed {
    fn check(&mut self, what: &str, check: impl FnOnce(&mut Self)) {
        println!("# {what} …");
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(self))) {
            for (name, log) in [("dom0", "backend"), ("a", "frontend"), ("b", "frontend")] {
                println!("# the daemon of {name}:");
                let order = format!("tail -n 40 /tmp/{log}");
                let said = self.0.done(&if name == "dom0" { order } else { format!("on {name} \"{order}\"") });
                said.lines.iter().for_each(|line| println!("#   {line}"));
            }
            resume_unwind(panic);
        }
        println!("PASS {what}");
    }

    /// Starts a guest that may attach.
    fn start(&mut self, name: &str, kind: &str) {
        self.0.create(name, kind);
        self.0.run(&format!("isthmus guest allow {name}"));
        self.0.on(name, "echo 30000 >/sys/module/xen_gntalloc/parameters/limit");
    }

    fn number(&mut self, name: &str) -> u16 {
        self.0.say(&format!("xl domid {name}")).parse().unwrap()
    }

    /// The backend's guests.
    fn guests(&mut self) -> Value {
        let listed: Value = serde_json::from_str(&self.0.run("isthmus guest list --json").join("\n")).unwrap();
        listed["guests"].clone()
    }

    /// Starts the serving side of that, and returns its endpoint.
    fn serve(&mut self, server: &str, program: &str) -> String {
        self.0.on(server, &format!("begin server {program} -w"));
        let said = self.0.on(server, "await server endpoint");
        said.iter().find_map(|line| line.strip_prefix("endpoint ")).unwrap_or_else(|| panic!("{said:?}")).to_owned()
    }

    fn pingpong(&mut self, client: &str, server: &str, sizes: &str) {
        let endpoint = self.serve(server, "mx_pingpong");
        let said = self.0.on(client, &format!("mx_pingpong -w -r {endpoint} {sizes}"));
        said.iter().for_each(|line| println!("{line}"));
        assert!(sizes != EVERY_SIZE || said.len() == LINES, "{said:?}");
        self.0.on(server, "ended server");
    }

    fn stream(&mut self, client: &str, server: &str) {
        let endpoint = self.serve(server, "mx_stream");
        for line in self.0.on(client, &format!("mx_stream -w -r {endpoint} -s 40000 -N 20 -q 5 -v")) {
            println!("{line}");
        }
        self.0.on(server, "ended server");
    }

    /// Bytes that went through the backend, as far as the domains are there that they were for.
    fn ordinary_bytes(&mut self) -> u64 {
        let listed: Value = serde_json::from_str(&self.0.run("isthmus domain list --json").join("\n")).unwrap();
        let of = |domain: &Value| domain["ordinary_received_bytes"].as_u64().unwrap();
        listed["domains"].as_array().unwrap().iter().map(of).sum()
    }

    /// The paths of all pairs that there are.
    fn paths(&mut self) -> Vec<String> {
        let listed: Value = serde_json::from_str(&self.0.run("isthmus channel list --json").join("\n")).unwrap();
        let pairs = listed["pairs"].as_array().unwrap().iter();
        pairs.map(|pair| pair["path"].as_str().unwrap().to_owned()).collect()
    }

    fn until_channel(&mut self) {
        let found = eventually(patience(), || self.paths() == ["channel"]);
        found.unwrap_or_else(|_| panic!("{:?}", self.0.run("isthmus channel list --json")));
    }

    /// A program of `client` sends to one of `server` without end; once it does, by a channel between guests, that happens; and the survivor
    /// is told.
    fn struck(&mut self, client: &str, server: &str, strike: impl FnOnce(&mut Self)) {
        let between_guests = client != "dom0";
        let (program, plan) = if between_guests { ("mx_stream", STREAM) } else { ("mx_pingpong", LONG) };
        let endpoint = self.serve(server, program);
        self.0.on(client, &format!("begin client {program} -w -r {endpoint} {plan}"));
        match between_guests {
            true => self.until_channel(),
            false => eventually(patience(), || self.ordinary_bytes() > 1 << 20).expect("the two do not talk"),
        }
        strike(self);
        let done = self.0.done(&match client {
            "dom0" => "ended client".to_owned(),
            _ => format!("on {client} \"ended client\""),
        });
        assert_ne!(done.code, 0);
        done.lines.iter().for_each(|line| println!("# the survivor: {line}"));
        let told = |line: &String| line.ends_with("the endpoint cannot be reached");
        assert!(between_guests || done.lines.iter().any(told), "{:?}", done.lines);
    }
}

/// Messages of a pair that go on after there is a channel.
const MANY: &str = "-n 2000 -W 0 -v -S 32768 -E 32768";

fn past_the_backend(bed: &mut Bed) {
    let endpoint = bed.serve("a", "mx_pingpong");
    bed.0.on("b", &format!("begin client mx_pingpong -w -r {endpoint} {MANY}"));
    bed.until_channel();
    let first = bed.ordinary_bytes();
    // As long as both are there.
    let mut last = first;
    while bed.paths() == ["channel"] {
        last = last.max(bed.ordinary_bytes());
    }
    bed.0.on("b", "ended client").iter().for_each(|line| println!("{line}"));
    bed.0.on("a", "ended server");
    println!("# through the backend: {first} bytes before there was a channel, {} after", last - first);
    // What was on its way there when the channel came, both ways, and nothing else.
    assert!(last - first <= 2 * u64::from(ORDINARY_CREDIT_BYTES));
}

fn killed_neighbour(bed: &mut Bed, whose: &str) {
    let other = if whose == "a" { "b" } else { "a" };
    bed.struck(other, whose, |bed| drop(bed.0.on(whose, "strike frontend")));
    bed.0.on(whose, "strike server; frontend");
    bed.pingpong(other, whose, SHORT);
}

fn killed_frontend(bed: &mut Bed) {
    bed.struck("dom0", "a", |bed| drop(bed.0.on("a", "strike frontend")));
    bed.0.on("a", "strike server; frontend");
    bed.pingpong("dom0", "a", SHORT);
}

fn killed_backend(bed: &mut Bed) {
    bed.0.run("strike backend; backend");
    for guest in ["a", "b"] {
        bed.0.on(guest, "answers frontend");
    }
    bed.pingpong("b", "a", SHORT);
}

fn garbled(bed: &mut Bed) {
    let b = bed.number("b");
    bed.0.on("b", "strike frontend");
    for value in ["", "isthmus", "isthmus 1 0000000000000001 1 5701", "isthmus 1 ffffffffffffffff 4294967295"] {
        bed.0.run(&format!("xenstore-write /local/domain/{b}/data/isthmus \"{value}\""));
    }
    bed.pingpong("dom0", "a", SHORT);
    bed.0.on("b", "frontend");
}

fn destroyed(bed: &mut Bed) {
    bed.struck("a", "b", |bed| drop(bed.0.run("xl destroy b")));
    eventually(patience(), || bed.0.run("xl list").len() == 3).expect("b goes, and its pages with it");
    let shown = bed.guests();
    assert!(shown[1]["daemon"] == false && shown[1]["used_bytes"].is_null(), "{shown}");
    bed.pingpong("dom0", "a", SHORT);
}
