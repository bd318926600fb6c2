//! Reports show a program what is its own: nothing of other users, other guests and the host.

use isthmus_layout::control::*;
use isthmus_layout::mx::MxOpen;
use isthmus_layout::reason::Reason;
use isthmus_layout::verbs::{VerbsTake, VerbsToClient};
use isthmus_report::overlay::OverlayReport;
use isthmus_report::{
    Channels, Domains, Endpoints, MxReport, QueuePairReport, StatusReport, StreamsReport, VerbsReport, Why,
};

use crate::guest::{Guest, configured};
use crate::streams::{Connection, Program, pair};
use crate::testbed::{Client, Testbed, channel, name};

const VICTIM: u32 = 70_001;
const OTHER: u32 = 70_002;

/// Whatever belongs to the victim has this in its name.
const SECRET: &str = "secret";

const CONFIG: &str = "names = [{ name = \"secret-*\", user = 70001 }]\n[sockets]\ndeny = [\"192.0.2.77\"]\n\
     [[overlay.network]]\nname = \"secretlan\"\nvni = 7\n";

/// A victim that uses everything, and the texts that no other user may see.
struct Victim {
    _clients: Vec<Client>,
    _streams: (Program, Program, Connection),
    /// The number of a queue pair.
    qpn: u32,
    /// The number of the first domain.
    domain: u32,
    secrets: Vec<String>,
}

impl Victim {
    /// The victim's clients are made by `connect`.
    fn new(mut connect: impl FnMut() -> Client) -> Self {
        let (mut a, mut b) = (connect(), connect());
        let (first, second) = (a.attach(Some("secret-a")).unwrap(), b.attach(Some("secret-b")).unwrap());
        channel(&mut a, &mut b, second.id());
        let opened = a.request(OpenEndpoint { index: None, label: Some(name("secret-label")) }, &[]).unwrap().message;
        let ToClient::EndpointOpened(EndpointOpened { index }) = opened else { panic!("{opened:?}") };
        a.request(MxOpen { board: None, endpoint: Some(5), key: 0, index }, &[]).unwrap();
        let taken = a.request(VerbsTake { index, first: None }, &[]).unwrap().message;
        let ToClient::Verbs(VerbsToClient::VerbsTaken(taken)) = taken else { panic!("{taken:?}") };
        let (mut one, mut other) = (Program::of(connect()), Program::of(connect()));
        let (connection, ..) = pair(&mut one, &mut other);
        let ends = [connection.client.local_addr().unwrap(), connection.client.peer_addr().unwrap()];
        let mut secrets = vec![SECRET.to_owned(), "192.0.2.77".to_owned(), format!("\"first\":{}", taken.first)];
        secrets.extend(ends.map(|end| end.to_string()));
        secrets.push("\"cgroup\":\"".to_owned());
        let domain = first.id().number();
        Self { _clients: vec![a, b], _streams: (one, other, connection), qpn: taken.first, domain, secrets }
    }
}

/// The questions of a topic about a victim. Each topic stands here: a new one has to be added.
fn questions(topic: Topic, victim: &Victim) -> Vec<Vec<String>> {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    match topic {
        Topic::Status
        | Topic::Domains
        | Topic::Channels
        | Topic::Endpoints
        | Topic::Doctor
        | Topic::Config
        | Topic::Metrics
        | Topic::Mx
        | Topic::Streams => vec![words(&[])],
        Topic::Why => vec![
            words(&["d1", "d2"]),
            words(&["mine", &format!("d{}", victim.domain)]),
            words(&[&format!("d{}", victim.domain), "mine"]),
        ],
        Topic::Verbs => vec![words(&[]), words(&[&victim.qpn.to_string()])],
        Topic::Overlay => vec![
            words(&[]),
            words(&["table"]),
            words(&["monitor"]),
            words(&["lan", "lan0", "02:00:00:00:00:01", "02:00:00:00:00:02"]),
        ],
    }
}

/// Asks every question about a victim. Returns the topics and texts of all replies.
fn everything(
    victim: &Victim,
    mut ask: impl FnMut(Topic, &[&str]) -> Result<String, Reason>,
) -> Vec<(Topic, Result<String, Reason>)> {
    let mut replies = Vec::new();
    for topic in Topic::ALL {
        for arguments in questions(topic, victim) {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            replies.push((topic, ask(topic, &arguments)));
        }
    }
    replies
}

#[track_caller]
fn expect_nothing_of(secrets: &[String], replies: &[(Topic, Result<String, Reason>)]) {
    for (topic, reply) in replies {
        let text = reply.as_deref().unwrap_or_default();
        for secret in secrets {
            assert!(!text.contains(secret), "{topic:?} shows {secret}: {text}");
        }
    }
}

/// A victim of another user. None if this process cannot change its user.
fn victim(bed: &Testbed) -> Option<Victim> {
    let is_root = bed.greeted_as(VICTIM).is_some();
    if !is_root {
        eprintln!("skipped: only root can be other users");
    }
    is_root.then(|| Victim::new(|| bed.greeted_as(VICTIM).unwrap()))
}

fn config(more: &str) -> String {
    format!("[policy]\nattach = \"any-user\"\n{CONFIG}{more}{}", configured("secretguest", 4, 4))
}

#[test]
fn user_sees_nothing_of_another_one_but_counts() {
    let bed = Testbed::with(&config(""));
    let Some(victim) = victim(&bed) else { return };
    // Without programs of its own, no row can be the user's.
    let mut other = bed.greeted_as(OTHER).unwrap();
    let replies = everything(&victim, |topic, arguments| other.report_text(topic, arguments));
    expect_nothing_of(&victim.secrets, &replies);
    let uid_and_pid = [format!(":{VICTIM}"), format!("\"pid\":{}", std::process::id())];
    let without_status: Vec<_> = replies.into_iter().filter(|(topic, _)| *topic != Topic::Status).collect();
    expect_nothing_of(&uid_and_pid, &without_status);
    let refused =
        |topic| without_status.iter().filter(move |(of, _)| *of == topic).filter_map(|(_, reply)| reply.clone().err());
    assert_eq!(refused(Topic::Why).next(), Some(Reason::NotYours));
    assert_eq!(refused(Topic::Verbs).collect::<Vec<_>>(), [Reason::NotYours]);
    assert_eq!(refused(Topic::Overlay).collect::<Vec<_>>(), [Reason::NotYours; 3]);
    // The counts are those of all.
    let domains: Domains = other.report(Topic::Domains, &[]).unwrap();
    assert_eq!((domains.domains.len(), domains.hidden), (0, Some(2)));
    let channels: Channels = other.report(Topic::Channels, &[]).unwrap();
    assert_eq!((channels.pairs.len(), channels.hidden), (0, Some(1)));
    let endpoints: Endpoints = other.report(Topic::Endpoints, &[]).unwrap();
    assert_eq!((endpoints.endpoints.len(), endpoints.hidden), (0, Some(1)));
    let streams: StreamsReport = other.report(Topic::Streams, &[]).unwrap();
    assert_eq!((streams.streams.len(), streams.hidden, streams.programs), (0, Some(1), 2));
    let verbs: VerbsReport = other.report(Topic::Verbs, &[]).unwrap();
    assert_eq!((verbs.domains.len(), verbs.hidden), (0, Some(1)));
    let mx: MxReport = other.report(Topic::Mx, &[]).unwrap();
    assert_eq!((mx.boards[0].endpoints.len(), mx.boards[0].endpoints_hidden), (0, Some(1)));
    let overlay: OverlayReport = other.report(Topic::Overlay, &[]).unwrap();
    assert_eq!((overlay.networks.len(), overlay.hidden), (0, Some(1)));
    let status: StatusReport = other.report(Topic::Status, &[]).unwrap();
    assert_eq!((status.domains, status.endpoints, status.channels), (2, 1, 1));
    assert_eq!((status.guests.map(|guests| guests.len()), status.guests_hidden), (Some(0), Some(1)));
}

#[test]
fn user_sees_its_own_programs_and_root_sees_all() {
    let bed = Testbed::with(&config(""));
    let Some(victim) = victim(&bed) else { return };
    let mut own = bed.greeted_as(OTHER).unwrap();
    own.attach(Some("mine")).unwrap();
    let replies = everything(&victim, |topic, arguments| own.report_text(topic, arguments));
    let secrets: Vec<_> = victim.secrets.iter().filter(|secret| !secret.contains("cgroup")).cloned().collect();
    expect_nothing_of(&secrets, &replies);
    let domains: Domains = own.report(Topic::Domains, &[]).unwrap();
    let names: Vec<_> = domains.domains.iter().map(|row| row.name.as_str()).collect();
    assert_eq!((names, domains.hidden), (vec!["mine"], Some(2)));
    // Of a pair with a program of another user, the reason is shown, and a name that was in the question.
    let number = format!("d{}", victim.domain);
    let why: Why = own.report(Topic::Why, &["mine", &number]).unwrap();
    assert_eq!((why.b.name.as_str(), why.reason.unwrap().reason.as_str()), (number.as_str(), "talk-forbidden"));
    let why: Why = own.report(Topic::Why, &["secret-a", "mine"]).unwrap();
    assert_eq!((why.a.name.as_str(), why.b.name.as_str()), ("secret-a", "mine"));
    let found = own.request(Lookup { name: name(&number) }, &[]).unwrap().message;
    assert!(matches!(&found, ToClient::Found(found) if found.name.as_str() == number), "{found:?}");
    let mut root = bed.greeted();
    let replies = everything(&victim, |topic, arguments| root.report_text(topic, arguments));
    let text: String = replies.into_iter().filter_map(|(_, reply)| reply.ok()).collect();
    for secret in &secrets {
        assert!(text.contains(secret), "{secret} is not in {text}");
    }
    let report: QueuePairReport = root.report(Topic::Verbs, &[&victim.qpn.to_string()]).unwrap();
    assert_eq!(report.holder.domain.name, "secret-a");
}

#[test]
fn peer_of_an_own_channel_is_shown_by_number_and_name() {
    let bed = Testbed::with(&config("").replacen("[policy]\n", "[policy]\ntalk = \"all\"\n", 1));
    let Some(victim) = victim(&bed) else { return };
    let mut own = bed.greeted_as(OTHER).unwrap();
    let mine = own.attach(Some("mine")).unwrap();
    let mut peer = bed.greeted_as(VICTIM).unwrap();
    peer.attach(Some("secret-peer")).unwrap();
    channel(&mut peer, &mut own, mine.id());
    let channels: Channels = own.report(Topic::Channels, &[]).unwrap();
    assert_eq!((channels.pairs.len(), channels.hidden), (1, Some(1)));
    assert_eq!((channels.pairs[0].a.name.as_str(), channels.pairs[0].b.name.as_str()), ("mine", "secret-peer"));
    let domains: Domains = own.report(Topic::Domains, &[]).unwrap();
    assert_eq!((domains.domains.len(), domains.hidden), (1, Some(3)));
    drop(victim);
}

#[test]
fn limits_are_for_every_user_and_paths_for_none() {
    let bed = Testbed::with(&config("[limits]\ndomains_max = 77\n"));
    let Some(mut other) = bed.greeted_as(OTHER) else { return };
    let text = other.report_text(Topic::Config, &[]).unwrap();
    assert!(!text.contains(bed.folder().to_str().unwrap()) && !text.contains("test.toml"), "{text}");
    let config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let value = |key: &str| config["entries"].as_array().unwrap().iter().find(|row| row["key"] == key).cloned();
    assert_eq!(value("limits.domains_max").unwrap()["value"], 77);
    assert_eq!(value("sockets.enabled").unwrap()["value"], true);
    assert_eq!([value("policy.names"), value("daemon.socket"), value("kvm.guest")], [None, None, None]);
}

#[test]
fn guest_sees_nothing_of_its_host_and_of_another_guest() {
    // The guest's user is the user of the daemon, which sees everything on the host.
    let bed = Testbed::with(&config(&configured("web", 4, 4)));
    let Some(victim) = victim(&bed) else { return };
    let mut other_guest = Guest::start_as(&bed, "secretguest");
    other_guest.attach(1, "other-secret").unwrap();
    let mut guest = Guest::start(&bed);
    guest.attach(1, "mine").unwrap();
    let replies = everything(&victim, |topic, arguments| guest.report_text(1, topic, arguments));
    expect_nothing_of(&victim.secrets, &replies);
    let mut of_host = vec![bed.folder().display().to_string(), format!("\"pid\":{}", std::process::id())];
    let interfaces = std::fs::read_dir("/sys/class/net").unwrap().map(|entry| entry.unwrap().file_name());
    of_host.extend(interfaces.map(|name| format!("\"{}\"", name.to_str().unwrap())));
    expect_nothing_of(&of_host, &replies);
    let domains: Domains = serde_json::from_str(&guest.report_text(1, Topic::Domains, &[]).unwrap()).unwrap();
    let names: Vec<_> = domains.domains.iter().map(|row| row.name.as_str()).collect();
    assert_eq!((names, domains.hidden), (vec!["mine"], Some(3)));
    let status: StatusReport = serde_json::from_str(&guest.report_text(1, Topic::Status, &[]).unwrap()).unwrap();
    let guests: Vec<_> = status.guests.unwrap().into_iter().map(|row| (row.name, row.socket)).collect();
    assert_eq!((guests, status.guests_hidden), (vec![("web".to_owned(), String::new())], Some(1)));
}
