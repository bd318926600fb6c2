//! Transcripts of VNET's language, written from its specification.
//!
//! ```text
//!   == network      what the network has: interface LABEL [MAC], link ADDRESS:PORT, route ROUTE
//!   == write        a text, followed by one of
//!   == prints         what it prints; its edits apply
//!   == refused        why it is refused; nothing applies
//! ```
//!
//! A line that begins with `#` between the parts says what the next part is about.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;

use isthmus_overlay::vnet::{InterfaceNames, LinkCounters, RouteLine, Table, VnetEdit, VnetReason};

/// A network, changed by edits alone.
#[derive(Default)]
struct Plan {
    links: Vec<SocketAddr>,
    interfaces: Vec<InterfaceNames>,
    routes: Vec<RouteLine>,
}

impl Plan {
    fn new(lines: &str) -> Self {
        let mut plan = Self::default();
        for line in lines.lines() {
            let (kind, rest) = line.split_once(' ').unwrap();
            match (kind, rest.split_once(' ')) {
                ("link", None) => plan.links.push(rest.parse().unwrap()),
                ("interface", None) => plan.interfaces.push(InterfaceNames { label: rest.to_owned(), mac: None }),
                ("interface", Some((label, mac))) => {
                    plan.interfaces.push(InterfaceNames { label: label.to_owned(), mac: Some(mac.parse().unwrap()) });
                }
                ("route", _) => plan.routes.push(rest.parse().unwrap()),
                _ => panic!("{line}"),
            }
        }
        plan
    }

    fn apply(&mut self, edit: VnetEdit) {
        match edit {
            VnetEdit::AddLink(link) => self.links.push(link),
            VnetEdit::RemoveLink(link) => remove(&mut self.links, &link),
            VnetEdit::AddRoute(route) => self.routes.push(route),
            VnetEdit::RemoveRoute(route) => remove(&mut self.routes, &route),
        }
    }

    fn follow(&self, table: &mut Table) {
        table.follow(self.links.clone(), self.interfaces.clone(), self.routes.clone());
    }
}

fn remove<T: PartialEq>(list: &mut Vec<T>, entry: &T) {
    list.remove(list.iter().position(|other| other == entry).unwrap());
}

fn counters(link: SocketAddr) -> LinkCounters {
    match link.to_string().as_str() {
        "192.0.2.2:9000" => LinkCounters { received: 3, received_bytes: 180, sent: 2, sent_bytes: 120 },
        _ => LinkCounters::default(),
    }
}

/// The parts of a transcript: the word, and the lines below it.
fn parts(transcript: &str) -> Vec<(&str, String)> {
    let mut parts = Vec::new();
    for part in transcript.split("\n== ").skip(1) {
        let (word, lines) = part.split_once('\n').unwrap_or((part, ""));
        let is_write = word == "write"; // Comments of a text are its own, up to its last line.
        let lines = lines.split('\n').filter(|line| is_write || !line.starts_with('#'));
        parts.push((word, lines.collect::<Vec<_>>().join("\n")));
    }
    parts
}

/// Runs a transcript. Returns the number of its texts.
fn run(transcript: &str) -> usize {
    let (mut plan, mut table, mut texts) = (Plan::default(), Table::default(), 0);
    let parts = parts(transcript);
    let mut parts = parts.iter();
    while let Some((word, lines)) = parts.next() {
        if *word == "network" {
            plan = Plan::new(lines);
            plan.follow(&mut table);
            continue;
        }
        assert_eq!(*word, "write");
        texts += 1;
        match (table.run(lines, counters), parts.next().unwrap()) {
            (Ok(outcome), ("prints", expected)) => {
                assert_eq!(outcome.output.trim_end_matches('\n'), expected.trim_end_matches('\n'), "{lines}");
                assert!(outcome.output.is_empty() || outcome.output.ends_with("\n\n"), "{lines}");
                outcome.edits.into_iter().for_each(|edit| plan.apply(edit));
                table = outcome.table;
                // The network that the edits lead to is that of the table: all entries keep their indexes.
                let before = table.run("LIST", counters).unwrap().output;
                plan.follow(&mut table);
                assert_eq!(table.run("LIST", counters).unwrap().output, before, "{lines}");
            }
            (Err(error), ("refused", expected)) => assert_eq!(error.to_string(), expected.trim_end(), "{lines}"),
            (result, (word, _)) => panic!("{lines}\n{word}, but {result:?}"),
        }
    }
    texts
}

#[test]
fn links_are_as_the_specification_has_them() {
    assert_eq!(run(include_str!("links.txt")), 4);
}

#[test]
fn routes_are_as_the_specification_has_them() {
    assert_eq!(run(include_str!("routes.txt")), 6);
}

#[test]
fn differences_are_as_documented() {
    assert_eq!(run(include_str!("differences.txt")), 11);
}

#[test]
fn a_route_names_the_first_of_two_links_to_a_host_until_it_is_deleted() {
    let mut table = Table::default();
    let links = ["192.0.2.2:9000", "192.0.2.2:9001"].map(|link| link.parse().unwrap());
    table.follow(links, [], ["any any edge 192.0.2.2 any".parse().unwrap()]);
    let outcome = table.run("links\nDEL 1", counters).unwrap();
    assert_eq!(outcome.edits, [VnetEdit::RemoveLink(links[0])]);
    let error = outcome.table.run("links\nDEL 2", counters).unwrap_err();
    assert_eq!((error.line, error.reason), (2, VnetReason::LinkInUse(1)));
    // A name with a port means one link.
    let outcome = table.run("ADD any any edge 192.0.2.2:9001 any\nroutes\nDEL 1", counters).unwrap();
    let error = outcome.table.run("links\nDEL 2", counters).unwrap_err();
    assert_eq!(error.reason, VnetReason::LinkInUse(2));
    assert!(outcome.table.run("links\nDEL 1", counters).is_ok());
}

#[test]
fn the_output_of_a_text_is_bounded() {
    let mut table = Table::default();
    let link: SocketAddr = "192.0.2.2:9000".parse().unwrap();
    table.follow([link], [], (0..10_000).map(|_| "any any edge 192.0.2.2 any".parse().unwrap()));
    assert!(table.run("LIST", counters).is_ok(), "all routes of the largest network");
    let error = table.run(&"LIST\n".repeat(100), counters).unwrap_err();
    assert_eq!(error.reason, VnetReason::OutputTooLong);
}
