//! Overlay networks: what is read, and what is said about each mistake.

use insta::assert_snapshot;
use isthmus_config::overlay::{EdgeKind, Edit, EditError, NetworkPort, Networks, Place};
use isthmus_config::{ConfigFile, Inputs, Role, load};

fn inputs(file: &str) -> Inputs {
    let file = ConfigFile::Given { path: "isthmus.toml".into(), bytes: file.into() };
    Inputs { file, ..Inputs::bare(Role::System) }
}

/// Returns the report about a file.
fn refusal(file: &str) -> String {
    load(&inputs(file)).expect_err("it is wrong").to_string()
}

#[test]
fn reads_a_network_with_its_defaults() {
    let file = "[[overlay.network]]\nname = 'lan'\ninterfaces = [{ name = 'lan0' }, { name = 'eth0', namespace = 'web' }]\n\
                edges = [{ to = '192.0.2.2' }, { to = 'fd00::2', kind = 'vxlan' }, { to = '[fd00::3]:20003', kind = 'udp' }]\n";
    let overlay = load(&inputs(file)).unwrap().config.overlay;
    let [network] = overlay.network.as_slice() else { panic!("one network") };
    assert_eq!((network.name.name().as_str(), network.vni(), network.learning()), ("lan", 0, true));
    let labels: Vec<_> = network.interfaces.iter().map(|interface| interface.label()).collect();
    assert_eq!(labels, ["lan0", "eth0@web"]);
    let [here, web] = &network.interfaces[..] else { panic!("two interfaces") };
    assert_eq!((here.mac(), here.mtu(), here.addresses(), here.place()), (None, None, &[][..], Place::Host));
    assert_eq!((here.bridge(), here.source_macs()), (None, Some(&[][..])), "an interface has one station");
    assert_eq!((web.name(), web.place()), ("eth0", Place::Namespace("/run/netns/web".into())));
    let edges: Vec<_> = network.edges.iter().map(|edge| (edge.to.to_string(), edge.kind)).collect();
    let expected =
        [("192.0.2.2:9001", EdgeKind::Fast), ("[fd00::2]:4789", EdgeKind::Vxlan), ("[fd00::3]:20003", EdgeKind::Udp)];
    assert_eq!(edges, expected.map(|(to, kind)| (to.to_owned(), kind)));
}

#[test]
fn a_host_has_at_most_256_interfaces() {
    let network = |name: char, count: usize| {
        let interfaces =
            (0..count).map(|number| format!("{{ name = '{name}{number}' }}")).collect::<Vec<_>>().join(", ");
        format!("[[overlay.network]]\nname = '{name}'\ninterfaces = [{interfaces}]\n")
    };
    assert!(load(&inputs(&format!("{}{}", network('a', 200), network('b', 56)))).is_ok());
    let refused = refusal(&format!("{}{}", network('a', 200), network('b', 57)));
    assert!(refused.contains("has 257 interfaces in all networks together, but a host has at most 256"), "{refused}");
}

#[test]
fn reads_what_is_written() {
    let file = "[overlay]\nlisten = '0.0.0.0'\nhelper = '/tmp/helper.sock'\n[[overlay.network]]\nname = 'lan'\nvni = 16777215\nlearning = false\n\
                [[overlay.network.interfaces]]\nname = 'eth0'\nnamespace = '/proc/1/ns/net'\nmac = '02:00:00:00:00:01'\nmtu = 9000\n\
                addresses = ['10.0.0.1/24', 'fd00::1/64']\nbridge = 'br0'\n";
    let overlay = load(&inputs(file)).unwrap().config.overlay;
    assert_eq!(
        (overlay.listen.ip().to_string().as_str(), overlay.helper.path().to_str()),
        ("0.0.0.0", Some("/tmp/helper.sock"))
    );
    let [network] = overlay.network.as_slice() else { panic!("one network") };
    assert_eq!((network.vni(), network.learning()), (16_777_215, false));
    let [interface] = &network.interfaces[..] else { panic!("one interface") };
    assert_eq!((interface.mac(), interface.mtu()), (Some([2, 0, 0, 0, 0, 1]), Some(9000)));
    assert_eq!(interface.place(), Place::Namespace("/proc/1/ns/net".into()));
    let addresses: Vec<_> = interface.addresses().iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.1/24", "fd00::1/64"]);
    assert_eq!(interface.bridge(), Some("br0"));
}

#[test]
fn an_interface_sends_from_its_own_address_unless_it_carries_more_stations() {
    let sources = |fields: &str| {
        let file = format!("[[overlay.network]]\nname = 'lan'\ninterfaces = [{{ name = 'lan0'{fields} }}]\n");
        let overlay = load(&inputs(&file)).map_err(|problems| problems.to_string())?.config.overlay;
        let network = &overlay.network.as_slice()[0];
        let macs = network.interfaces[0].source_macs();
        Ok::<_, String>(macs.map(|macs| macs.iter().map(|mac| mac.octets()).collect::<Vec<_>>()))
    };
    let vrrp = [0, 0, 0x5e, 0, 1, 7];
    assert_eq!(sources(""), Ok(Some(vec![])));
    assert_eq!(sources(", bridge = 'br0'"), Ok(None));
    assert_eq!(sources(", source_macs = 'any'"), Ok(None));
    assert_eq!(sources(", source_macs = ['00:00:5e:00:01:07']"), Ok(Some(vec![vrrp])));
    assert_eq!(sources(", bridge = 'br0', source_macs = []"), Ok(Some(vec![])));
    for wrong in ["'all'", "['any']", "7"] {
        let refusal = sources(&format!(", source_macs = {wrong}")).unwrap_err();
        assert!(
            refusal.contains("source_macs") && refusal.contains("02:00:5e:00:00:01\"") | refusal.contains("MAC"),
            "{refusal}"
        );
    }
}

#[test]
fn routes_name_interfaces_and_edges_of_their_network() {
    let network = "[[overlay.network]]\nname = 'lan'\ninterfaces = [{ name = 'eth0', namespace = 'web', mac = '02:00:00:00:00:01' }]\n\
                   edges = [{ to = '192.0.2.2' }]\n";
    let file = format!(
        "{network}routes = ['any any edge 192.0.2.2 any', 'any 2:0:0:0:0:1 interface 02:00:00:00:00:01 edge 192.0.2.2:9001']\n"
    );
    let overlay = load(&inputs(&file)).unwrap().config.overlay;
    let network_of = |overlay: &isthmus_config::OverlayConfig| overlay.network.as_slice()[0].clone();
    let lan = network_of(&overlay);
    let ports: Vec<_> = lan.routes().iter().flat_map(|route| route.ports()).map(|name| lan.port_of(name)).collect();
    let (interface, edge) = (Some(NetworkPort::Interface(0)), Some(NetworkPort::Edge(0)));
    assert_eq!(ports, [edge, interface, edge]);
    assert_snapshot!(refusal(&format!("{network}routes = ['any any edge 192.0.2.3 any']\n")), @r#"
    isthmus.toml:5:10: overlay.network[0].routes name edge 192.0.2.3, which the network does not have
        5 | routes = ['any any edge 192.0.2.3 any']
          |          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          = name an interface of `interfaces` by its name or mac, or an edge of `edges` by its address
    "#);
    assert_snapshot!(refusal(&format!("{network}routes = ['any any edge 192.0.2.2']\n")), @r#"
    isthmus.toml:5:11: overlay.network[0].routes[0] is "any any edge 192.0.2.2", but must be a route, as in "any 02:00:00:00:00:01 edge 192.0.2.2 any"
        5 | routes = ['any any edge 192.0.2.2']
          |           ^^^^^^^^^^^^^^^^^^^^^^^^
          = a route has 5 words (SOURCE-MAC DESTINATION-MAC edge|interface ID any) or 6 (…, then edge|interface ID), not 4
    "#);
}

#[test]
fn rejects_wrong_values() {
    assert_snapshot!(refusal(
        "[[overlay.network]]\nvni = 16777216\n[[overlay.network.interfaces]]\nname = 'a-long-name-0000'\nmtu = 67\naddresses = ['10.0.0.1']\n\
         [[overlay.network.edges]]\nto = '224.0.0.1'\nkind = 'vxlna'\n[[overlay.network]]\nname = 'b'\nedge = 1\n"
    ), @r#"
    isthmus.toml:1:1: overlay.network[0] has no name
        1 | [[overlay.network]]
          | ^^^^^^^^^^^^^^^^^^^
          = name is 1 to 32 letters, digits, - and _
    isthmus.toml:2:7: overlay.network[0].vni is 16777216, but must be an integer from 0 to 16777215
        2 | vni = 16777216
          |       ^^^^^^^^
    isthmus.toml:4:8: overlay.network[0].interfaces[0].name is "a-long-name-0000", but must be 1 to 15 letters, digits, -, _ and .
        4 | name = 'a-long-name-0000'
          |        ^^^^^^^^^^^^^^^^^^
    isthmus.toml:5:7: overlay.network[0].interfaces[0].mtu is 67, but must be an integer from 68 to 65535
        5 | mtu = 67
          |       ^^
    isthmus.toml:6:14: overlay.network[0].interfaces[0].addresses[0] is "10.0.0.1", but must be an IP address with the length of its prefix, as in "10.0.0.1/24" or "fd00::1/64"
        6 | addresses = ['10.0.0.1']
          |              ^^^^^^^^^^
          = did you mean "10.0.0.1/24"?
    isthmus.toml:8:6: overlay.network[0].edges[0].to is "224.0.0.1", but must be the address of a host, perhaps with a port, as in "192.0.2.2" or "[fd00::2]:4789"
        8 | to = '224.0.0.1'
          |      ^^^^^^^^^^^
    isthmus.toml:9:8: overlay.network[0].edges[0].kind is "vxlna", but must be "fast", "vxlan" or "udp"
        9 | kind = 'vxlna'
          |        ^^^^^^^
          = did you mean "vxlan"?
    isthmus.toml:12:1: there is no key overlay.network[1].edge
       12 | edge = 1
          | ^^^^
          = did you mean "edges"?
    "#);
}

#[test]
fn rejects_two_uses_of_one_thing() {
    assert_snapshot!(refusal(
        "overlay.network = [{ name = 'a', interfaces = [{ name = 'x' }], edges = [{ to = '192.0.2.2', kind = 'udp' }] },\n\
         { name = 'a', interfaces = [{ name = 'x' }], edges = [{ to = '192.0.2.2', kind = 'udp' }] },\n\
         { name = 'c', edges = [{ to = '192.0.2.3:9000' }] }]\n"
    ), @r#"
    isthmus.toml:2:1: overlay.network repeats the name a
        2 | { name = 'a', interfaces = [{ name = 'x' }], edges = [{ to =…
          | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    isthmus.toml:2:1: overlay.network repeats the interface x of the host
        2 | { name = 'a', interfaces = [{ name = 'x' }], edges = [{ to =…
          | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    isthmus.toml:2:1: overlay.network repeats the UDP edge to 192.0.2.2:9000
        2 | { name = 'a', interfaces = [{ name = 'x' }], edges = [{ to =…
          | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    isthmus.toml:3:1: overlay.network[2] has an edge of kind "fast" at port 9000, which edges of kind "udp" use
        3 | { name = 'c', edges = [{ to = '192.0.2.3:9000' }] }]
          | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          = give one of them another port: to = "192.0.2.2:8472"
    "#);
}

/// The networks that edits begin with.
const RUNNING: &str = "[[overlay.network]]\nname = 'lan'\nvni = 7\ninterfaces = [{ name = 'eth0', namespace = 'web', addresses = ['10.0.0.1/24'] }]\n\
                       edges = [{ to = '192.0.2.2' }, { to = '192.0.2.2', kind = 'vxlan' }, { to = '192.0.2.3' }]\n\
                       routes = ['any any edge 192.0.2.3 any', 'any none interface eth0@web any']\n";

/// Applies edits, which are written as JSON.
fn edited(edits: &str) -> Result<Networks, EditError> {
    let edits: Vec<Edit> = serde_json::from_str(edits).unwrap_or_else(|error| panic!("{edits}: {error}"));
    load(&inputs(RUNNING)).expect("valid").config.overlay.network.edited(&edits)
}

#[test]
fn edits_of_every_kind_are_applied_in_their_order() {
    let networks = edited(
        r#"[
        { "add_network": { "name": "lab", "learning": false } },
        { "add_interface": { "network": "lab", "interface": { "name": "lan0", "mtu": 1400, "addresses": ["fd00::1/64"] } } },
        { "add_edge": { "network": "lab", "edge": { "to": "[fd00::2]:4444", "kind": "udp" } } },
        { "add_route": { "network": "lab", "route": "A N EDGE fd00::2 ANY" } },
        { "remove_edge": { "network": "lan", "edge": "192.0.2.3" } },
        { "remove_route": { "network": "lan", "route": "a a EDGE 192.0.2.3 any" } },
        { "add_route": { "network": "lan", "route": "any any edge 192.0.2.2:4789 any" } },
        { "remove_edge": { "network": "lan", "edge": "192.0.2.2:9001" } }
    ]"#,
    );
    assert_snapshot!("edited_networks", networks.unwrap().toml_text(|_| true));
    let edits = r#"[{ "remove_route": { "network": "lan", "route": "any none interface eth0@web any" } },
                    { "remove_interface": { "network": "lan", "interface": "eth0@web" } }]"#;
    let networks = edited(edits).unwrap();
    assert!(networks.as_slice()[0].interfaces.is_empty() && networks.as_slice()[0].routes().len() == 1);
    assert!(edited(r#"[{ "remove_network": "lan" }]"#).unwrap().as_slice().is_empty());
}

#[test]
fn the_text_of_edited_networks_is_a_configuration() {
    let networks = edited(r#"[{ "add_network": { "name": "lab", "interfaces": [{ "name": "lan0" }] } }]"#).unwrap();
    let read = load(&inputs(&networks.toml_text(|_| true))).unwrap().config.overlay.network;
    assert_eq!(read, networks);
    assert!(!networks.toml_text(|name| name == "lab").contains("\"lan\""));
}

#[test]
fn refused_edits_have_the_words_of_the_configuration() {
    let refused = [
        r#"[{ "remove_network": "lab" }]"#,
        r#"[{ "add_edge": { "network": "lab", "edge": { "to": "192.0.2.9" } } }]"#,
        r#"[{ "remove_interface": { "network": "lan", "interface": "eth0" } }]"#,
        r#"[{ "remove_edge": { "network": "lan", "edge": "192.0.2.4" } }]"#,
        r#"[{ "remove_edge": { "network": "lan", "edge": "192.0.2.2" } }]"#,
        r#"[{ "remove_route": { "network": "lan", "route": "any any edge 192.0.2.2 any" } }]"#,
        r#"[{ "remove_edge": { "network": "lan", "edge": "192.0.2.3" } }]"#,
        r#"[{ "add_route": { "network": "lan", "route": "any any edge 192.0.2.2" } }]"#,
        r#"[{ "add_edge": { "network": "lan", "edge": { "too": "192.0.2.9" } } }]"#,
        r#"[{ "add_interface": { "network": "lan", "interface": { "name": "eth0", "namespace": "web" } } }]"#,
        r#"[{ "add_interface": { "network": "lan", "interface": { "name": "eth1", "mtu": "1400" } } }]"#,
        r#"[{ "add_network": { "name": "lan" } }]"#,
        r#"[{ "add_network": { "name": "lab", "vni": 16777216, "edges": 3 } }, { "add_edge": { "network": "lab", "edge": {} } }]"#,
        r#"[{ "add_network": {} }]"#,
    ];
    let texts: Vec<_> = refused.iter().map(|edits| format!("{edits}\n    {}\n", edited(edits).unwrap_err())).collect();
    assert_snapshot!("refused_edits", texts.concat());
}
