//! The rights that a helper keeps after its start, as the kernel shows them.

use std::fs;

use crate::{bed, open, open_in, start, tap};

/// The value of a line in the status of each thread of a process, sorted and without repetition.
fn statuses(process: u32, key: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let status = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("status")).unwrap();
    let value = |text: String| {
        let line =
            text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':').map(str::trim).map(str::to_owned));
        line.unwrap()
    };
    let mut values: Vec<String> = threads.map(|thread| value(status(thread.unwrap()))).collect();
    values.sort();
    values.dedup();
    values
}

#[test]
fn helper_keeps_its_capabilities_and_a_filter_and_nothing_else() {
    let Some(bed) = bed() else { return };
    // CAP_NET_ADMIN is number 12, CAP_SYS_ADMIN 21.
    for (options, capabilities) in [(&[][..], "0000000000001000"), (&["--namespaces"], "0000000000201000")] {
        let (helper, mut client) = start(&bed.a, options);
        let _here = open(&mut client, "tap0");
        if !options.is_empty() {
            open_in(&mut client, tap("tap0", &[]), &bed.b).unwrap();
        }
        let process = helper.0.id();
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            assert_eq!(statuses(process, set), [capabilities], "{set} {options:?}");
        }
        for set in ["CapInh", "CapAmb"] {
            assert_eq!(statuses(process, set), ["0000000000000000"], "{set} {options:?}");
        }
        assert_eq!(
            (statuses(process, "Seccomp"), statuses(process, "NoNewPrivs")),
            (vec!["2".into()], vec!["1".into()])
        );
        assert_eq!(statuses(process, "Seccomp_filters"), ["2"]);
    }
}
