//! Any sequence of frames and changes: the network decides as a naive one does, and its explanations agree.
#![allow(clippy::unwrap_used, reason = "tests")]

mod naive;

use isthmus_overlay::{
    Decision, EdgeId, Explanation, FrameHeader, InterfaceId, MacAddr, MacPattern, Millis, Network, NetworkOptions,
    Port, Route, RouteId, RouteOutcome, RouteSource, Verdict,
};
use naive::NaiveNetwork;
use proptest::prelude::*;

const BROADCAST: MacAddr = MacAddr::BROADCAST;
const MULTICAST: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
const ZERO: MacAddr = MacAddr([0; 6]);

#[derive(Clone, Debug)]
enum Step {
    AddPort(Port),
    RemovePort(Port),
    AddRoute(Route),
    /// Removes the route at this place of the table, counted around it.
    RemoveRoute(usize),
    Replace(Vec<Route>),
    Frame {
        after_ms: u64,
        from: Port,
        source: MacAddr,
        destination: MacAddr,
    },
}

const fn station(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

fn port() -> impl Strategy<Value = Port> {
    prop_oneof![
        (0..3_u16).prop_map(|id| Port::Interface(InterfaceId(id))),
        (0..3_u16).prop_map(|id| Port::Edge(EdgeId(id))),
    ]
}

fn mac() -> impl Strategy<Value = MacAddr> {
    prop_oneof![12 => (1..5_u8).prop_map(station), 2 => Just(BROADCAST), 1 => Just(MULTICAST), 1 => Just(ZERO)]
}

fn pattern() -> impl Strategy<Value = MacPattern> {
    prop_oneof![
        2 => Just(MacPattern::Any),
        1 => Just(MacPattern::None),
        2 => mac().prop_map(MacPattern::Not),
        4 => mac().prop_map(MacPattern::Exact),
    ]
}

fn route() -> impl Strategy<Value = Route> {
    let source = prop_oneof![
        3 => Just(RouteSource::Any),
        1 => Just(RouteSource::AnyInterface),
        1 => Just(RouteSource::AnyEdge),
        1 => port().prop_map(RouteSource::Port),
    ];
    (pattern(), pattern(), source, port()).prop_map(|(source, destination, from, to)| Route {
        source,
        destination,
        from,
        to,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let times = [0, 0, 0, 0, 1, 1, 20, 199, 200, 400, 799, 999, 1_000, 2_500, 3_000, 10_000];
    let frame = (prop::sample::select(times.to_vec()), port(), mac(), mac())
        .prop_map(|(after_ms, from, source, destination)| Step::Frame { after_ms, from, source, destination });
    prop_oneof![
        1 => port().prop_map(Step::AddPort),
        1 => port().prop_map(Step::RemovePort),
        3 => route().prop_map(Step::AddRoute),
        3 => any::<usize>().prop_map(Step::RemoveRoute),
        1 => prop::collection::vec(route(), 0..4).prop_map(Step::Replace),
        40 => frame,
    ]
}

struct Pair {
    network: Network,
    naive: NaiveNetwork,
    now: u64,
}

impl Pair {
    fn new(learning: bool, cache_entries: usize) -> Self {
        let (learned_max, learned_age) = (3, Millis(3_000));
        let options =
            NetworkOptions { learning, learned_max, learned_age, cache_entries, ..NetworkOptions::new([7, 11]) };
        let naive = NaiveNetwork {
            ports: Default::default(),
            routes: vec![],
            learned: vec![],
            learning,
            learned_max,
            learned_age,
            reports: vec![],
            evicted: 0,
        };
        let mut pair = Self { network: Network::new(options), naive, now: 0 };
        for id in 0..3 {
            pair.step(Step::AddPort(Port::Interface(InterfaceId(id))));
            pair.step(Step::AddPort(Port::Edge(EdgeId(id))));
        }
        pair
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::AddPort(port) => assert_eq!(self.network.add_port(port), self.naive.ports.insert(port)),
            Step::RemovePort(port) => {
                assert_eq!(self.network.remove_port(port), self.naive.ports.contains(&port));
                self.naive.remove_port(port);
            }
            Step::AddRoute(route) => self.naive.routes.push((self.network.add_route(route).unwrap(), route)),
            Step::RemoveRoute(place) if self.naive.routes.is_empty() => {
                let number = RouteId(u32::try_from(place % 100).unwrap() + 1_000_000);
                assert_eq!(self.network.remove_route(number), None);
            }
            Step::RemoveRoute(place) => {
                let (id, route) = self.naive.routes.remove(place % self.naive.routes.len());
                assert_eq!(self.network.remove_route(id), Some(route));
                assert_eq!(self.network.remove_route(id), None);
            }
            Step::Replace(routes) => {
                let before: Vec<_> = self.naive.routes.iter().map(|(_, route)| *route).collect();
                let ids = self.network.change_routes(&before, &routes).unwrap();
                self.naive.routes = ids.into_iter().zip(routes).collect();
            }
            Step::Frame { after_ms, from, source, destination } => {
                self.now += after_ms;
                self.frame(from, source, destination);
            }
        }
        assert!(self.network.routes().eq(self.naive.routes.iter().copied()));
        assert!(self.network.ports().iter().eq(&self.naive.ports));
    }

    fn frame(&mut self, from: Port, source: MacAddr, destination: MacAddr) {
        let now = Millis(self.now);
        let header = FrameHeader { destination, source, vlan: None, ethertype: 0x0800, header_bytes: 14 };
        let explanation = self.network.explain(now, from, &header);
        let expected = self.naive.forward(self.now, from, source, destination);
        match (self.network.forward(now, from, &header), &expected) {
            (Decision::To(ports), Ok(expected)) => assert_eq!(ports, expected),
            (Decision::Drop(reason), Err(expected)) => assert_eq!(reason, *expected),
            (decision, expected) => panic!("{decision:?} in place of {expected:?}"),
        }
        match expected {
            Ok(ports) => assert_eq!(explanation.verdict.ports(), ports),
            Err(reason) => assert_eq!(explanation.verdict, Verdict::Dropped(reason)),
        }
        check_routes(&explanation, &self.naive.routes);
        assert!(std::iter::from_fn(|| self.network.take_report()).eq(self.naive.reports.drain(..)));
        assert_eq!(self.network.counters().addresses.evicted, self.naive.evicted);
        let age = self.naive.learned_age.0;
        let known = self.naive.learned.iter().filter(|seen| self.now - seen.at < age);
        // A claim that is due stands in the naive table until a frame asks for the address.
        assert_eq!(self.network.learned(now).count(), self.network.learned(Millis(0)).count());
        for seen in known {
            let mut learned = self.network.learned(now);
            assert!(learned.any(
                |(station, port, _)| station.mac == seen.mac && (port == seen.port || self.now - seen.at >= 1_000)
            ));
        }
    }
}

/// The parts of the routes agree with the decision.
fn check_routes(explanation: &Explanation, routes: &[(RouteId, Route)]) {
    assert!(explanation.routes.iter().map(|(id, route, _)| (*id, *route)).eq(routes.iter().copied()));
    let mut winners = vec![];
    for (_, route, outcome) in &explanation.routes {
        match outcome {
            RouteOutcome::Wins(_) => winners.push(route.to),
            RouteOutcome::Repeats(earlier) => {
                let other = explanation.routes.iter().find(|(id, ..)| id == earlier).unwrap();
                assert_eq!(other.1.to, route.to);
                assert!(matches!(other.2, RouteOutcome::Wins(_)));
            }
            RouteOutcome::LowerRank { rank, best } => assert!(rank < best),
            RouteOutcome::SplitHorizon => assert!(!explanation.from.may_forward(route.to)),
            RouteOutcome::PortGone => {}
            RouteOutcome::Mismatch(mismatch) => {
                assert_eq!(route.check(explanation.from, explanation.source, explanation.destination), Err(*mismatch));
            }
        }
    }
    winners.sort_unstable();
    match &explanation.verdict {
        Verdict::Routed { ports, .. } => assert_eq!(*ports, winners),
        Verdict::Learned { .. } | Verdict::Flooded { .. } => {
            let all_differ =
                explanation.routes.iter().all(|(.., outcome)| matches!(outcome, RouteOutcome::Mismatch(_)));
            assert!(all_differ);
        }
        Verdict::Dropped(_) => {}
    }
}

fn config() -> ProptestConfig {
    let cases = if std::env::var_os("ISTHMUS_TEST_LONG").is_some() { 100_000 } else { 2_000 };
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn decides_as_the_naive_network(
        learning in prop::bool::weighted(0.8),
        cache_entries in prop::sample::select(vec![4_usize, 16, 256]),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut pair = Pair::new(learning, cache_entries);
        for step in steps {
            pair.step(step);
        }
    }
}
