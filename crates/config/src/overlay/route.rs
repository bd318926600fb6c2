//! Explicit routes, in the words of VNET's language.

use isthmus_overlay::ROUTES_MAX;
use isthmus_overlay::vnet::RouteLine;

use crate::fields::members;
use crate::problem::Finding;
use crate::setting::{ConfigValue, Setting};

/// The routes of a network, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Routes(pub(super) Vec<RouteLine>);

impl Setting for Routes {
    const TYPE: &'static str = "list of strings";
    const EXAMPLE: &'static str = "routes are written as in [\"any 02:00:00:00:00:01 edge 192.0.2.2 any\"]";

    fn expected() -> String {
        format!("a list of at most {ROUTES_MAX} routes")
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let routes = members::<Self, Line>(item, ROUTES_MAX, findings)?;
        (findings.len() == before).then(|| Self(routes.into_iter().map(|(_, Line(route))| route).collect()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(|route| toml::Value::String(route.to_string())).collect::<Vec<_>>().into()
    }
}

/// A route.
struct Line(RouteLine);

impl Setting for Line {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        "a route, as in \"any 02:00:00:00:00:01 edge 192.0.2.2 any\"".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        match text.parse() {
            Ok(route) => Some(Self(route)),
            Err(error) => {
                findings.push(item.wrong_text(&Self::expected(), Some(error.to_string())));
                None
            }
        }
    }

    fn to_toml(&self) -> toml::Value {
        self.0.to_string().into()
    }
}
