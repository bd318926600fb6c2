//! A server in one container, and its client in the other.

use std::sync::atomic::{AtomicU16, Ordering};

use isthmus_testbed::{Exit, Finished, Proc};

use crate::container::Container;
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
        Self::finish(Started::new(stage, program, words, [variables; 2]))
    }

    /// Starts a program, calls `prepare` while it waits for its client, and runs both to their ends.
    pub fn run_after(stage: &mut Stage, program: &str, words: &[&str], prepare: impl FnOnce(&mut Stage)) -> Self {
        let waiting = Waiting::new(stage, program, words, &[]);
        prepare(stage);
        Self::finish(waiting.connect(stage, &[]))
    }

    fn finish(Started { server, client, what }: Started) -> Self {
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

/// A server that waits for its client.
struct Waiting {
    server: Proc,
    program: String,
    /// The words of the client.
    words: Vec<String>,
}

impl Waiting {
    fn new(stage: &Stage, program: &str, words: &[&str], variables: &[(&str, &str)]) -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let port = 18_500 + NEXT.fetch_add(1, Ordering::Relaxed); // Another for each: a closed one may be busy for a minute.
        let (address, port_word) = (stage.address(), port.to_string());
        let words = [&["-p", port_word.as_str()], words].concat();
        let mut server = start(stage, stage.server(), program, &words, variables);
        stage.server().wait_for_listener(port, &mut server);
        let words = words.into_iter().chain([address.as_str()]).map(str::to_owned).collect();
        Self { server, program: program.to_owned(), words }
    }

    fn connect(self, stage: &Stage, variables: &[(&str, &str)]) -> Started {
        let Self { server, program, words } = self;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let client = start(stage, stage.client(), &program, &words, variables);
        Started { server, client, what: format!("{program} {words:?} {variables:?}") }
    }
}

impl Started {
    /// Starts a program with the first of these lists of variables, and its client with the second one.
    pub fn new(stage: &Stage, program: &str, words: &[&str], variables: [&[(&str, &str)]; 2]) -> Self {
        Waiting::new(stage, program, words, variables[0]).connect(stage, variables[1])
    }
}

fn start(stage: &Stage, container: &Container, program: &str, words: &[&str], variables: &[(&str, &str)]) -> Proc {
    let launch = stage.launch(container, program, words, variables);
    launch.spawn().unwrap_or_else(|error| panic!("{program} {words:?} {variables:?}: {error}"))
}
