//! Containers: that they have nothing in common, and that programs in them communicate.

use isthmus_sockets_tests::{End, Stage, TwoPrograms, timeout};
use isthmus_testbed::short_or_long;
use std::path::Path;

use crate::exchanges::exchange_in_each_mode;
use crate::transfers::transfer_in_each_mode;

/// Prints the namespaces, the host name and the private folders of a program, which ends with its input.
const LOOK: &str =
    "for name in mnt pid ipc uts net; do readlink /proc/self/ns/$name; done; hostname; ls /tmp /run; echo $$; cat";

#[test]
fn containers_have_nothing_in_common() {
    let Some(programs) = TwoPrograms::two_containers(Stage::Kernel) else { return };
    let start = |end| {
        let launch = programs.container(end).launch(Path::new("/bin/sh"), &["-c", LOOK], &[]);
        let mut proc = launch.with_stdin().spawn().unwrap();
        let lines: Vec<String> = (0..10).map(|_| proc.line(timeout()).unwrap()).collect();
        (proc, lines)
    };
    // Both run at the same time: the number of a namespace that has ended is used again.
    let ((_one, server), (_other, client)) = (start(End::Server), start(End::Client));
    for (one, other) in server.iter().zip(&client).take(6) {
        assert_ne!(one, other, "{server:?}");
    }
    assert_eq!(server[5..], ["server", "/run:", "", "/tmp:", "1"], "{server:?}");
}

fn bytes_of_each() -> u64 {
    short_or_long(32 << 20, 1 << 30)
}

#[test]
fn kernel_connects_programs_in_two_containers() {
    let Some(programs) = TwoPrograms::two_containers(Stage::Kernel) else { return };
    transfer_in_each_mode(&programs, bytes_of_each(), 200);
    exchange_in_each_mode(&programs, 50, 1000);
}

#[test]
fn library_connects_programs_in_two_containers() {
    let Some(programs) = Stage::library_across().and_then(TwoPrograms::two_containers) else { return };
    transfer_in_each_mode(&programs, bytes_of_each(), 200);
    exchange_in_each_mode(&programs, 50, 1000);
}
