//! iperf3 between containers on two hosts, through an overlay network and through VXLAN of the kernel. Higher is better.

use isthmus_bench::demo::{TunnelRate, TunnelRates};

use super::table::{distinct, shown};
use crate::output::{Align, Table};

const TITLE: &str =
    "Containers on two hosts (network namespaces, a veth pair of MTU 1500 with offloads): iperf3, one TCP stream";

/// Returns the table, or the reasons why there is none.
pub(super) fn text(rates: &TunnelRates) -> String {
    let rows = [("Isthmus, fast edge", &rates.fast), ("VXLAN of the kernel", &rates.kernel_vxlan)];
    let why = |(_, rate): &(&str, &TunnelRate)| rate.why.clone();
    if rows.iter().all(|(_, rate)| rate.bandwidth.is_none()) {
        let whys = distinct(rows.iter().filter_map(why));
        return format!("\nContainers on two hosts: not measured: {}\n", whys.join("; "));
    }
    let mut table = Table::new(&[("", Align::Left), ("GB/s", Align::Right)]);
    for (name, rate) in rows {
        table.row(vec![name.to_owned(), shown(rate.bandwidth)]);
    }
    let missing = rows.iter().filter_map(|row| Some(format!("{}: {}\n", row.0, why(row)?)));
    format!("\n{TITLE}\n{}{}", table.text(), missing.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(outcome: Result<f64, &str>) -> TunnelRate {
        let (bandwidth, why) = (outcome.ok(), outcome.err().map(str::to_owned));
        TunnelRate { name: "iperf3".to_owned(), bandwidth, why, failed: false }
    }

    #[test]
    fn shows_both_tunnels_and_the_reason_of_a_missing_value() {
        let shown = text(&TunnelRates { fast: rate(Ok(1.5)), kernel_vxlan: rate(Err("no such device")) });
        let line = shown.lines().find(|line| line.starts_with("Isthmus")).expect("a line");
        assert!(line.ends_with(" 1.50"), "{line:?}");
        assert!(shown.ends_with("\nVXLAN of the kernel: no such device\n"), "{shown}");
    }

    #[test]
    fn prints_a_common_reason_once() {
        let shown = text(&TunnelRates { fast: rate(Err("not root")), kernel_vxlan: rate(Err("not root")) });
        assert_eq!(shown, "\nContainers on two hosts: not measured: not root\n");
    }
}
