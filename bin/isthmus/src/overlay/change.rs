//! `isthmus overlay network|interface|edge|route add|remove`, and `isthmus overlay show`: changes of a running daemon's networks.
//!
//! ```text
//! words ─▶ Edit, with a table of the fields ─▶ daemon ─▶ the networks that changed, as the configuration would have them
//! ```
//!
//! The words are checked by the daemon, with the code that reads the configuration.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use isthmus_client::{QueryClient, Topic};
use isthmus_config::overlay::{ChangeRequest, Edit};
use isthmus_report::overlay::{OverlayChanged, OverlayTable};
use toml::{Table, Value};

use crate::daemon::{ask, options, show as print};
use crate::output::{Outcome, Output, UsageError};

/// How long a change holds.
pub(super) const HOLDS: &str = "The change holds until the daemon restarts or reads its configuration again.";

#[derive(Args)]
pub(crate) struct NewNetwork {
    /// The name of the network.
    name: String,
    /// Fields, as in the table `[[overlay.network]]`: `vni=7`, `learning=false`.
    #[arg(value_name = "KEY=VALUE")]
    fields: Vec<String>,
}

#[derive(Args)]
pub(crate) struct NewInterface {
    /// The network.
    network: String,
    /// The name of the interface.
    name: String,
    /// Fields, as in the table of an interface: `namespace=web`, `mtu=1400`, `addresses=[10.0.0.1/24, fd00::1/64]`.
    #[arg(value_name = "KEY=VALUE")]
    fields: Vec<String>,
}

#[derive(Args)]
pub(crate) struct NewEdge {
    /// The network.
    network: String,
    /// The address of the other host, with or without a port.
    to: String,
    /// Fields, as in the table of an edge: `kind=vxlan`.
    #[arg(value_name = "KEY=VALUE")]
    fields: Vec<String>,
}

#[derive(Args)]
pub(crate) struct RouteWords {
    /// The network.
    network: String,
    /// The route, in the words of VNET's `ADD`: `any 02:00:00:00:00:01 edge 192.0.2.2 any`.
    #[arg(required = true, value_name = "WORD")]
    route: Vec<String>,
}

#[derive(Args)]
pub(crate) struct PartName {
    /// The network.
    network: String,
    /// The name of the part, as `isthmus overlay list` shows it.
    name: String,
}

impl NewNetwork {
    pub(super) fn edit(self) -> Result<Edit> {
        Ok(Edit::AddNetwork(table(("name", self.name), &self.fields)?))
    }
}

impl NewInterface {
    pub(super) fn edit(self) -> Result<Edit> {
        let interface = table(("name", self.name), &self.fields)?;
        Ok(Edit::AddInterface { network: self.network, interface })
    }
}

impl NewEdge {
    pub(super) fn edit(self) -> Result<Edit> {
        Ok(Edit::AddEdge { network: self.network, edge: table(("to", self.to), &self.fields)? })
    }
}

impl RouteWords {
    pub(super) fn added(self) -> Edit {
        Edit::AddRoute { network: self.network, route: self.route.join(" ") }
    }

    pub(super) fn removed(self) -> Edit {
        Edit::RemoveRoute { network: self.network, route: self.route.join(" ") }
    }
}

impl PartName {
    pub(super) fn interface(self) -> Edit {
        Edit::RemoveInterface { network: self.network, interface: self.name }
    }

    pub(super) fn edge(self) -> Edit {
        Edit::RemoveEdge { network: self.network, edge: self.name }
    }
}

/// Changes the networks, and prints those that changed.
pub(super) fn change(output: Output, socket: Option<PathBuf>, edit: Edit) -> Result<Outcome> {
    let request = serde_json::to_string(&ChangeRequest::Edits(vec![edit])).context("cannot write the change")?;
    let reply = QueryClient::connect(&options(socket)?)?.change_overlay(&request)?;
    print(output, "overlay_changed", &networks_only(&reply)?, changed_text)
}

/// Parses a reply with networks for the configuration. Refuses a text with anything else, because the configuration belongs to root.
pub(super) fn networks_only(reply: &str) -> Result<serde_json::Value> {
    let reply: serde_json::Value = serde_json::from_str(reply).context("the daemon's reply is not JSON")?;
    check_networks(&reply)?;
    Ok(reply)
}

fn check_networks(reply: &serde_json::Value) -> Result<()> {
    let Some(text) = reply["toml"].as_str() else { return Ok(()) }; // The caller needs the field, or names it.
    let table: Table = toml::from_str(text).context("the daemon's networks are not TOML")?;
    let overlay = table.get("overlay").and_then(Value::as_table);
    let others = table
        .keys()
        .filter(|key| *key != "overlay")
        .chain(overlay.into_iter().flat_map(Table::keys).filter(|key| *key != "network"));
    let others: Vec<_> = others.map(String::as_str).collect();
    ensure!(
        others.is_empty(),
        "the daemon reports networks with other settings ({}), which do not belong to them: nothing is shown. Use the tool and the daemon of one version",
        others.join(", ")
    );
    Ok(())
}

fn changed_text(changed: &OverlayChanged) -> String {
    if changed.toml.is_empty() {
        return format!("done. {HOLDS} To keep it, remove the network from the configuration.\n");
    }
    format!("done. {HOLDS} To keep it, write into the configuration:\n\n{}", changed.toml)
}

/// Prints the running networks as the configuration would have them.
pub(super) fn show(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    let report = ask(socket, Topic::Overlay, &["table"])?;
    check_networks(&report)?;
    print(output, "overlay_table", &report, table_text)
}

fn table_text(table: &OverlayTable) -> String {
    let changes = match table.changes {
        0 => String::new(),
        1 => "# Changed once since the configuration was read.\n".to_owned(),
        count => format!("# Changed {count} times since the configuration was read.\n"),
    };
    changes + &table.toml
}

/// The fields of a part: the one that names it, and the others as `KEY=VALUE`.
fn table(name: (&str, String), fields: &[String]) -> Result<Table> {
    let mut table = Table::new();
    table.insert(name.0.to_owned(), name.1.into());
    for field in fields {
        let usage = || UsageError(format!("`{field}` is not KEY=VALUE, as in `kind=vxlan`"));
        let (key, text) = field.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(usage)?;
        if table.insert(key.to_owned(), value(text)).is_some() {
            return Err(UsageError(format!("`{field}`: {key} is written twice")).into());
        }
    }
    Ok(table)
}

/// A value as TOML writes it. Strings need no quotes, also in a list.
fn value(text: &str) -> Value {
    let written = toml::from_str::<Table>(&format!("value = {text}")).ok().and_then(|mut table| table.remove("value"));
    match written {
        Some(value @ (Value::Integer(_) | Value::Boolean(_) | Value::String(_) | Value::Array(_))) => value,
        _ => match text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(list) => list.split(',').map(|part| Value::from(part.trim())).collect::<Vec<_>>().into(),
            None => text.into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_configuration_and_strings_need_no_quotes() {
        let fields = ["mtu=1400", "namespace=web", "mac=02:00:00:00:00:01", "on=true", "text=\"7\"", "to=[fd00::2]:1"];
        let fields: Vec<_> = fields.iter().map(ToString::to_string).collect();
        let table = table(("name", "eth0".to_owned()), &fields).expect("fields");
        let expected = "mac = \"02:00:00:00:00:01\"\nmtu = 1400\nname = \"eth0\"\nnamespace = \"web\"\non = true\ntext = \"7\"\nto = \"[fd00::2]:1\"\n";
        assert_eq!(table.to_string(), expected);
        let list = Value::from(vec!["10.0.0.1/24", "fd00::1/64"]);
        assert_eq!(
            [value("[10.0.0.1/24, fd00::1/64]"), value(r#"["10.0.0.1/24", 'fd00::1/64']"#)],
            [list.clone(), list]
        );
        assert_eq!([value("nan"), value("2026-01-01"), value("")], ["nan", "2026-01-01", ""].map(Value::from));
    }

    #[test]
    fn words_that_are_no_fields_are_usage_errors() {
        for fields in [&["mtu"][..], &["=3"], &["mtu=1", "mtu=2"], &["name=eth1"]] {
            let fields: Vec<_> = fields.iter().map(ToString::to_string).collect();
            let error = table(("name", "eth0".to_owned()), &fields).expect_err("no fields");
            assert!(error.downcast_ref::<UsageError>().is_some(), "{fields:?}");
        }
    }

    #[test]
    fn the_reply_says_how_long_a_change_holds_and_how_to_keep_it() {
        let changed = |toml: &str| OverlayChanged { schema: 1, toml: toml.to_owned() };
        let text = changed_text(&changed("[[overlay.network]]\nname = \"lan\"\n"));
        assert!(
            text.contains("until the daemon restarts") && text.ends_with("\n\n[[overlay.network]]\nname = \"lan\"\n")
        );
        assert!(changed_text(&changed("")).contains("remove the network"));
        let table = |changes| table_text(&OverlayTable { schema: 1, toml: "x = 1\n".to_owned(), changes });
        assert_eq!(table(0), "x = 1\n");
        assert!(table(1).starts_with("# Changed once") && table(2).starts_with("# Changed 2 times"));
    }
}
