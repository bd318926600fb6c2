//! A row of results, and whether it reaches its target.

use std::fmt;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The value of a row is at the floor if it is at most this many times the floor (of what should be low) …
const FLOOR_RATIO_MAX: f64 = 1.3;
/// … or at least this many times (of what should be high).
const FLOOR_RATIO_MIN: f64 = 0.8;

/// One row.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) value: Option<f64>,
    pub(super) unit: String,
    pub(super) peer: Option<Compared>,
    pub(super) floor: Option<Compared>,
    /// Further cases, which targets may name.
    others: Vec<Compared>,
    target: Option<Target>,
    /// The reason that there is no value.
    pub(super) why: Option<String>,
}

/// A case that the row was measured beside.
#[derive(Debug)]
pub(super) struct Compared {
    pub(super) name: String,
    pub(super) value: Option<f64>,
    /// The value of the row divided by this value.
    pub(super) ratio: Option<f64>,
}

#[derive(Debug)]
struct Target {
    bounds: Vec<Bound>,
    is_any: bool,
}

#[derive(Debug)]
struct Bound {
    vs: Versus,
    is_upper: bool,
    value: f64,
    /// The case that is meant, if it is not the best peer.
    of: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Versus {
    Peer,
    Floor,
    Value,
}

/// The result of comparing a row with its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Met,
    /// The ratio to a peer is missed, and the value is that of the floor: this machine allows no more.
    MetAtFloor,
    NotMet,
    NotMeasured,
    NoTarget,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Met => "met",
            Self::MetAtFloor => "met at the floor",
            Self::NotMet => "not met",
            Self::NotMeasured => "not measured",
            Self::NoTarget => "-",
        })
    }
}

impl Row {
    pub(super) fn parse(line: &Value) -> Result<Self> {
        let text = |key: &str| line[key].as_str().map(str::to_owned);
        let name = text("name").context("a row has no name")?;
        let compared = |name: &str, value: &str, ratio: &str, of: &Value| {
            let name = of[name].as_str()?.to_owned();
            Some(Compared { name, value: of[value].as_f64(), ratio: of[ratio].as_f64() })
        };
        let others = line["others"].as_array().into_iter().flatten();
        let target = line.get("target").map(Target::parse).transpose();
        Ok(Self {
            value: line["value"].as_f64(),
            unit: text("unit").with_context(|| format!("{name} has no unit"))?,
            peer: compared("baseline", "baseline_value", "ratio", line),
            floor: compared("floor", "floor_value", "floor_ratio", line),
            others: others.filter_map(|other| compared("baseline", "baseline_value", "ratio", other)).collect(),
            target: target.with_context(|| format!("the target of {name}"))?,
            why: text("why"),
            name,
        })
    }

    /// The target as it stands in a table.
    pub(super) fn target(&self) -> String {
        let Some(Target { bounds, is_any }) = &self.target else { return "-".to_owned() };
        let bounds: Vec<String> = bounds.iter().map(|bound| self.describe(bound)).collect();
        bounds.join(if *is_any { " or " } else { ", " })
    }

    fn describe(&self, bound: &Bound) -> String {
        let sign = if bound.is_upper { "≤" } else { "≥" };
        let best = self.peer.as_ref().map(|peer| &peer.name);
        match (bound.vs, &bound.of) {
            (Versus::Value, _) => format!("{sign} {} {}", bound.value, self.unit),
            (Versus::Floor, _) => format!("{sign} {} × floor", bound.value),
            (Versus::Peer, Some(of)) if best != Some(of) => format!("{sign} {} × `{of}`", bound.value),
            (Versus::Peer, _) => format!("{sign} {} × peer", bound.value),
        }
    }

    pub(super) fn verdict(&self) -> Verdict {
        let Some(Target { bounds, is_any }) = &self.target else { return Verdict::NoTarget };
        if self.value.is_none() {
            return Verdict::NotMeasured;
        }
        let kept: Vec<(&Bound, Option<bool>)> = bounds.iter().map(|bound| (bound, self.keeps(bound))).collect();
        let is_met = if *is_any {
            kept.iter().any(|bound| bound.1 == Some(true))
        } else {
            kept.iter().all(|bound| bound.1 == Some(true))
        };
        if is_met {
            return Verdict::Met;
        }
        let missed: Vec<&Bound> = kept.iter().filter(|bound| bound.1 == Some(false)).map(|bound| bound.0).collect();
        match &missed[..] {
            [] => Verdict::NotMeasured,
            missed if missed.iter().all(|bound| self.is_at_floor(bound)) => Verdict::MetAtFloor,
            _ => Verdict::NotMet,
        }
    }

    /// Whether the row keeps a bound; none if the case of the bound has no value.
    fn keeps(&self, bound: &Bound) -> Option<bool> {
        let ratio_of = |name: &str| {
            let all = self.peer.iter().chain(&self.floor).chain(&self.others);
            all.filter(|compared| compared.name == name).find_map(|compared| compared.ratio)
        };
        let value = match (bound.vs, &bound.of) {
            (Versus::Value, _) => self.value?,
            (Versus::Floor, _) => self.floor.as_ref()?.ratio?,
            (Versus::Peer, Some(name)) => ratio_of(name)?,
            (Versus::Peer, None) => self.peer.as_ref()?.ratio?,
        };
        Some(if bound.is_upper { value <= bound.value } else { value >= bound.value })
    }

    /// Whether the floor excuses that a bound is missed. A bound on the ratio to the floor has no excuse.
    fn is_at_floor(&self, bound: &Bound) -> bool {
        let ratio = self.floor.as_ref().and_then(|floor| floor.ratio);
        let is_near = |ratio: f64| if bound.is_upper { ratio <= FLOOR_RATIO_MAX } else { ratio >= FLOOR_RATIO_MIN };
        bound.vs != Versus::Floor && ratio.is_some_and(is_near)
    }
}

impl Target {
    fn parse(target: &Value) -> Result<Self> {
        for (key, is_any) in [("all", false), ("any", true)] {
            if let Some(bounds) = target.get(key).and_then(Value::as_array) {
                return Ok(Self { bounds: bounds.iter().map(Bound::parse).collect::<Result<_>>()?, is_any });
            }
        }
        Ok(Self { bounds: vec![Bound::parse(target)?], is_any: false })
    }
}

impl Bound {
    fn parse(bound: &Value) -> Result<Self> {
        let vs = match bound["vs"].as_str() {
            Some("peer") => Versus::Peer,
            Some("floor") => Versus::Floor,
            Some("value") => Versus::Value,
            _ => bail!("compares with nothing known: {bound}"),
        };
        let is_upper = match bound["op"].as_str() {
            Some("<=") => true,
            Some(">=") => false,
            _ => bail!("has no operator: {bound}"),
        };
        let value = bound["value"].as_f64().with_context(|| format!("has no value: {bound}"))?;
        Ok(Self { vs, is_upper, value, of: bound["of"].as_str().map(str::to_owned) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A row with these ratios to its best peer and its floor.
    fn row(peer: f64, floor: f64, target: Value) -> Row {
        let others = json!([{"baseline": "cubic", "baseline_value": 1.0, "ratio": 27.0}]);
        let line = json!({
            "name": "x", "value": 3.18, "unit": "us", "baseline": "tcp", "baseline_value": 3.99, "ratio": peer,
            "floor": "floor.eventfd", "floor_value": 2.72, "floor_ratio": floor, "target": target, "others": others,
        });
        Row::parse(&line).unwrap()
    }

    fn bound(vs: &str, op: &str, value: f64) -> Value {
        json!({"vs": vs, "op": op, "value": value})
    }

    #[test]
    fn only_a_missed_peer_is_excused_by_the_floor() {
        let upper = || bound("peer", "<=", 0.6);
        for (peer, floor, target, verdict) in [
            (0.37, 5.0, upper(), Verdict::Met),
            (0.80, 1.17, upper(), Verdict::MetAtFloor),
            (0.80, 1.31, upper(), Verdict::NotMet),
            (1.2, 0.81, bound("peer", ">=", 1.5), Verdict::MetAtFloor),
            (1.2, 0.79, bound("peer", ">=", 1.5), Verdict::NotMet),
            (0.1, 1.2, bound("floor", "<=", 1.1), Verdict::NotMet),
            (0.1, 1.2, bound("value", "<=", 3.0), Verdict::MetAtFloor),
            (0.1, 9.0, bound("value", "<=", 4.0), Verdict::Met),
        ] {
            assert_eq!(row(peer, floor, target.clone()).verdict(), verdict, "{peer} {floor} {target}");
        }
    }

    #[test]
    fn several_bounds_hold_together_or_instead_of_each_other() {
        let bounds = json!([bound("floor", "<=", 2.0), bound("peer", "<=", 0.5)]);
        let verdict = |key: &str| row(0.56, 1.41, json!({ key: bounds })).verdict();
        assert_eq!((verdict("all"), verdict("any")), (Verdict::NotMet, Verdict::Met));
        assert_eq!(row(0.5, 1.41, json!({"all": bounds})).target(), "≤ 2 × floor, ≤ 0.5 × peer");
    }

    #[test]
    fn a_bound_may_name_a_case_that_is_not_the_best_peer() {
        let target = |of: &str| json!({"vs": "peer", "op": ">=", "value": 3, "of": of});
        let named = row(0.4, 9.0, target("cubic"));
        assert_eq!((named.verdict(), named.target().as_str()), (Verdict::Met, "≥ 3 × `cubic`"));
        let best = row(0.4, 0.1, target("tcp"));
        assert_eq!((best.verdict(), best.target().as_str()), (Verdict::NotMet, "≥ 3 × peer"));
        assert_eq!(row(0.4, 9.0, target("absent")).verdict(), Verdict::NotMeasured);
    }

    #[test]
    fn a_row_without_a_value_is_not_measured() {
        let line = json!({"name": "x", "value": null, "unit": "us", "target": bound("value", "<=", 1.0), "why": "y"});
        assert_eq!(Row::parse(&line).unwrap().verdict(), Verdict::NotMeasured);
        let line = json!({"name": "x", "value": 1.0, "unit": "us"});
        assert_eq!(Row::parse(&line).unwrap().verdict(), Verdict::NoTarget);
    }

    #[test]
    fn refuses_targets_that_are_no_bounds() {
        for target in
            [json!("at most 2"), json!({"vs": "moon", "op": "<=", "value": 1}), json!({"vs": "peer", "op": "="})]
        {
            assert!(Target::parse(&target).is_err(), "{target}");
        }
    }
}
