//! MX: C programs over `libmyriexpress`, on one host and between two hosts.
//!
//! ```text
//!   path ── one side of a pair: a C program for each side
//!   rows ── rows of one host
//!   wire ── rows between hosts, and the daemons that they need there
//! ```

pub(crate) mod path;
mod rows;
pub(crate) mod wire;

use std::rc::Rc;

use crate::figures::Row;
use crate::hosts::HostPairs;

/// The rows of MX, in the order of the document.
pub(crate) fn rows(host_pairs: &Rc<HostPairs>) -> Vec<Option<Row>> {
    [rows::rows(), wire::rows(host_pairs)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_as_in_the_document() {
        let names: Vec<_> = rows(&Rc::default()).iter().flatten().map(|row| row.name).collect();
        assert_eq!(
            names,
            [
                "mx.half_rtt.8b.poll",
                "mx.half_rtt.8b.sleep",
                "mx.half_rtt.8b.sleep.one_cpu",
                "mx.bandwidth.1m.warm",
                "mx.bandwidth.1m.cold",
                "mx.rate.8b",
                "mx.match.10k",
                "wire.goodput.1m",
                "wire.goodput.1m.1gbit",
                "udp.goodput.1m",
                "udp.goodput.1m.cut",
                "wire.half_rtt.8b.poll",
                "wire.half_rtt.8b.sleep",
                "wire.silent_links",
                "wire.goodput.loss1",
                "wire.cpu_per_gb",
                "wire.aggregate.20pairs",
            ]
        );
    }
}
