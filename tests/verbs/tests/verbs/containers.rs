//! The containers: an ordinary user without capabilities, and nothing in common but the folder with the daemon's socket.

use isthmus_testbed::Proc;
use isthmus_verbs_tests::{Container, Stage, timeout};

/// Prints namespaces, the user, its capabilities, and what there is; then waits for the end of its input.
const LOOK: &str = "for name in mnt pid ipc uts net user; do readlink /proc/self/ns/$name; done; id -u; \
    sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status; ls -d /sys/class 2>&1 | wc -w; ls /run; ls /run/isthmus; cat";

/// The number of lines with namespaces.
const NAMESPACES: usize = 6;

fn look(stage: &Stage, container: &Container) -> (Proc, Vec<String>) {
    let launch = stage.launch(container, "/bin/sh", &["-c", LOOK], &[]).with_stdin();
    let mut proc = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
    let lines = (0..NAMESPACES + 7).map(|_| proc.line(timeout()).unwrap_or_else(|error| panic!("{error}"))).collect();
    (proc, lines)
}

#[test]
fn containers_have_the_socket_in_common_and_nothing_else() {
    let Some(stage) = Stage::new() else { return };
    // Both run at the same time: the number of a namespace that has ended is used again.
    let ((_one, server), (_other, client)) = (look(&stage, stage.server()), look(&stage, stage.client()));
    for (one, other) in server.iter().zip(&client).take(NAMESPACES) {
        assert_ne!(one, other, "{server:?}");
    }
    for lines in [server, client] {
        let [user, capabilities, words, run @ ..] = &lines[NAMESPACES..] else { panic!("{lines:?}") };
        assert_eq!((user.as_str(), capabilities.as_str()), ("1000", "0000000000000000"), "{lines:?}");
        assert!(words.parse::<u32>().unwrap() > 1, "an error, because /sys has the processors only: {lines:?}");
        assert_eq!(run, ["isthmus", "isthmus.lock", "isthmus.sock", "verbs"], "{lines:?}");
    }
}
