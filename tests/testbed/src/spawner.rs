//! Starts children from a thread that lives as long as the program.
//!
//! `PR_SET_PDEATHSIG`, which children use so as not to outlive a killed test, fires when the *thread* that started them
//! ends. A child started by a short-lived thread of a test would die with that thread; these don't.

use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

type Reply = Sender<io::Result<Child>>;

/// Spawns `command` and drops it, closing what it held for the child.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<(Command, Reply)>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(start);
    let (reply, answer) = channel();
    spawner.send((command, reply)).expect("the spawner's loop ends only with this static");
    answer.recv().expect("the spawner answers each command")
}

fn start() -> Sender<(Command, Reply)> {
    let (spawner, commands) = channel::<(Command, Reply)>();
    let thread = std::thread::Builder::new().name("spawner".into());
    let run = move || {
        for (mut command, reply) in commands {
            let child = command.spawn();
            drop(command); // Before the reply: a reader that waits for the end of a pipe must not wait for our copy.
            // The asker waits in `recv`, so a failed send means it has been unwound, and the child is of no use.
            if let Err(unheard) = reply.send(child)
                && let Ok(mut child) = unheard.0
            {
                drop(child.kill());
                drop(child.wait());
            }
        }
    };
    thread.spawn(run).expect("a thread can be started");
    spawner
}
