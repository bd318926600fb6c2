//! The text that `LIST` prints: what reading the files of VNET/P returns.

use alloc::string::String;
use core::fmt::{self, Write as _};
use core::net::SocketAddr;

use super::command::VnetFile;
use super::route_line::{PortName, RouteLine};
use super::table::{LinkCounters, NamedPort, Table};
use crate::mac::MacAddr;
use crate::route::MacPattern;

/// Writes one file, or both with their names, newest entries first.
pub(super) fn list(
    output: &mut String,
    table: &Table,
    file: Option<VnetFile>,
    counters: &impl Fn(SocketAddr) -> LinkCounters,
) {
    let written = match file {
        Some(VnetFile::Links) => links(output, table, counters),
        Some(VnetFile::Routes) => routes(output, table),
        None => writeln!(output, "{}", VnetFile::Links)
            .and_then(|()| links(output, table, counters))
            .and_then(|()| writeln!(output, "{}", VnetFile::Routes))
            .and_then(|()| routes(output, table)),
    };
    written.expect("a string takes every text");
}

fn links(output: &mut String, table: &Table, counters: &impl Fn(SocketAddr) -> LinkCounters) -> fmt::Result {
    table.links.iter().rev().try_for_each(|(index, link)| {
        let LinkCounters { received, received_bytes, sent, sent_bytes } = counters(*link);
        writeln!(output, "{index}\t{}\t{}", link.ip(), link.port())?;
        writeln!(output, "{received}\t{received_bytes}\t{sent}\t{sent_bytes}\n")
    })
}

fn routes(output: &mut String, table: &Table) -> fmt::Result {
    table.routes.iter().rev().try_for_each(|(index, route)| {
        let RouteLine { source, destination, to, from } = route;
        writeln!(output, "{index}:\nSrc: {}\nDst: {}", Pattern(*source), Pattern(*destination))?;
        writeln!(output, "Dst-Type: {}", Type { table, name: Some(to) })?;
        writeln!(output, "Src-Type: {}\n", Type { table, name: from.as_ref() })
    })
}

/// A pattern with a MAC address in numbers without leading zeros.
struct Pattern(MacPattern);

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, MacAddr([a, b, c, d, e, g])) = match self.0 {
            MacPattern::Any | MacPattern::None => return self.0.fmt(f),
            MacPattern::Not(mac) => ("not-", mac),
            MacPattern::Exact(mac) => ("", mac),
        };
        write!(f, "{prefix}{a:x}:{b:x}:{c:x}:{d:x}:{e:x}:{g:x}")
    }
}

/// The type of a port, with the address of its host or the number of the interface.
struct Type<'a> {
    table: &'a Table,
    /// None for every port.
    name: Option<&'a PortName>,
}

impl fmt::Display for Type<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(name) = self.name else { return f.write_str("ANY") };
        match (self.table.port_of(name), name) {
            (Some(NamedPort::Link(link)), _) => write!(f, "EDGE {}", link.ip()),
            (Some(NamedPort::Interface(index)), _) => write!(f, "INTERFACE {index}"),
            // The configuration has no such route. Its own words are better than none.
            (None, PortName::Edge(id)) => write!(f, "EDGE {id}"),
            (None, PortName::Interface(id)) => write!(f, "INTERFACE {id}"),
        }
    }
}
