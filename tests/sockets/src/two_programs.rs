//! Two programs that communicate: on one host, or in two containers with a wire between them.

use isthmus_netns::{Cable, Testbed, Wire};
use isthmus_testbed::Proc;

use crate::container::Container;
use crate::stage::Stage;
use crate::{build, timeout};

/// The end of a connection that a program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that accepts.
    Server,
    /// The end that connects.
    Client,
}

/// Two programs and their surroundings.
#[derive(Debug)]
pub struct TwoPrograms {
    /// The way by which they communicate.
    pub stage: Stage,
    containers: Option<Containers>,
    variables: Vec<(String, String)>,
}

#[derive(Debug)]
struct Containers {
    server: Container,
    client: Container,
    cable: Cable,
    _testbed: Testbed,
}

impl TwoPrograms {
    /// Both programs on this host.
    pub fn one_host(stage: Stage) -> Self {
        Self { stage, containers: None, variables: Vec::new() }
    }

    /// Each program in a container of its own. Returns none, with the reason on standard error, where there can be no containers.
    pub fn two_containers(stage: Stage) -> Option<Self> {
        let mut testbed = Testbed::new().map_err(|why| eprintln!("skipped: {why}")).ok()?;
        let host = |testbed: &mut Testbed, name: &str| testbed.host(name).unwrap_or_else(|error| panic!("{error}"));
        let (server, client) = (host(&mut testbed, "server"), host(&mut testbed, "client"));
        let wire = Wire { offloads: true, ..Wire::default() };
        let cable = testbed.link(&server, &client, &wire).unwrap_or_else(|error| panic!("{error}"));
        let (server, client) = (Container::new(server, &stage), Container::new(client, &stage));
        let containers = Some(Containers { server, client, cable, _testbed: testbed });
        Some(Self { stage, containers, variables: Vec::new() })
    }

    /// Sets a variable of all programs.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the address at which servers listen.
    pub fn address(&self) -> String {
        match &self.containers {
            None => "127.0.0.1".to_owned(),
            Some(containers) => containers.cable.a().v4.to_string(),
        }
    }

    /// Returns the container of an end.
    ///
    /// # Panics
    ///
    /// On one host.
    pub fn container(&self, end: End) -> &Container {
        let containers = self.containers.as_ref().expect("programs in containers");
        match end {
            End::Server => &containers.server,
            End::Client => &containers.client,
        }
    }

    /// Starts a program of `c/`.
    fn start(&self, end: End, program: &str, words: &[&str]) -> Proc {
        let program = build::program(program);
        let launch = match &self.containers {
            None => {
                let launch = self.stage.launch(program).args(words);
                self.variables.iter().fold(launch, |launch, (name, value)| launch.env(name, value))
            }
            Some(_) => self.container(end).launch(&program, words, &self.variables),
        };
        launch.spawn().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts a server and its client, each with these words behind its address.
    pub fn start_both(&self, program: &str, words: &[&str]) -> (Proc, Proc) {
        let address = self.address();
        let mut server = self.start(End::Server, program, &[&["server", &address], words].concat());
        let port = server.wait_prefix("port ", timeout()).unwrap_or_else(|error| panic!("{error}"));
        let client = self.start(End::Client, program, &[&["client", &address, &port], words].concat());
        (server, client)
    }

    /// Kills the program at an end, and not the processes around it.
    pub fn kill(&self, proc: &Proc) {
        match &self.containers {
            None => proc.kill().unwrap_or_else(|error| panic!("{error}")),
            Some(_) => Container::kill(proc),
        }
    }
}
