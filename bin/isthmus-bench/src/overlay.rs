//! Overlay networks: containers on two hosts, and a tunnel that carries their frames over the wire between the hosts.
//!
//! ```text
//!   container a ── interface ─ host a ═══ wire ═══ host b ─ interface ── container b      lan
//!        │            └─ of a daemon, of the kernel's VXLAN device, or of a program that only moves frames (mover.c): tunnel
//!        └─ iperf3, or round trips over TCP                                                                            load
//!   lookup ── decisions of a table of routes, without frames         idle ── the cost of interfaces without frames
//!   rows ──── the rows of this capability
//! ```

mod idle;
mod lan;
mod load;
mod lookup;
mod rows;
mod tunnel;

pub(crate) use rows::{rows, trial};

#[cfg(test)]
mod tests {
    #[test]
    fn rows_are_named_as_in_the_document() {
        let names: Vec<_> = super::rows().iter().flatten().map(|row| row.name).collect();
        assert_eq!(
            names,
            [
                "net.user.stream.1500",
                "net.user.stream.1500.cut",
                "net.user.stream.9000",
                "net.user.stream.9000.cut",
                "net.user.rr",
                "net.vxlan.user.send",
                "net.vxlan.user.send.cut",
                "net.vxlan.user.receive",
                "net.vxlan.user.receive.cut",
                "net.loss.1",
                "net.loss.5",
                "net.loss.reordered",
                "net.cpu_per_gb",
                "net.cpu_per_gb.cut",
                "net.lookup.cached",
                "net.lookup.miss",
                "net.lookup.change",
                "net.idle",
            ]
        );
    }
}
