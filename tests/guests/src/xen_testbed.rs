//! MX programs in domains of a [`XenMachine`], the backend daemon between them, and its reports.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use isthmus_testbed::{eventually, short_or_long};
use serde_json::Value;

use crate::shell::{CommandOutput, timeout};
use crate::xen::XenMachine;

/// The arguments of a transfer that does not end.
const STREAM: &str = "-s 65536 -N 10000000";

/// A machine with a backend. Methods panic on failure, which fails the test.
#[derive(Debug)]
pub struct XenTestbed {
    /// The machine.
    pub xen: XenMachine,
    /// The domain of the backend daemon: `dom0`, or a guest.
    pub backend: &'static str,
    /// Whether programs of two domains may use the direct path. A guest that has mapped grants of another guest cannot be restored.
    pub channels: bool,
}

impl XenTestbed {
    /// Starts a guest daemon.
    pub fn frontend(&mut self, name: &str) {
        self.xen.may_grant(name);
        self.xen.run_in_guest(name, "frontend");
    }

    /// Runs a check and prints its result. If it fails, prints the logs of the daemons, too.
    pub fn check(&mut self, what: &str, check: impl FnOnce(&mut Self)) {
        println!("# {what} …");
        let begun = Instant::now();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(self))) {
            let log = "tail -n 30 /tmp/backend /tmp/frontend 2>/dev/null; dmesg | tail -n 20";
            let guests = self.xen.done("xl list").lines.into_iter().skip(2);
            let guests = guests.filter_map(|line| Some(line.split_whitespace().next()?.to_owned()));
            let orders: Vec<String> = guests.map(|guest| format!("echo {guest}:; on {guest} \"{log}\"")).collect();
            for line in orders.iter().map(String::as_str).chain([log]).flat_map(|order| self.xen.done(order).lines) {
                println!("#   {line}");
            }
            resume_unwind(panic);
        }
        println!("PASS {what}, after {:.0} s", begun.elapsed().as_secs_f64());
    }

    /// Runs a check in the long form of a test only.
    pub fn check_long(&mut self, what: &str, check: impl FnOnce(&mut Self)) {
        if short_or_long(false, true) {
            self.check(what, check);
        } else {
            println!("LONG {what}");
        }
    }

    /// Returns a list of the backend daemon.
    pub fn list(&mut self, what: &str) -> Value {
        let said = self.xen.run_in_guest(self.backend, &format!("isthmus {what} list --json")).join("\n");
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{said}: {error}"))
    }

    /// Returns the row of a guest in the list of the backend daemon.
    pub fn guest(&mut self, name: &str) -> Value {
        let listed = self.list("guest");
        let mut guests = listed["guests"].as_array().into_iter().flatten();
        guests.find(|guest| guest["name"] == name).unwrap_or_else(|| panic!("{name} is not in {listed}")).clone()
    }

    /// Waits until the backend daemon lists a guest in this state.
    pub fn expect_state(&mut self, name: &str, state: &str) {
        let mut seen = Value::Null;
        let is = eventually(timeout(), || {
            seen = self.guest(name);
            seen["state"] == state
        });
        assert!(is.is_ok(), "{name} is not {state}: {seen}");
    }

    /// Returns the number of bytes that the backend has forwarded to domains that still exist.
    pub fn forwarded_bytes(&mut self) -> u64 {
        let listed = self.list("domain");
        let of = |domain: &Value| domain["daemon_path_received_bytes"].as_u64().unwrap_or(0);
        listed["domains"].as_array().into_iter().flatten().map(of).sum()
    }

    /// Waits until the backend has forwarded more than `bytes` further bytes.
    pub fn expect_forwarded(&mut self, bytes: u64) {
        let until = self.forwarded_bytes() + bytes;
        eventually(timeout(), || self.forwarded_bytes() > until).expect("nothing is forwarded");
    }

    /// Returns the paths of all pairs of domains.
    pub fn paths(&mut self) -> Vec<String> {
        let listed = self.list("channel");
        let path = |pair: &Value| pair["path"].as_str().map(str::to_owned);
        listed["pairs"].as_array().into_iter().flatten().filter_map(path).collect()
    }

    /// Starts a program's server and client, the only domains then, and waits until they have a channel. On a busy machine, emulated domains
    /// stop for seconds. A program may miss its offers then, or lose its connection. In that case both are started again.
    pub fn start_with_channel(&mut self, client: &str, server: &str, program: &str, plan: &str) {
        const STARTS: usize = 5;
        const LOOKS: usize = 60;
        for _ in 0..STARTS {
            self.start_programs(client, server, program, plan);
            for _ in 0..LOOKS {
                if self.paths() == ["channel"] {
                    return;
                }
                if !self.is_running(client) {
                    break;
                }
            }
            println!("# without a channel: {}", self.list("channel"));
            self.xen.run_in_guest(client, "strike client");
            self.xen.run_in_guest(server, "strike server");
            eventually(timeout(), || self.paths().is_empty()).expect("the programs leave");
        }
        panic!("the programs were started {STARTS} times, and got no channel");
    }

    /// Starts an endless transfer as [`Self::start_with_channel`] does.
    pub fn start_stream_with_channel(&mut self, client: &str, server: &str) {
        self.start_with_channel(client, server, "mx_stream", STREAM);
    }

    /// Returns whether the client of [`Self::start_programs`] runs.
    fn is_running(&mut self, client: &str) -> bool {
        let order = "grep -q . /proc/$(cat /tmp/client.pid)/cmdline && echo yes || cat /tmp/client";
        self.xen.run_in_guest(client, order).last().is_some_and(|line| line == "yes")
    }

    /// Waits until the program of [`Self::start_with_channel`] needs no daemon: it prints lines while the backend forwards nothing. A channel is
    /// open earlier, when one side has it. The daemons then notify the other side.
    pub fn until_direct_path(&mut self, client: &str) {
        let look = |bed: &mut Self| (bed.lines_of_client(client), bed.forwarded_bytes());
        let mut last = look(self);
        let past = eventually(timeout(), || {
            let now = look(self);
            let before = std::mem::replace(&mut last, now);
            before.0 != last.0 && before.1 == last.1
        });
        past.unwrap_or_else(|_| panic!("{last:?}"));
    }

    /// Returns the number of lines that the program of [`Self::start_programs`] has printed. Fails if the program has ended: then nothing
    /// that a test waits for can happen any more.
    pub fn lines_of_client(&mut self, client: &str) -> usize {
        let order =
            "grep -q . /proc/$(cat /tmp/client.pid)/cmdline || { cat /tmp/client; false; } && wc -l </tmp/client";
        let said = self.xen.run_in_guest(client, order);
        said.last().and_then(|count| count.trim().parse().ok()).unwrap_or_else(|| panic!("{said:?}"))
    }

    /// Runs a program's server while `client` runs its client side with these arguments. Returns the output of the client.
    pub fn connect_programs(&mut self, client: &str, server: &str, program: &str, plan: &str) -> Vec<String> {
        let client_program = self.serve(client, server, program);
        let said = self.xen.run_in_guest(client, &format!("{client_program} {plan}"));
        self.ended(server, "server").expect_success("the server");
        said
    }

    /// Exchanges messages of some sizes and checks every byte.
    pub fn pingpong(&mut self, client: &str, server: &str) {
        self.connect_programs(client, server, "mx_pingpong", "-n 1 -W 0 -v -S 1 -E 65536");
    }

    /// Starts a program's server and client in the background, under the names `server` and `client`.
    pub fn start_programs(&mut self, client: &str, server: &str, program: &str, plan: &str) {
        let client_program = self.serve(client, server, program);
        self.xen.run_in_guest(client, &format!("begin client {client_program} {plan}"));
    }

    /// Starts an endless transfer from a program of `client` to one of `server`.
    pub fn start_stream(&mut self, client: &str, server: &str) {
        self.start_programs(client, server, "mx_stream", STREAM);
    }

    /// Waits until the client has ended because its peer is unreachable. The server may still wait for messages.
    pub fn expect_peer_gone(&mut self, client: &str) {
        let done = self.ended(client, "client");
        assert!(done.lines.iter().any(|line| line.ends_with("the endpoint cannot be reached")), "{done:?}");
    }

    /// Waits until a program in the background has ended, and returns its result.
    pub fn ended(&mut self, on: &str, name: &str) -> CommandOutput {
        let order = format!("ended {name}");
        self.xen.done(&if on == "dom0" { order } else { format!("on {on} \"{order}\"") })
    }

    /// Returns a domain's number, from `xl domid`.
    pub fn number(&mut self, name: &str) -> u16 {
        if name == "dom0" {
            return 0;
        }
        let said = self.xen.run_for_line(&format!("xl domid {name}"));
        said.parse().unwrap_or_else(|_| panic!("{said}"))
    }

    /// Starts a program's server, and returns the command of its client.
    fn serve(&mut self, client: &str, server: &str, program: &str) -> String {
        let past = if self.channels || client == server { "" } else { "env ISTHMUS_CHANNELS=0 " };
        let said = self.xen.run_in_guest(server, &format!("begin server {past}{program} -w; await server endpoint"));
        let endpoint = said.iter().find_map(|line| line.strip_prefix("endpoint "));
        format!("{past}{program} -w -r {}", endpoint.unwrap_or_else(|| panic!("{said:?}")))
    }
}
