//! Routes as text.
//!
//! ```text
//!   SOURCE-MAC DESTINATION-MAC edge|interface ID any
//!   SOURCE-MAC DESTINATION-MAC edge|interface ID edge|interface ID
//!
//!   a MAC      any │ none │ not-MAC │ MAC            any leading part of `any` and `none` is accepted
//!   an ID      of an edge: the address of its host; of an interface: its MAC address, or its name
//! ```
//!
//! Letters may have any case. Where VNET/P accepts a word that it cannot use, such as a malformed MAC address, this parser refuses it.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use super::error::shown;
use crate::mac::MacAddr;
use crate::ports::Port;
use crate::route::{MacPattern, Route, RouteSource};

/// The name of an interface or an edge in a command.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortName {
    /// An edge, by the address of its host.
    Edge(String),
    /// An interface, by its MAC address or its name.
    Interface(String),
}

/// A route, with the names that a command has for its ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteLine {
    pub(super) source: MacPattern,
    pub(super) destination: MacPattern,
    pub(super) to: PortName,
    /// None for every port.
    pub(super) from: Option<PortName>,
}

/// The reason why a text is no route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteLineError {
    /// The line has too few or too many words.
    #[error(
        "a route has 5 words (SOURCE-MAC DESTINATION-MAC edge|interface ID any) or 6 (…, then edge|interface ID), not {0}"
    )]
    Words(usize),
    /// A word is no MAC address.
    #[error("`{0}` is not `any`, `none`, a MAC address, or `not-` with a MAC address")]
    Mac(String),
    /// A word is no type of a port.
    #[error("`{0}` is not `edge` or `interface`")]
    Type(String),
    /// The last word of five is not `any`.
    #[error("`{0}` is not `any`; after `edge` or `interface` follows which one")]
    Source(String),
}

/// A port that a network does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the network has no {0}")]
pub struct UnknownPort(pub PortName);

impl RouteLine {
    /// Returns the names of the ports in the route.
    pub fn ports(&self) -> impl Iterator<Item = &PortName> {
        [&self.to].into_iter().chain(&self.from)
    }

    /// Returns the names of the ports in the route, to change them.
    pub(super) fn ports_mut(&mut self) -> impl Iterator<Item = &mut PortName> {
        [&mut self.to].into_iter().chain(&mut self.from)
    }

    /// Reads the words of a route.
    pub(super) fn from_words(words: &[&str]) -> Result<Self, RouteLineError> {
        let (source, destination, to_type, to, from) = match *words {
            [source, destination, to_type, to, any] if any.eq_ignore_ascii_case("any") => {
                (source, destination, to_type, to, None)
            }
            [.., word] if words.len() == 5 => return Err(RouteLineError::Source(shown(word))),
            [source, destination, to_type, to, from_type, from] => {
                (source, destination, to_type, to, Some(port_name(from_type, from)?))
            }
            _ => return Err(RouteLineError::Words(words.len())),
        };
        Ok(Self { source: pattern(source)?, destination: pattern(destination)?, to: port_name(to_type, to)?, from })
    }

    /// Returns the route, if `port_of` finds its ports.
    pub fn resolve(&self, port_of: impl Fn(&PortName) -> Option<Port>) -> Result<Route, UnknownPort> {
        let find = |name: &PortName| port_of(name).ok_or_else(|| UnknownPort(name.clone()));
        let from = match &self.from {
            None => RouteSource::Any,
            Some(name) => RouteSource::Port(find(name)?),
        };
        Ok(Route { source: self.source, destination: self.destination, from, to: find(&self.to)? })
    }
}

impl FromStr for RouteLine {
    type Err = RouteLineError;

    fn from_str(text: &str) -> Result<Self, RouteLineError> {
        Self::from_words(&text.split_ascii_whitespace().collect::<Vec<_>>())
    }
}

fn port_name(type_: &str, id: &str) -> Result<PortName, RouteLineError> {
    if type_.eq_ignore_ascii_case("edge") {
        Ok(PortName::Edge(id.to_owned()))
    } else if type_.eq_ignore_ascii_case("interface") {
        Ok(PortName::Interface(id.to_owned()))
    } else {
        Err(RouteLineError::Type(shown(type_)))
    }
}

fn pattern(word: &str) -> Result<MacPattern, RouteLineError> {
    let is_start_of = |whole: &str| whole.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    if is_start_of("any") {
        return Ok(MacPattern::Any);
    }
    if is_start_of("none") {
        return Ok(MacPattern::None);
    }
    let (prefix, rest) = word.split_at_checked(4).unwrap_or(("", word));
    let excluded = prefix.eq_ignore_ascii_case("not-");
    let mac: Option<MacAddr> = if excluded { rest.parse().ok() } else { word.parse().ok() };
    let mac = mac.ok_or_else(|| RouteLineError::Mac(shown(word)))?;
    Ok(if excluded { MacPattern::Not(mac) } else { MacPattern::Exact(mac) })
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edge(id) => write!(f, "edge {id}"),
            Self::Interface(id) => write!(f, "interface {id}"),
        }
    }
}

impl fmt::Display for RouteLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} ", self.source, self.destination, self.to)?;
        match &self.from {
            None => f.write_str("any"),
            Some(name) => write!(f, "{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::{EdgeId, InterfaceId};
    use alloc::string::ToString;

    fn port_of(name: &PortName) -> Option<Port> {
        match name {
            PortName::Edge(id) if id == "192.0.2.2" => Some(Port::Edge(EdgeId(3))),
            PortName::Interface(id) if id == "eth0@web" => Some(Port::Interface(InterfaceId(4))),
            _ => None,
        }
    }

    #[test]
    fn parses_every_form() {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let (edge, interface) = (Port::Edge(EdgeId(3)), Port::Interface(InterfaceId(4)));
        let cases = [
            ("any any edge 192.0.2.2 any", MacPattern::Any, MacPattern::Any, edge, RouteSource::Any),
            ("A N EDGE 192.0.2.2 ANY", MacPattern::Any, MacPattern::None, edge, RouteSource::Any),
            (
                "2:0:0:0:0:1 not-02:00:00:00:00:01 interface eth0@web edge 192.0.2.2",
                MacPattern::Exact(mac),
                MacPattern::Not(mac),
                interface,
                RouteSource::Port(edge),
            ),
            (
                "NOT-2:0:0:0:0:1 none edge\t192.0.2.2  interface eth0@web",
                MacPattern::Not(mac),
                MacPattern::None,
                edge,
                RouteSource::Port(interface),
            ),
        ];
        for (text, source, destination, to, from) in cases {
            let line: RouteLine = text.parse().unwrap();
            assert_eq!(line.resolve(port_of), Ok(Route { source, destination, from, to }), "{text}");
            assert_eq!(line.to_string().parse::<RouteLine>().as_ref(), Ok(&line));
        }
        let line: RouteLine = "A N EDGE 192.0.2.2 ANY".parse().unwrap();
        assert_eq!(line.to_string(), "any none edge 192.0.2.2 any");
    }

    #[test]
    fn refuses_other_texts_by_name() {
        let refusal = |text: &str| text.parse::<RouteLine>().unwrap_err();
        assert_eq!(refusal(""), RouteLineError::Words(0));
        assert_eq!(refusal("any any edge 192.0.2.2"), RouteLineError::Words(4));
        assert_eq!(refusal("any any edge 192.0.2.2 edge 192.0.2.2 any"), RouteLineError::Words(7));
        assert_eq!(refusal("anyone any edge 192.0.2.2 any"), RouteLineError::Mac("anyone".to_owned()));
        assert_eq!(refusal("any not- edge 192.0.2.2 any"), RouteLineError::Mac("not-".to_owned()));
        assert_eq!(refusal("any any host 192.0.2.2 any"), RouteLineError::Type("host".to_owned()));
        assert_eq!(refusal("any any edge 192.0.2.2 edge"), RouteLineError::Source("edge".to_owned()));
        assert_eq!(refusal("any any edge 192.0.2.2 any x"), RouteLineError::Type("any".to_owned()));
        let line: RouteLine = "any any edge 192.0.2.3 any".parse().unwrap();
        assert_eq!(line.resolve(port_of), Err(UnknownPort(PortName::Edge("192.0.2.3".to_owned()))));
    }
}
