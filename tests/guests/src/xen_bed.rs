//! Programs of MX in domains of a [`XenMachine`], which meet at a backend's daemon, and what that says of its guests.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use isthmus_testbed::eventually;
use serde_json::Value;

use crate::shell::{Done, patience};
use crate::xen::XenMachine;

/// Without end.
const LONG: &str = "-n 100000 -W 0 -S 262144 -E 262144";

/// A machine with a backend. Methods panic where something fails: that fails the test.
#[derive(Debug)]
pub struct XenBed {
    /// The machine.
    pub xen: XenMachine,
    /// Where the backend's daemon is: `dom0`, or a guest.
    pub backend: &'static str,
}

impl XenBed {
    /// What is configured for guests of these names, in a file of the backend's.
    pub fn configure(&mut self, names: &[String]) {
        let guest = |name: &String| format!("[[xen.guest]]\\nname = \\\"{name}\\\"\\nuser = 0\\n");
        let guests: String = names.iter().map(guest).collect();
        self.xen.on(self.backend, &format!("printf \"{guests}\" >/tmp/isthmusd.toml"));
    }

    /// Starts a guest's daemon.
    pub fn frontend(&mut self, name: &str) {
        self.xen.on(name, "echo 30000 >/sys/module/xen_gntalloc/parameters/limit; frontend");
    }

    /// Says how a check went; if it fails, also what daemons have said.
    pub fn check(&mut self, what: &str, check: impl FnOnce(&mut Self)) {
        println!("# {what} …");
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(self))) {
            let log = "tail -n 30 /tmp/backend /tmp/frontend 2>/dev/null; dmesg | tail -n 20";
            let orders = ["a", "b"].map(|guest| format!("echo {guest}:; on {guest} \"{log}\""));
            for line in orders.iter().map(String::as_str).chain([log]).flat_map(|order| self.xen.done(order).lines) {
                println!("#   {line}");
            }
            resume_unwind(panic);
        }
        println!("PASS {what}");
    }

    /// What the backend shows.
    fn shown(&mut self, what: &str) -> Value {
        let said = self.xen.on(self.backend, &format!("isthmus {what} list --json")).join("\n");
        let listed: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{said}: {error}"));
        listed[format!("{what}s")].clone()
    }

    /// What the backend says of a guest.
    pub fn guest(&mut self, name: &str) -> Value {
        let listed = self.shown("guest");
        let mut guests = listed.as_array().into_iter().flatten();
        guests.find(|guest| guest["name"] == name).unwrap_or_else(|| panic!("{name} is not in {listed}")).clone()
    }

    /// Waits until the backend says that a guest is so.
    pub fn is(&mut self, name: &str, state: &str) {
        let mut seen = Value::Null;
        let is = eventually(patience(), || {
            seen = self.guest(name);
            seen["state"] == state
        });
        assert!(is.is_ok(), "{name} is not {state}: {seen}");
    }

    /// Begins `server` there for a client, and says its endpoint.
    fn serve(&mut self, client: &str, server: &str) -> String {
        let program = between(client, server);
        let said = self.xen.on(server, &format!("begin server {program} -w; await server endpoint"));
        said.iter().find_map(|line| line.strip_prefix("endpoint ")).unwrap_or_else(|| panic!("{said:?}")).to_owned()
    }

    /// What became of a program that was begun.
    pub fn ended(&mut self, on: &str, name: &str) -> Done {
        let order = format!("ended {name}");
        self.xen.done(&if on == "dom0" { order } else { format!("on {on} \"{order}\"") })
    }

    /// All sizes, every byte looked at.
    pub fn pingpong(&mut self, client: &str, server: &str) {
        let (endpoint, program) = (self.serve(client, server), between(client, server));
        self.xen.on(client, &format!("{program} -w -r {endpoint} -n 1 -W 0 -v -S 1 -E 65536"));
        self.ended(server, "server").expect_success("the server");
    }

    /// Bytes that the backend has passed on.
    pub fn passed_on(&mut self) -> u64 {
        let listed = self.shown("domain");
        let of = |domain: &Value| domain["ordinary_received_bytes"].as_u64().unwrap_or(0);
        listed.as_array().into_iter().flatten().map(of).sum()
    }

    /// A program of `client` begins to talk to one of `server` without end.
    pub fn talk(&mut self, client: &str, server: &str) {
        let (endpoint, program) = (self.serve(client, server), between(client, server));
        self.xen.on(client, &format!("begin client {program} -w -r {endpoint} {LONG}"));
        eventually(patience(), || self.passed_on() > 1 << 20).expect("the two do not talk");
    }

    /// A guest's number, as xl says it.
    pub fn number(&mut self, name: &str) -> String {
        self.xen.say(&format!("xl domid {name}"))
    }
}

/// Ping-pong, between domains by their backend: one that has mapped what another one grants is not restored.
fn between(client: &str, server: &str) -> &'static str {
    if client == server { "mx_pingpong" } else { "env ISTHMUS_CHANNELS=0 mx_pingpong" }
}
