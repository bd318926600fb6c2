//! Changes by commands: as a whole or not at all, until the configuration is read again.

use super::*;
use isthmus_config::overlay::Edit;
use isthmus_layout::reason::Reason;
use isthmus_overlay::{FrameCount, PairCount};
use isthmus_report::overlay::{OverlayMonitor, OverlayTable};

fn edits(text: &str) -> Vec<Edit> {
    serde_json::from_str(text).unwrap()
}

impl Fixture {
    fn table(&self) -> OverlayTable {
        let report = self.report_of(&[Name::new("table").unwrap()]).unwrap()().unwrap();
        serde_json::from_slice(&report).unwrap()
    }

    /// The names of the commands to the worker since the last call.
    fn commands(&self) -> Vec<String> {
        let commands = std::mem::take(&mut *self.kept.0.lock().unwrap());
        let name = |command: &OverlayCommand| format!("{command:?}").split(['(', ' ']).next().unwrap().to_owned();
        commands.iter().map(name).collect()
    }
}

#[test]
fn edits_change_the_worker_and_the_report() {
    let (mut fixture, ()) = Fixture::new(|_| ());
    let more = r#"[{ "add_edge": { "network": "lan", "edge": { "to": "127.0.0.3", "kind": "udp" } } },
                   { "add_route": { "network": "lan", "route": "any any edge 127.0.0.3 any" } },
                   { "add_network": { "name": "lab" } }]"#;
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let more = more.replace("\"127.0.0.3\"", &format!("\"127.0.0.3:{free}\""));
    let changed = fixture.with(|overlay, core| overlay.edit(core, &edits(&more))).unwrap();
    assert!(changed.toml.contains("name = \"lab\"") && changed.toml.contains("127.0.0.3"), "{}", changed.toml);
    assert_eq!(fixture.commands(), ["AddSocket", "AddEdge", "ChangeRoutes", "AddNetwork"]);
    let report = fixture.report();
    assert_eq!((report.networks.len(), report.networks[0].edges.len(), report.networks[0].routes.len()), (2, 2, 2));
    let table = fixture.table();
    assert_eq!((table.changes, table.toml), (1, changed.toml), "both networks have changed");

    let less = r#"[{ "remove_route": { "network": "lan", "route": "any any edge 127.0.0.3 any" } },
                   { "remove_edge": { "network": "lan", "edge": "127.0.0.3" } }, { "remove_network": "lab" }]"#;
    fixture.with(|overlay, core| overlay.edit(core, &edits(less))).unwrap();
    assert_eq!(fixture.commands(), ["RemoveEdge", "RemoveNetwork", "ChangeRoutes"]);
    assert_eq!((fixture.report().networks.len(), fixture.report().networks[0].edges.len()), (1, 1));
}

#[test]
fn a_wrong_edit_undoes_those_before_it() {
    let (mut fixture, ()) = Fixture::new(|_| ());
    let before = fixture.table();
    let wrong = [
        (r#"{ "remove_edge": { "network": "lan", "edge": "192.0.2.7" } }"#, "lan has no edge 192.0.2.7"),
        (r#"{ "add_interface": { "network": "lan", "interface": { "name": "lan0" } } }"#, "repeats the interface lan0"),
    ];
    for (wrong, text) in wrong {
        let edits = edits(&format!(r#"[{{ "add_network": {{ "name": "lab" }} }}, {wrong}]"#));
        let refusal = fixture.with(|overlay, core| overlay.edit(core, &edits)).unwrap_err();
        assert_eq!(refusal.reason, Reason::OverlayChangeInvalid);
        assert!(refusal.detail.contains(text), "{}", refusal.detail);
    }
    // The address of the second edge has a port that another socket has.
    let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = format!("127.0.0.3:{}", other.local_addr().unwrap().port());
    let taken = format!(
        r#"[{{ "add_network": {{ "name": "lab" }} }}, {{ "add_edge": {{ "network": "lab", "edge": {{ "to": "{to}" }} }} }}]"#
    );
    let refusal = fixture.with(|overlay, core| overlay.edit(core, &edits(&taken))).unwrap_err();
    assert_eq!(refusal.reason, Reason::OverlayChangeFailed, "{}", refusal.detail);
    let after = fixture.table();
    assert_eq!((after.toml, after.changes), (before.toml, 0));
    assert_eq!(fixture.commands(), [""; 0]);
}

#[test]
fn the_configuration_replaces_changes() {
    let (mut fixture, ()) = Fixture::new(|_| ());
    let networks = fixture.broker.capabilities.overlay.running();
    let before = fixture.table().toml;
    fixture.with(|overlay, core| overlay.edit(core, &edits(r#"[{ "remove_network": "lan" }]"#))).unwrap();
    let table = fixture.table();
    assert_eq!((table.toml.as_str(), table.changes), ("", 1));
    fixture.with(|overlay, core| overlay.replace(core, networks.as_slice())).unwrap();
    let table = fixture.table();
    assert_eq!((table.toml, table.changes), (before, 0));
}

#[test]
fn pairs_are_in_report_and_metrics() {
    let (fixture, ()) = Fixture::new(|_| ());
    let pair = |number: u8, bytes: u64| PairCount {
        source: mac_of(number),
        destination: MacAddr::BROADCAST,
        count: FrameCount { frames: 2, bytes },
    };
    let pairs = (1..=40).map(|number| pair(number, 100 + u64::from(number))).collect();
    let others = FrameCount { frames: 3, bytes: 300 };
    *fixture.first_network().view.lock().unwrap() = OverlayView { pairs, others, ..OverlayView::default() };
    let report = fixture.report_of(&[Name::new("monitor").unwrap()]).unwrap()().unwrap();
    let report: OverlayMonitor = serde_json::from_slice(&report).unwrap();
    let [network] = &report.networks[..] else { panic!("{report:?}") };
    assert_eq!((network.network.as_str(), network.pairs.len(), network.other_frames), ("lan", 40, 3));
    let first = &network.pairs[0];
    assert_eq!((first.source.as_str(), first.bytes, first.frames), ("02:00:00:00:00:28", 140, 2));
    let text = crate::metrics::text(&fixture.broker, &crate::viewer::Viewer::All);
    let labels =
        |number: u8| format!("{{network=\"lan\",source=\"{}\",destination=\"ff:ff:ff:ff:ff:ff\"}}", mac_of(number));
    let bytes = |number: u8| {
        let line = format!("isthmus_overlay_pair_bytes_total{} {}", labels(number), 100 + u64::from(number));
        text.lines().any(|other| other == line)
    };
    assert_eq!([40, 9, 8, 1].map(bytes), [true, true, false, false], "the 32 pairs with the most bytes");
    assert!(text.contains(&format!("isthmus_overlay_pair_frames_total{} 2", labels(40))), "{text}");
}
