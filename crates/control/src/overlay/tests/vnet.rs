//! VNET's language on a network of the broker.

use isthmus_config::overlay::Edit;
use isthmus_layout::Refusal;
use isthmus_layout::reason::Reason;
use isthmus_report::overlay::OverlayRan;

use super::*;

/// A broker with a network, and a port that is free for edges of bare frames.
fn fixture() -> (Fixture, u16) {
    let (fixture, _) = Fixture::new(|folder| start_helper(&folder.join("helper.sock")));
    (fixture, std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port())
}

fn run(fixture: &mut Fixture, text: &str) -> Result<OverlayRan, Refusal> {
    fixture.with(|overlay, core| overlay.run(core, "lan", text))
}

/// The links by the lines with their addresses.
fn links(fixture: &mut Fixture) -> Vec<String> {
    let output = run(fixture, "links\nLIST").unwrap().output;
    output.lines().filter(|line| line.contains('.')).map(|line| line.replace('\t', " ")).collect()
}

#[test]
fn a_text_changes_the_network() {
    let (mut fixture, port) = fixture();
    let text = format!("ADD 127.0.0.3 {port}\nADD any any edge 127.0.0.3 interface 2:0:0:0:0:1\nroutes\nLIST");
    let ran = run(&mut fixture, &text).unwrap();
    let expected = "2:\nSrc: any\nDst: any\nDst-Type: EDGE 127.0.0.3\nSrc-Type: INTERFACE 1\n\n\
                    1:\nSrc: any\nDst: 2:0:0:0:0:9\nDst-Type: EDGE 127.0.0.2\nSrc-Type: ANY\n\n";
    assert_eq!((ran.output.as_str(), ran.changes), (expected, 2));
    assert!(ran.toml.contains(&format!("127.0.0.3:{port}")), "{}", ran.toml);
    let network = &fixture.report().networks[0];
    let edge = &network.edges[1];
    assert_eq!((edge.to.clone(), edge.kind.as_str()), (format!("127.0.0.3:{port}"), "udp"));
    assert_eq!(network.routes[1], "any any edge 127.0.0.3 interface 2:0:0:0:0:1");

    let ran = run(&mut fixture, "routes\nDEL 1\nDEL 2\nlinks\nDEL 1\nDEL 2").unwrap();
    assert_eq!((ran.output.as_str(), ran.changes), ("", 4));
    let network = &fixture.report().networks[0];
    assert_eq!((network.edges.len(), network.routes.len()), (0, 0));
}

#[test]
fn a_refused_text_changes_nothing() {
    let (mut fixture, port) = fixture();
    let (before, commands) = (fixture.report(), fixture.kept.0.lock().unwrap().len());
    let vxlan: std::net::SocketAddr = before.networks[0].edges[0].to.parse().unwrap();
    let cases = [
        (format!("ADD 127.0.0.3 {port}\nADD 127.0.0.4 {port} tcp"), "line 2: links use UDP"),
        (format!("ADD 127.0.0.3 {port}\nADD 127.0.0.4 {}", vxlan.port()), "edges of kind \"vxlan\" use"),
        ("links\nDEL 1".to_owned(), "line 2: the route 1 names this link"),
    ];
    for (text, expected) in cases {
        let refusal = run(&mut fixture, &text).unwrap_err();
        assert_eq!(refusal.reason, Reason::OverlayChangeInvalid, "{text}");
        assert!(refusal.to_string().contains(expected), "{refusal}");
    }
    let refusal = fixture.with(|overlay, core| overlay.run(core, "lab", "LIST")).unwrap_err();
    assert!(refusal.to_string().contains("there is no overlay network lab"), "{refusal}");
    assert_eq!(fixture.report(), before);
    assert_eq!(fixture.kept.0.lock().unwrap().len(), commands);
}

#[test]
fn indexes_stay_while_the_network_changes_by_other_means() {
    let (mut fixture, port) = fixture();
    run(&mut fixture, &format!("ADD 127.0.0.3 {port}\nlinks\nDEL 2\nADD 127.0.0.4 {port}\nADD 127.0.0.5 {port}"))
        .unwrap();
    let vxlan = fixture.report().networks[0].edges[0].to.replace(':', " ");
    let expected = [format!("4 127.0.0.5 {port}"), format!("3 127.0.0.4 {port}"), format!("1 {vxlan}")];
    assert_eq!(links(&mut fixture), expected);

    let remove = Edit::RemoveEdge { network: "lan".to_owned(), edge: format!("127.0.0.4:{port}") };
    fixture.with(|overlay, core| overlay.edit(core, &[remove])).unwrap();
    run(&mut fixture, &format!("ADD 127.0.0.6 {port}")).unwrap();
    let expected = [format!("5 127.0.0.6 {port}"), format!("4 127.0.0.5 {port}"), format!("1 {vxlan}")];
    assert_eq!(links(&mut fixture), expected);
}
