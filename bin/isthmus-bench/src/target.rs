//! Targets of rows, as programs read them: bounds on the value itself, or on its ratio to a peer or to the floor.
//!
//! ```json
//! {"vs": "peer", "op": "<=", "value": 0.6, "of": "tcp.half_rtt.8b.sleep"}
//! {"all": [{"vs": "floor", "op": "<=", "value": 2.0}, {"vs": "peer", "op": "<=", "value": 1.0}]}
//! ```

use std::fmt;

use serde::{Serialize, Serializer};

/// The side that a value is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Versus {
    /// The best peer of the row, or the case that the bound names: the ratio of the value to it is bounded.
    Peer,
    /// The floor of the row: the ratio of the value to it is bounded.
    Floor,
    /// Nothing: the value itself is bounded, in the unit of the row.
    Value,
}

/// The direction of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Op {
    #[serde(rename = "<=")]
    AtMost,
    #[serde(rename = ">=")]
    AtLeast,
}

/// One bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Bound {
    vs: Versus,
    op: Op,
    value: f64,
    /// The case that is meant, if it is not the best peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<String>,
}

/// The target of a row: one bound, or several of which all or any hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    bounds: Vec<Bound>,
    is_any: bool,
}

impl Target {
    fn new(vs: Versus, op: Op, value: f64) -> Self {
        Self { bounds: vec![Bound { vs, op, value, of: None }], is_any: false }
    }

    /// Returns an upper bound.
    pub fn at_most(value: f64, vs: Versus) -> Self {
        Self::new(vs, Op::AtMost, value)
    }

    /// Returns a lower bound.
    pub fn at_least(value: f64, vs: Versus) -> Self {
        Self::new(vs, Op::AtLeast, value)
    }

    /// Names the case that the last bound compares with.
    pub fn of(mut self, case: impl Into<String>) -> Self {
        if let Some(bound) = self.bounds.last_mut() {
            bound.of = Some(case.into());
        }
        self
    }

    /// The cases that bounds name.
    #[cfg(test)]
    pub(crate) fn named_cases(&self) -> impl Iterator<Item = &str> {
        self.bounds.iter().filter_map(|bound| bound.of.as_deref())
    }

    /// Demands further bounds as well.
    pub fn and(mut self, more: Self) -> Self {
        self.bounds.extend(more.bounds);
        self
    }

    /// Accepts other bounds instead.
    pub fn or(self, other: Self) -> Self {
        Self { is_any: true, ..self.and(other) }
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.bounds[..] {
            [one] => one.serialize(serializer),
            many => serializer.collect_map([(if self.is_any { "any" } else { "all" }, many)]),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, bound) in self.bounds.iter().enumerate() {
            if number > 0 {
                f.write_str(if self.is_any { " or " } else { " and " })?;
            }
            write!(f, "{bound}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = if self.op == Op::AtMost { "<=" } else { ">=" };
        match (self.vs, &self.of) {
            (Versus::Value, _) => write!(f, "{op} {}", self.value),
            (_, Some(case)) => write!(f, "{op} {} x {case}", self.value),
            (Versus::Peer, None) => write!(f, "{op} {} x peer", self.value),
            (Versus::Floor, None) => write!(f, "{op} {} x floor", self.value),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_bound_is_an_object_and_several_are_a_list() {
        let floor = Target::at_most(2.0, Versus::Floor);
        assert_eq!(serde_json::to_value(&floor).unwrap(), json!({"vs": "floor", "op": "<=", "value": 2.0}));
        let both = floor.and(Target::at_least(1.5, Versus::Peer).of("tcp"));
        let peer = json!({"vs": "peer", "op": ">=", "value": 1.5, "of": "tcp"});
        let all = json!({"all": [{"vs": "floor", "op": "<=", "value": 2.0}, peer]});
        assert_eq!(serde_json::to_value(&both).unwrap(), all);
        assert_eq!(both.to_string(), "<= 2 x floor and >= 1.5 x tcp");
        let either = Target::at_most(0.6, Versus::Peer).or(Target::at_most(0.5, Versus::Value));
        assert!(serde_json::to_value(&either).unwrap()["any"].is_array());
        assert_eq!(either.to_string(), "<= 0.6 x peer or <= 0.5");
    }
}
