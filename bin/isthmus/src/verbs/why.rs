//! `isthmus why qp:NUMBER`: the programs of a queue pair and of its peers, the path between them, and the program that performs the
//! operations in each other's memory.

use std::path::PathBuf;

use anyhow::Result;
use isthmus_client::{Reason, Topic};
use isthmus_report::{DirectionRow, QueuePairPeer, QueuePairProgram, QueuePairReport, ReasonRow, Why};
use serde::Serialize;

use crate::daemon::{ask, explained, named, read, why_text};
use crate::output::{Outcome, Output, counted};

/// The name of the thread that acts for peers, as the plug-in of libibverbs gives it.
const SERVING_THREAD: &str = "isthmus-verbs";

/// The answer.
#[derive(Debug, Serialize)]
struct Answer {
    number: u32,
    holder: Program,
    peers: Vec<Peer>,
}

#[derive(Debug, Serialize)]
struct Program {
    #[serde(flatten)]
    program: QueuePairProgram,
    /// Whether the process has a serving thread. None if this user cannot see the process.
    serving_thread: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Peer {
    program: Program,
    same_owner: bool,
    refused: Option<ReasonRow>,
    path: Why,
}

impl Program {
    fn examine(program: QueuePairProgram) -> Self {
        let serving_thread = program.pid.and_then(has_serving_thread);
        Self { program, serving_thread }
    }
}

fn has_serving_thread(pid: i32) -> Option<bool> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    Some(tasks.flatten().filter_map(name).any(|name| name.trim_end() == SERVING_THREAD))
}

pub(crate) fn explain_queue_pair(output: Output, socket: Option<PathBuf>, number: u32) -> Result<Outcome> {
    let report: QueuePairReport = read(&ask(socket, Topic::Verbs, &[&number.to_string()])?)?;
    let peer = |QueuePairPeer { program, same_owner, refused, path }| Peer {
        program: Program::examine(program),
        same_owner,
        refused,
        path,
    };
    let holder = Program::examine(report.holder);
    let answer = Answer { number: report.number, holder, peers: report.peers.into_iter().map(peer).collect() };
    output.result("why queue pair", &answer, || text(&answer))?;
    Ok(Outcome::Done)
}

fn text(Answer { number, holder, peers }: &Answer) -> String {
    let mut text = format!("queue pair {number:#08x}: {}\n{}", named(&holder.program.domain), program_text(holder));
    if peers.is_empty() {
        text += "  no peer is known: none has connected to it since the daemon started\n";
    }
    for peer in peers {
        text += &format!("\npeer {}\n{}", named(&peer.program.program.domain), program_text(&peer.program));
        if let Some(reason) = &peer.refused {
            text += &explained("not connected", reason);
        }
        text += &why_text(&peer.path);
        if peer.refused.is_none() && peer.path.path != "none" {
            text += "operations in memory of the other program:\n";
            text += &operations(peer, &holder.program, &peer.program.program);
            text += &operations(peer, &peer.program.program, &holder.program);
        }
    }
    text
}

fn program_text(Program { program, serving_thread }: &Program) -> String {
    let process = program.pid.map_or_else(|| "process unknown".to_owned(), |pid| format!("process {pid}"));
    let thread = match serving_thread {
        Some(true) => "its serving thread runs",
        Some(false) => "no serving thread: it starts with the first queue pair that can receive (RTR)",
        None => "whether it has a serving thread is not visible to this user",
    };
    let user = program.uid.map_or_else(|| "another user".to_owned(), |uid| format!("user {uid}"));
    format!("  {process}, {user}; {thread}\n")
}

/// Names the program that performs the writes, reads and atomic operations of one program in memory of the other one.
fn operations(peer: &Peer, requester: &QueuePairProgram, owner: &QueuePairProgram) -> String {
    let path = &peer.path;
    let (by, of) = (named(&requester.domain), named(&owner.domain));
    if path.path == "local" {
        return format!("  {by} performs them itself\n");
    }
    if path.path != "channel" {
        return format!("  of {by}: {of} performs them, because there is no channel\n");
    }
    if !peer.same_owner {
        let reason = ReasonRow::from(Reason::DifferentOwner);
        return explained(&format!("of {by}: {of} performs them"), &reason);
    }
    let directions = path.channel.as_ref().and_then(|channel| channel.directions.as_ref());
    let sent_by = |program: &QueuePairProgram| directions?.iter().find(|row| row.from == program.domain.id);
    let count = |row: Option<&DirectionRow>, of: fn(&DirectionRow) -> Option<u64>| row.and_then(of);
    let direct = count(sent_by(requester), |row| row.direct);
    let (served, refused) = (count(sent_by(owner), |row| row.served), count(sent_by(owner), |row| row.refused));
    let (Some(direct), Some(served)) = (direct, served) else {
        return format!("  of {by}: the daemon does not count them\n");
    };
    let times = |count: u64| counted(usize::try_from(count).unwrap_or(usize::MAX), "time");
    let refused = match refused {
        Some(refused) if refused > 0 => format!("; {of} refused {}", times(refused)),
        _ => String::new(),
    };
    match (direct, served) {
        (0, 0) => format!("  of {by}: none yet{refused}\n"),
        (_, 0) => format!("  of {by}: directly, {}{refused}\n", times(direct)),
        (0, _) => format!("  of {by}: {of} performed them, {}{refused}\n", times(served)),
        _ => format!("  of {by}: directly, {}; {of} performed them {}{refused}\n", times(direct), times(served)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn program(id: u32, name: &str, uid: Option<u32>) -> Value {
        json!({ "domain": { "id": id, "name": name }, "uid": uid, "pid": 4000 + id })
    }

    fn side() -> Value {
        json!({
            "may_talk": true, "may_channel": true, "rule": null, "last": null, "channels": 1, "channels_max": 1024, "ready_maps": 1,
            "ready_maps_max": 16, "backlog": 0, "grants": 0,
        })
    }

    fn direction(from: u32, [direct, served, refused]: [u64; 3]) -> Value {
        let assisted = (served > 0).then(|| ReasonRow::from(Reason::MemoryThreads));
        json!({
            "from": from, "messages": 1, "bytes": 8, "wakeups": 0, "assisted": assisted, "direct": direct, "served": served,
            "refused": refused,
        })
    }

    fn path(name: &str, rows: [[u64; 3]; 2]) -> Value {
        let [of_a, of_b] = rows;
        let channel = json!({
            "id": "c2a", "state": "open", "connector": 3, "age_s": 75, "slab_bytes": 262144, "memory_bytes": 20480,
            "directions": [direction(3, of_a), direction(7, of_b)],
        });
        json!({
            "schema": 1, "a": { "id": 3, "name": "web" }, "b": { "id": 7, "name": "db" }, "path": name, "reason": null, "large": null,
            "channel": (name == "channel").then_some(channel), "from_a": side(), "from_b": side(),
        })
    }

    fn answer(peers: Value) -> Answer {
        let report =
            json!({ "schema": 1, "number": 0x43_2800, "holder": program(3, "web", Some(1000)), "peers": peers });
        let report: QueuePairReport = read(&report).expect("a report");
        let peer = |QueuePairPeer { program, same_owner, refused, path }| Peer {
            program: Program { program, serving_thread: Some(false) },
            same_owner,
            refused,
            path,
        };
        let holder = Program { program: report.holder, serving_thread: Some(true) };
        Answer { number: report.number, holder, peers: report.peers.into_iter().map(peer).collect() }
    }

    #[test]
    fn connected_queue_pair_is_explained() {
        let path = path("channel", [[1000, 3, 1], [0, 0, 0]]);
        let peers =
            json!([{ "program": program(7, "db", Some(1000)), "same_owner": true, "refused": null, "path": path }]);
        insta::assert_snapshot!("why_queue_pair", text(&answer(peers)));
    }

    #[test]
    fn refused_queue_pair_and_one_without_a_peer_say_so() {
        let refused = ReasonRow::from(Reason::TalkForbidden);
        let peers = json!([{ "program": program(7, "db", Some(1000)), "same_owner": true, "refused": refused, "path": path("none", [[0; 3]; 2]) }]);
        let shown = text(&answer(peers));
        assert!(shown.contains("not connected: ") && shown.contains("[talk-forbidden]"), "{shown}");
        assert!(!shown.contains("operations in memory"), "{shown}");
        assert!(text(&answer(json!([]))).contains("no peer is known"));
    }

    #[test]
    fn owner_performs_operations_without_a_channel_and_for_other_users() {
        let shown = |path_name, uid: Option<u32>| {
            let (program, path) = (program(7, "db", uid), path(path_name, [[0; 3]; 2]));
            text(&answer(json!([{ "program": program, "same_owner": uid.is_some(), "refused": null, "path": path }])))
        };
        let other = shown("channel", None);
        assert!(other.contains("process 4007, another user; "), "{other}");
        assert!(
            other.contains("of web (d3): db (d7) performs them: ") && other.contains("[different-owner]"),
            "{other}"
        );
        let without = shown("daemon", Some(1000));
        assert!(without.contains("of db (d7): web (d3) performs them, because there is no channel"), "{without}");
        assert!(shown("channel", Some(1000)).contains("of web (d3): none yet"));
        assert!(shown("local", Some(1000)).contains("web (d3) performs them itself"));
    }

    #[test]
    fn serving_thread_is_found_by_its_name() {
        let own = std::process::id() as i32;
        assert_eq!(has_serving_thread(own), Some(false));
        let (started, wait) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name(SERVING_THREAD.to_owned());
            thread.spawn_scoped(scope, || [&started, &wait].map(std::sync::Barrier::wait)).expect("a thread");
            started.wait();
            let found = has_serving_thread(own);
            wait.wait();
            assert_eq!(found, Some(true));
        });
        assert_eq!(has_serving_thread(0), None);
    }
}
