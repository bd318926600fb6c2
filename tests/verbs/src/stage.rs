//! A daemon with a virtual RDMA device, and the network of the containers.

use isthmus_netns::{Cable, Testbed, Wire};
use isthmus_testbed::{DaemonProcess, Finished, Launch, Sandbox, Scratch, binary};

use crate::container::Container;
use crate::{build, timeout};

const CONFIG: &str = "[daemon]\nsocket = \"{socket}\"\nruntime_dir = \"{state}\"\n";

/// The daemon and the networks of one test. (The folder goes after the daemon.)
#[derive(Debug)]
pub struct Stage {
    daemon: DaemonProcess,
    server: Container,
    client: Container,
    cable: Cable,
    _testbed: Testbed,
    _scratch: Scratch,
}

impl Stage {
    /// A daemon, and the files of its device. None, with the reason on standard error, where there can be no containers.
    pub fn new() -> Option<Self> {
        Self::with_config("")
    }

    /// [`new`](Self::new) with these lines at the end of the daemon's configuration.
    pub fn with_config(lines: &str) -> Option<Self> {
        let stage = Self::without_files(lines)?;
        stage.enable().expect_success();
        Some(stage)
    }

    /// [`with_config`](Self::with_config) before `isthmus verbs enable`.
    pub fn without_files(lines: &str) -> Option<Self> {
        if !Sandbox::is_available() {
            return None;
        }
        let mut testbed = Testbed::new().map_err(|why| eprintln!("skipped: {why}")).ok()?;
        let [machine, server, client] =
            ["machine", "server", "client"].map(|name| testbed.host(name).unwrap_or_else(|error| panic!("{error}")));
        let mut link = |a, b| testbed.link(a, b, &Wire::default()).unwrap_or_else(|error| panic!("{error}"));
        let cable = link(&server, &client);
        link(&machine, &server); // So the daemon's host has an address.
        let scratch = Scratch::shared().unwrap_or_else(|error| panic!("{error}"));
        binary("isthmusd", "isthmusd").unwrap_or_else(|error| panic!("{error}")); // Built before the time of its start runs.
        let plan = DaemonProcess::on(&scratch).host(&machine).config(&format!("{CONFIG}{lines}"));
        let daemon = plan.start(timeout()).unwrap_or_else(|error| panic!("{error}"));
        let (server, client) = (Container::new(server), Container::new(client));
        Some(Self { daemon, server, client, cable, _testbed: testbed, _scratch: scratch })
    }

    /// Runs `isthmus verbs enable` in the network of a container, because programs see the interfaces of that one.
    pub fn enable(&self) -> Finished {
        let launch = self.daemon.launch_on_host(build::isthmus()).host(self.server.host());
        finish(&launch.args(["verbs", "enable"]))
    }

    /// Runs `isthmus` on the daemon's host.
    pub fn isthmus(&self, words: &[&str]) -> Finished {
        finish(&self.daemon.launch_on_host(build::isthmus()).args(words))
    }

    /// Returns how many rows of a report are about attached domains, or channels.
    pub fn count_rows(&self, words: &[&str]) -> usize {
        let lines = self.isthmus(&[words, &["--json"]].concat()).expect_success();
        lines.join("\n").matches("\"id\"").count()
    }

    /// Returns the daemon.
    pub fn daemon(&mut self) -> &mut DaemonProcess {
        &mut self.daemon
    }

    /// Returns the container of servers, which programs that have no partner use as well.
    pub fn server(&self) -> &Container {
        &self.server
    }

    /// Returns the container of clients.
    pub fn client(&self) -> &Container {
        &self.client
    }

    /// Returns the address at which servers listen.
    pub fn address(&self) -> String {
        self.cable.a().v4.to_string()
    }

    /// Launches a program in a container, by `isthmus run`, with these variables.
    pub fn launch(&self, container: &Container, program: &str, words: &[&str], variables: &[(&str, &str)]) -> Launch {
        self.launch_as(None, container, program, words, variables)
    }

    /// [`launch`](Self::launch) as another user, as the daemon sees it.
    pub fn launch_as(
        &self,
        owner: Option<u32>,
        container: &Container,
        program: &str,
        words: &[&str],
        variables: &[(&str, &str)],
    ) -> Launch {
        let sandbox = owner.into_iter().fold(Container::sandbox(), |sandbox, owner| sandbox.owner(owner));
        let launch = self.daemon.launch_in_sandbox(sandbox, build::isthmus()).host(container.host());
        let launch = launch.args(["run", "--quiet", "--", program]).args(words);
        variables.iter().fold(launch, |launch, (name, value)| launch.env(name, value))
    }

    /// Runs a program in the server's container to its end.
    pub fn run(&self, program: &str, words: &[&str], variables: &[(&str, &str)]) -> Finished {
        finish(&self.launch(&self.server, program, words, variables))
    }
}

/// Runs a program to its end.
pub(crate) fn finish(launch: &Launch) -> Finished {
    let proc = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
    proc.finish(timeout()).unwrap_or_else(|error| panic!("{error}"))
}
