//! Networks that commands change while daemons run.

use isthmus_overlay_tests::{Container, Daemon, Stage};
use serde_json::Value;

/// Returns whether an address replies.
fn replies(container: &Container, address: &str) -> bool {
    container.try_run(&format!("ping -n -q -c 2 -i 0.2 -W 1 {address}")).0
}

/// Returns the output of `isthmus overlay …` as JSON.
fn overlay(daemon: &Daemon, line: &str) -> Value {
    let line = format!("overlay {line} --json");
    let words: Vec<_> = line.split(' ').collect();
    serde_json::from_str(&daemon.isthmus(&words)).unwrap()
}

/// The MAC address of the first interface of a network.
fn mac(daemon: &Daemon, network: &str) -> String {
    overlay(daemon, &format!("interface list {network}"))["interfaces"][0]["mac"].as_str().unwrap().to_owned()
}

/// The frames that a daemon has forwarded in a network from one address to another.
fn frames(daemon: &Daemon, network: &str, source: &str, destination: &str) -> u64 {
    let monitored = overlay(daemon, &format!("monitor {network}"));
    let pairs = monitored["networks"][0]["pairs"].as_array().unwrap();
    let is_wanted = |pair: &&Value| pair["source"] == source && pair["destination"] == destination;
    pairs.iter().find(is_wanted).map_or(0, |pair| pair["frames"].as_u64().unwrap())
}

#[test]
fn commands_make_and_cut_a_network() {
    let Some(mut stage) = Stage::new(2, 1500) else { return };
    let [a, b] = [0, 1].map(|host| stage.container(host, &format!("container{host}")));
    let [c, d] = [0, 1].map(|host| stage.container(host, &format!("other{host}")));
    // The daemons start the helper for the first interface, and have no edge.
    let daemons = [(0, &a), (1, &b)].map(|(host, container)| {
        let addresses = format!(", addresses = [\"10.9.0.{}/24\"]", host + 1);
        let interface = container.interface(&addresses);
        stage.start(host, &format!("[[overlay.network]]\nname = \"lan\"\nvni = 42\ninterfaces = [{interface}]\n"))
    });
    daemons.iter().for_each(Daemon::wait_for_interfaces);
    let hosts = [stage.address(1, 0), stage.address(0, 1)];
    assert!(!replies(&a, "10.9.0.2"));
    for (daemon, other) in daemons.iter().zip(hosts) {
        overlay(daemon, &format!("edge add lan {other}"));
    }
    a.ping("10.9.0.2");
    let [first, second] = daemons.each_ref().map(|daemon| mac(daemon, "lan"));
    for daemon in &daemons {
        for (source, destination) in [(&first, &second), (&second, &first)] {
            assert!(frames(daemon, "lan", source, destination) >= 3, "{source} to {destination}");
        }
    }

    // A second network over the same wire, with the same addresses.
    for ((number, daemon), (container, other)) in daemons.iter().enumerate().zip([(&c, hosts[0]), (&d, hosts[1])]) {
        overlay(daemon, "network add lab vni=43");
        let file = container.file().display();
        overlay(daemon, &format!("interface add lab eth0 namespace={file} addresses=[10.9.0.{}/24]", number + 1));
        overlay(daemon, &format!("edge add lab {other}"));
        daemon.wait(|_| overlay(daemon, "interface list lab")["interfaces"][0]["exists"] == true);
    }
    c.ping("10.9.0.2");
    assert_eq!(frames(&daemons[0], "lab", &first, &second), 0, "the networks are isolated");
    assert!(frames(&daemons[0], "lab", &mac(&daemons[0], "lab"), &mac(&daemons[1], "lab")) >= 3);

    // One is cut, and the other is not touched.
    let shown = overlay(&daemons[0], &format!("edge remove lan {}", hosts[0]));
    assert!(!shown["toml"].as_str().unwrap().contains("edges"), "{shown}");
    assert!(!replies(&a, "10.9.0.2"));
    c.ping("10.9.0.2");
    let route = "any any edge 192.0.2.77 any";
    let words: Vec<_> = ["overlay", "route", "add", "lan"].into_iter().chain(route.split(' ')).collect();
    let (is_success, text) = daemons[0].try_isthmus(&words);
    assert!(!is_success && text.contains("edge 192.0.2.77, which the network does not have"), "{text}");
    overlay(&daemons[0], "network remove lab");
    assert!(!replies(&d, "10.9.0.1"));
    let table = overlay(&daemons[0], "show");
    assert_eq!(table["changes"], 6, "{table}");
}
