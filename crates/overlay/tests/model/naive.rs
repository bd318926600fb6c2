//! A network as the documents describe it: every route is compared with every frame, and nothing is cached or indexed.

use std::collections::BTreeSet;

use isthmus_overlay::{
    CLAIM_AFTER_MS, DropReason, FLAP_MOVES_MAX, FLAP_WINDOW_MS, LOOP_MS, MacAddr, MacPattern, Millis, Port,
    REPORT_INTERVAL_MS, Report, Route, RouteId, RouteSource,
};

/// A learned address.
pub(crate) struct Seen {
    pub(crate) mac: MacAddr,
    pub(crate) port: Port,
    pub(crate) at: u64,
    claim: Option<(Port, u64)>,
    window: u64,
    moves: u32,
    loop_reported: Option<u64>,
    flap_reported: Option<u64>,
}

impl Seen {
    fn new(mac: MacAddr, port: Port, at: u64) -> Self {
        Self { mac, port, at, claim: None, window: 0, moves: 0, loop_reported: None, flap_reported: None }
    }

    fn is_flapping(&self, now: u64) -> bool {
        self.moves > FLAP_MOVES_MAX && now - self.window < FLAP_WINDOW_MS.0
    }
}

pub(crate) struct NaiveNetwork {
    pub(crate) ports: BTreeSet<Port>,
    pub(crate) routes: Vec<(RouteId, Route)>,
    /// Those not seen for longest first.
    pub(crate) learned: Vec<Seen>,
    pub(crate) learning: bool,
    pub(crate) learned_max: usize,
    pub(crate) learned_age: Millis,
    pub(crate) reports: Vec<Report>,
    pub(crate) evicted: u64,
}

fn rank(route: &Route, from: Port, source: MacAddr, destination: MacAddr) -> Option<u8> {
    let class = |pattern: MacPattern, mac: MacAddr| match pattern {
        MacPattern::Any => Some('*'),
        MacPattern::None => Some('-'),
        MacPattern::Not(other) => (other != mac).then_some('!'),
        MacPattern::Exact(other) => (other == mac).then_some('='),
    };
    let is_from = match (route.from, from) {
        (RouteSource::Any, _) => true,
        (RouteSource::AnyInterface, Port::Interface(_)) | (RouteSource::AnyEdge, Port::Edge(_)) => true,
        (RouteSource::Port(port), from) => port == from,
        _ => false,
    };
    let classes = [class(route.source, source)?, class(route.destination, destination)?];
    let rank = match classes {
        ['=', '='] => 8,
        ['=', '!'] | ['!', '='] => 7,
        ['=', '*'] | ['*', '='] => 6,
        ['*', '!'] | ['!', '*'] => 5,
        ['=', '-'] => 4,
        ['*', '*'] => 3,
        _ => return None,
    };
    is_from.then_some(rank)
}

fn passes(from: Port, to: Port) -> bool {
    from != to && matches!((from, to), (Port::Interface(_), _) | (_, Port::Interface(_)))
}

fn is_station(mac: MacAddr) -> bool {
    mac.0 != [0; 6] && mac.0[0] & 1 == 0
}

impl NaiveNetwork {
    pub(crate) fn remove_port(&mut self, port: Port) {
        self.ports.remove(&port);
        self.learned.retain(|seen| seen.port != port);
        for seen in &mut self.learned {
            seen.claim = seen.claim.filter(|(claimed, _)| *claimed != port);
        }
    }

    pub(crate) fn forward(
        &mut self,
        now: u64,
        from: Port,
        source: MacAddr,
        destination: MacAddr,
    ) -> Result<Vec<Port>, DropReason> {
        if !self.ports.contains(&from) {
            return Err(DropReason::UnknownPort);
        }
        if self.learning && is_station(source) {
            self.learn(now, from, source)?;
        }
        let matches: Vec<(u8, Port)> = self
            .routes
            .iter()
            .filter_map(|(_, route)| Some((rank(route, from, source, destination)?, route.to)))
            .collect();
        let Some(best) = matches.iter().map(|(rank, _)| *rank).max() else {
            return self.by_address(now, from, destination);
        };
        let targets: BTreeSet<Port> = matches.into_iter().filter(|(rank, _)| *rank == best).map(|(_, to)| to).collect();
        let copies: Vec<Port> =
            targets.iter().copied().filter(|to| self.ports.contains(to) && passes(from, *to)).collect();
        match copies.is_empty() {
            false => Ok(copies),
            true if targets.is_subset(&self.ports) => Err(DropReason::SplitHorizon),
            true => Err(DropReason::PortGone),
        }
    }

    fn by_address(&mut self, now: u64, from: Port, destination: MacAddr) -> Result<Vec<Port>, DropReason> {
        if !self.learning {
            return Err(DropReason::NoRoute);
        }
        self.settle_claim(now, destination);
        let age = self.learned_age.0;
        let place =
            self.learned.iter().find(|seen| seen.mac == destination && now - seen.at < age).map(|seen| seen.port);
        let targets = place.map_or_else(|| self.ports.iter().copied().collect(), |port| vec![port]);
        let copies: Vec<Port> = targets.into_iter().filter(|to| passes(from, *to)).collect();
        if copies.is_empty() { Err(DropReason::SplitHorizon) } else { Ok(copies) }
    }

    fn settle_claim(&mut self, now: u64, mac: MacAddr) {
        let Some(place) = self.learned.iter().position(|seen| seen.mac == mac) else { return };
        if let Some((port, at)) = self.learned[place].claim
            && now - self.learned[place].at >= LOOP_MS.0
        {
            let mut seen = self.learned.remove(place);
            (seen.port, seen.at, seen.claim) = (port, at, None);
            self.learned.push(seen);
        }
    }

    fn learn(&mut self, now: u64, from: Port, mac: MacAddr) -> Result<(), DropReason> {
        if self.learned.iter().any(|seen| seen.mac == mac && seen.port != from) {
            self.settle_claim(now, mac);
        }
        let Some(place) = self.learned.iter().position(|seen| seen.mac == mac) else {
            if self.learned.len() == self.learned_max {
                self.learned.remove(0);
                self.evicted += 1;
            }
            self.learned.push(Seen::new(mac, from, now));
            return Ok(());
        };
        let seen = &mut self.learned[place];
        if now - seen.at < self.learned_age.0 {
            let from_edge = matches!(from, Port::Edge(_));
            let at_interface = matches!(seen.port, Port::Interface(_));
            if at_interface && from_edge && now - seen.at < LOOP_MS.0 {
                if now - seen.at >= CLAIM_AFTER_MS.0 {
                    seen.claim = Some((from, now));
                }
                let report = Report::Loop { mac, interface: seen.port, edge: from };
                note_report(&mut self.reports, &mut seen.loop_reported, now, report);
                return Err(DropReason::Loop);
            }
            if !from_edge && seen.is_flapping(now) {
                return Err(DropReason::Flapping);
            }
            seen.claim = None;
            if seen.port != from {
                if now - seen.window >= FLAP_WINDOW_MS.0 {
                    (seen.window, seen.moves) = (now, 0);
                }
                seen.moves += 1;
                if seen.is_flapping(now) {
                    let report = Report::Flapping { mac, ports: [seen.port, from] };
                    note_report(&mut self.reports, &mut seen.flap_reported, now, report);
                }
            }
        } else {
            seen.claim = None;
        }
        seen.port = from;
        if seen.at != now {
            seen.at = now;
            let seen = self.learned.remove(place);
            self.learned.push(seen);
        }
        Ok(())
    }
}

fn note_report(reports: &mut Vec<Report>, last: &mut Option<u64>, now: u64, report: Report) {
    if last.is_none_or(|last| now - last >= REPORT_INTERVAL_MS.0) {
        *last = Some(now);
        reports.push(report);
    }
}
