//! `isthmus overlay explain`.

use isthmus_overlay_tests::{Daemon, Lan, Path, Stage};
use serde_json::Value;

fn explain(daemon: &Daemon, source: &str, destination: &str) -> Value {
    let words = ["overlay", "explain", "lan", "eth0@container0", source, destination];
    let text = daemon.isthmus(&words);
    let explanation: Value = serde_json::from_str(&daemon.isthmus(&[&words[..], &["--json"]].concat())).unwrap();
    let rule = explanation["rule"].as_str().unwrap().split(" there ").next().unwrap(); // The age of a learned address follows.
    assert!(text.contains(rule), "{text}\n{explanation:#}");
    explanation
}

fn targets(explanation: &Value) -> Vec<&str> {
    explanation["copies"].as_array().unwrap().iter().map(|copy| copy["to"].as_str().unwrap()).collect()
}

#[test]
fn learned_and_flooded_frames_are_explained() {
    let Some(lan) = Lan::new(Path::Fast) else { return };
    lan.a.ping("10.9.0.2");
    let [a, b] =
        [0, 1].map(|host: usize| lan.daemons[host].network()["interfaces"][0]["mac"].as_str().unwrap().to_owned());
    lan.daemons[0].wait(|network| network["learned"].as_array().unwrap().iter().any(|learned| learned["mac"] == *b));
    let edge = format!("{}:9001", lan.stage.address(1, 0));
    let learned = explain(&lan.daemons[0], &a, &b);
    assert!(learned["rule"].as_str().unwrap().contains("was seen there"), "{learned:#}");
    assert_eq!(targets(&learned), [&edge], "{learned:#}");
    for destination in ["ff:ff:ff:ff:ff:ff", "02:00:00:00:00:99"] {
        let flooded = explain(&lan.daemons[0], &a, destination);
        assert!(flooded["rule"].as_str().unwrap().contains("every other port"), "{flooded:#}");
        assert_eq!(targets(&flooded), [&edge], "{flooded:#}");
    }
}

#[test]
fn routed_frames_are_explained_with_all_routes() {
    let Some(mut stage) = Stage::new(2, 1500) else { return };
    let container = stage.container(0, "container0");
    let edge = stage.address(1, 0);
    let routes = [format!("any 02:00:00:00:00:02 edge {edge} any"), "any any interface eth0@container0 any".to_owned()];
    let networks = format!(
        "[[overlay.network]]\nname = \"lan\"\ninterfaces = [{}]\nedges = [{{ to = \"{edge}\" }}]\nroutes = {routes:?}\n",
        container.interface(", source_macs = [\"02:00:00:00:00:01\"]")
    );
    let daemon = stage.start(0, &networks);
    daemon.wait_for_interfaces();
    let routed = explain(&daemon, "02:00:00:00:00:01", "02:00:00:00:00:02");
    assert!(routed["rule"].as_str().unwrap().starts_with("the matching routes of rank"), "{routed:#}");
    assert_eq!(targets(&routed), [format!("{edge}:9001")], "{routed:#}");
    let wins: Vec<_> = routed["routes"].as_array().unwrap().iter().map(|route| route["wins"] == true).collect();
    assert_eq!(wins, [true, false], "{routed:#}");
}
