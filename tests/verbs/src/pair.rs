//! A server in one container, and its client in the other.

use std::sync::atomic::{AtomicU16, Ordering};

use isthmus_testbed::{Exit, Finished, Proc};

use crate::stage::Stage;
use crate::timeout;

/// A server and its client that run. They end when this is dropped.
#[derive(Debug)]
pub struct Started {
    /// The server.
    pub server: Proc,
    /// The client.
    pub client: Proc,
    what: String,
}

/// The ends of both programs.
#[derive(Debug)]
pub struct Pair {
    /// The server's end.
    pub server: Finished,
    /// The client's end.
    pub client: Finished,
    what: String,
}

impl Pair {
    /// Runs a program and its client, which differ in the address only, to their ends, with these variables.
    pub fn run(stage: &Stage, program: &str, words: &[&str], variables: &[(&str, &str)]) -> Self {
        let Started { server, client, what } = Started::new(stage, program, words, [variables; 2]);
        let [client, server] = [("client", client), ("server", server)]
            .map(|(name, proc)| proc.finish(timeout()).unwrap_or_else(|error| panic!("{name} of {what}: {error}")));
        Self { server, client, what }
    }

    /// Asserts that both have ended without an error, and returns the lines of the client and of the server.
    #[track_caller]
    pub fn expect_success(&self) -> [&[String]; 2] {
        for Finished { exit, lines, stderr } in [&self.server, &self.client] {
            let is_error = |line: &&String| ["ailed", "nvalid data", "rror"].iter().any(|word| line.contains(word));
            let error = lines.iter().find(is_error);
            assert!(
                *exit == Exit::Code(0) && error.is_none(),
                "{}: {exit:?} {error:?}\n{}\n{stderr}\n{self:#?}",
                self.what,
                lines.join("\n")
            );
        }
        [&self.client.lines, &self.server.lines]
    }
}

impl Started {
    /// Starts a program with the first of these lists of variables, and its client with the second one.
    pub fn new(stage: &Stage, program: &str, words: &[&str], variables: [&[(&str, &str)]; 2]) -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let port = 18_500 + NEXT.fetch_add(1, Ordering::Relaxed); // Another for each: a closed one may be busy for a minute.
        let (address, port_word) = (stage.address(), port.to_string());
        let words = [&["-p", port_word.as_str()], words].concat();
        let what = format!("{program} {words:?} {variables:?}");
        let start = |container, words: &[&str], variables: &[(&str, &str)]| -> Proc {
            stage.launch(container, program, words, variables).spawn().unwrap_or_else(|error| panic!("{what}: {error}"))
        };
        let mut server = start(stage.server(), &words, variables[0]);
        stage.server().wait_for_listener(port, &mut server);
        let client = start(stage.client(), &[&words[..], &[&address]].concat(), variables[1]);
        Self { server, client, what }
    }
}
