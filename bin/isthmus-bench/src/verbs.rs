//! RDMA programs on the virtual device: perftest, as it is packaged, and a C program for what perftest does not measure.
//!
//! ```text
//!   device ──── a daemon of our own, the files by which libibverbs finds its device, and a /dev with the device file
//!   perftest ── cases: a program of perftest with its client
//!   measured ── cases: registration, many queue pairs, two sides that add to one word         (program.c)
//!   rows ────── the rows of this capability
//! ```

mod connections;
mod device;
mod measured;
mod perftest;
mod rows;

pub(crate) use perftest::Perftest;
pub(crate) use rows::rows;

#[cfg(test)]
mod tests {
    #[test]
    fn rows_are_named_as_in_the_document() {
        let names: Vec<_> = super::rows().iter().flatten().map(|row| row.name).collect();
        assert_eq!(
            names,
            [
                "verbs.send_lat.2b",
                "verbs.write_lat.2b",
                "verbs.read_lat.2b",
                "verbs.write_bw.64k",
                "verbs.write_bw.1m",
                "verbs.read_bw.1m",
                "verbs.send_bw.64k",
                "verbs.send_bw.1m",
                "verbs.rate.8b",
                "verbs.atomic",
                "verbs.event_lat",
                "verbs.event_lat.one_cpu",
                "verbs.served_write_lat",
                "verbs.served_write_lat.polling",
                "verbs.register.64k.first",
                "verbs.register.64k.again",
                "verbs.register.1m.first",
                "verbs.register.1m.again",
                "verbs.register.16m.first",
                "verbs.register.16m.again",
                "verbs.register.nth",
                "verbs.mpich_ucx.8b",
                "verbs.mpich_ucx.1m",
                "verbs.cm.connect",
                "verbs.idle",
                "verbs.silent_qps",
            ]
        );
    }
}
