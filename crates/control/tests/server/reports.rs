//! Reports of the daemon about itself and its domains.

use std::os::unix::fs::FileExt;

use isthmus_layout::channel::{
    ChannelGeometry, DIRECT_ACCESSES, Direction, REFUSED_ACCESSES, SERVED_ACCESSES, SLOW_PATH_REASONS, SlowPathReasons,
};
use isthmus_layout::control::*;
use isthmus_layout::reason::Reason;
use isthmus_report::{Channels, Doctor, Domains, Endpoints, MetricsText, SCHEMA, StatusReport, Why};

use crate::testbed::{Client, Testbed, channel, name};

fn why(client: &mut Client, a: &str, b: &str) -> (String, Option<String>, Why) {
    let why: Why = client.report(Topic::Why, &[a, b]).unwrap();
    (why.path.clone(), why.reason.as_ref().map(|reason| reason.reason.clone()), why)
}

#[test]
fn status_and_lists_name_what_there_is() {
    let bed = Testbed::new();
    let ((mut a, ours), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    b.request(OpenEndpoint { index: None, label: Some(name("mpi")) }, &[]).unwrap();
    channel(&mut a, &mut b, theirs.id());
    let status: StatusReport = a.report(Topic::Status, &[]).unwrap();
    assert_eq!((status.schema, status.domains, status.endpoints, status.channels), (SCHEMA, 2, 1, 1));
    assert_eq!((status.socket.as_str(), status.workers.len()), (bed.socket().to_str().unwrap(), 1));
    let domains: Domains = a.report(Topic::Domains, &[]).unwrap();
    let names: Vec<_> = domains.domains.iter().map(|row| (row.id, row.name.as_str(), row.channels)).collect();
    assert_eq!(names, [(ours.id().number(), "a", 1), (theirs.id().number(), "b", 1)]);
    assert_eq!(domains.domains[0].pid, Some(std::process::id() as i32));
    let endpoints: Endpoints = a.report(Topic::Endpoints, &[]).unwrap();
    assert_eq!((endpoints.endpoints[0].index, endpoints.endpoints[0].label.as_deref()), (0, Some("mpi")));
    let channels: Channels = a.report(Topic::Channels, &[]).unwrap();
    let row = channels.pairs[0].channel.as_ref().unwrap();
    assert_eq!((channels.pairs[0].path.as_str(), row.state.as_str(), row.memory_bytes), ("channel", "open", Some(0)));
    assert_eq!(row.directions.as_ref().unwrap()[0].messages, 0);
}

#[test]
fn why_names_path_reason_and_remedy_from_both_ends() {
    let bed = Testbed::with("[policy]\nrules = [{ from = \"x\", allow = false }, { from = \"o\", channel = false }]\n");
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let (_x, _o) = (bed.attached("x"), bed.attached("o"));
    let (path, reason, _) = why(&mut a, "a", "b");
    assert_eq!((path.as_str(), reason.as_deref()), ("daemon", Some("channel-not-requested")));
    a.send(RequestChannel { peer: theirs.id(), attempt: 1 }, &[]);
    let (offer, _) = b.offered();
    assert_eq!(why(&mut a, "a", "b").1.as_deref(), Some("channel-pending"));
    b.send(RefuseChannel { channel: offer.channel, reason: Reason::OutOfFds }, &[]);
    let (path, reason, told) = why(&mut b, "b", "a");
    assert_eq!((path.as_str(), reason.as_deref()), ("daemon", Some("out-of-fds")));
    assert!(told.reason.unwrap().remedy.contains("ulimit -n"));
    channel(&mut a, &mut b, theirs.id());
    let (path, reason, told) = why(&mut a, "a", "d2");
    assert_eq!((path.as_str(), reason, told.large), ("channel", None, None));
    assert_eq!((told.from_a.channels, told.from_b.channels), (1, 1));
    let (path, reason, told) = why(&mut a, "o", "a");
    assert_eq!((path.as_str(), reason.as_deref()), ("daemon", Some("channels-forbidden")));
    assert_eq!((told.from_a.may_channel, told.from_a.rule, told.from_b.may_channel), (false, Some(1), true));
    let (path, reason, told) = why(&mut a, "x", "a");
    assert_eq!((path.as_str(), reason.as_deref()), ("none", Some("talk-forbidden")));
    assert_eq!((told.from_a.may_talk, told.from_a.rule, told.from_b.may_talk), (false, Some(0), true));
    assert_eq!(why(&mut a, "a", "a").1.as_deref(), Some("same-domain"));
    assert_eq!(a.report::<Why>(Topic::Why, &["a", "unknown"]).err(), Some(Reason::NoSuchDomain));
    assert_eq!(a.report::<Why>(Topic::Why, &["a"]).err(), Some(Reason::RequestInvalid));
}

#[test]
fn reports_need_no_domain_and_may_be_long() {
    let bed = Testbed::new();
    let held: Vec<_> =
        (0..100).map(|number| bed.attached(&format!("a-domain-with-quite-a-long-name-{number}"))).collect();
    let domains: Domains = bed.greeted().report(Topic::Domains, &[]).unwrap();
    assert_eq!(domains.domains.len(), held.len());
    assert!(serde_json::to_vec(&domains).unwrap().len() > 2 * QUERY_REPLY_BYTES_MAX);
}

#[test]
fn counters_configuration_and_surroundings_are_shown() {
    let bed = Testbed::with("[limits]\nslab_kib = 64\n");
    let (_a, _) = bed.attached("a");
    let mut client = bed.greeted();
    let metrics: MetricsText = client.report(Topic::Metrics, &[]).unwrap();
    assert!(metrics.text.contains("isthmus_domains 1\n"), "{}", metrics.text);
    assert!(metrics.text.ends_with("# EOF\n"));
    let config: serde_json::Value = client.report(Topic::Config, &[]).unwrap();
    let entries = config["entries"].as_array().unwrap();
    let slab = entries.iter().find(|entry| entry["key"] == "limits.slab_kib").unwrap();
    assert_eq!(slab["value"], 64);
    assert!(slab["origin"].to_string().contains("test.toml"), "{slab}");
    let doctor: Doctor = client.report(Topic::Doctor, &[]).unwrap();
    assert!(doctor.fds > 0 && doctor.fds <= doctor.fds_max && doctor.resumable);
}

#[test]
fn accesses_to_memory_are_shown_as_the_ends_of_a_channel_count_them() {
    let bed = Testbed::new();
    let ((mut a, _), (mut b, theirs)) = (bed.attached("a"), bed.attached("b"));
    let [(end, fds), _] = channel(&mut a, &mut b, theirs.id());
    let geometry = ChannelGeometry { slab: end.slab };
    let memory = std::fs::File::from(fds.into_iter().next().unwrap());
    let write = |direction, word: u32, value: u64| {
        let at = 4 * u64::from(geometry.direction(direction).producer + word);
        memory.write_all_at(&value.to_le_bytes(), at).unwrap();
    };
    let assisted = SlowPathReasons { fragmented: None, assisted: Some(Reason::MemoryThreads) };
    write(Direction::Zero, DIRECT_ACCESSES, 1 << 40);
    write(Direction::Zero, REFUSED_ACCESSES, 5);
    memory
        .write_all_at(
            &assisted.emit().to_le_bytes(),
            4 * u64::from(geometry.direction(Direction::One).producer + SLOW_PATH_REASONS),
        )
        .unwrap();
    write(Direction::One, SERVED_ACCESSES, 7);
    let why: Why = a.report(Topic::Why, &["a", "b"]).unwrap();
    let counts = why.channel.unwrap().directions.unwrap().map(|row| [row.direct, row.served, row.refused]);
    assert_eq!(counts, [[Some(1 << 40), Some(0), Some(5)], [Some(0), Some(7), Some(0)]]);
    let text = a.report::<MetricsText>(Topic::Metrics, &[]).unwrap().text;
    for line in [
        "isthmus_domain_direct_accesses{domain=\"1\",name=\"a\"} 1099511627776\n",
        "isthmus_domain_refused_accesses{domain=\"1\",name=\"a\"} 5\n",
        "isthmus_domain_served_accesses{domain=\"2\",name=\"b\"} 7\n",
        "isthmus_channel_assisted{reason=\"memory-threads\",kind=\"fallback\"} 1\n",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn prometheus_reads_the_counters_from_a_socket() {
    use std::io::{Read as _, Write as _};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.sock");
    let mut bed = Testbed::with(&format!("[metrics]\nlisten = \"{}\"\n", path.display()));
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("isthmus_domains 0\n"), "{answer}");
    bed.stop();
    assert!(!path.exists());
}

#[test]
fn scrape_ends_while_more_connections_than_the_limit_are_silent() {
    use std::io::{ErrorKind, Read as _};
    use std::os::unix::net::UnixStream;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.sock");
    let _bed = Testbed::with(&format!("[metrics]\nlisten = \"{}\"\n", path.display()));
    let mut silent: Vec<_> = (0..24).map(|_| UnixStream::connect(&path).unwrap()).collect();
    assert!(request(&path, "GET /metrics").contains("isthmus_domains 0\n"));
    let last = silent.last_mut().unwrap();
    last.set_nonblocking(true).unwrap();
    assert_eq!(last.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock, "a silent connection is still open");
    let first = &mut silent[0];
    assert_eq!(first.read(&mut [0]).unwrap(), 0, "the oldest silent connection was closed for the others");
}

#[test]
fn metrics_have_one_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.sock");
    let _bed = Testbed::with(&format!("[metrics]\nlisten = \"{}\"\n", path.display()));
    assert!(request(&path, "GET /metrics?x=1").starts_with("HTTP/1.1 200 OK\r\n"));
    for other in ["GET /", "GET /metricsx", "POST /metrics", "x"] {
        let answer = request(&path, other);
        assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{other}: {answer}");
        assert!(answer.ends_with("The metrics are at GET /metrics.\n"), "{answer}");
    }
}

/// Returns the response to a request for the metrics.
fn request(path: &std::path::Path, request: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
    stream.write_all(format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
