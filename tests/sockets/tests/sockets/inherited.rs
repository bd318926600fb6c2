//! Servers with a listening socket that another process has made, or that is older than the daemon.
//!
//! The daemon has no records of connections here. So a client finds a server by its listed address alone.

use std::net::TcpListener;
use std::path::PathBuf;

use isthmus_sockets_tests::{Stage, timeout};
use isthmus_testbed::{Proc, eventually};

const PYTHON: &str = "/usr/bin/python3";

/// A server that echoes lines, each connection on a thread. The first argument says how it gets its listening socket.
const SERVER: &str = r#"
import array, os, socket, subprocess, sys, threading

def serve(listener):
    print("port", listener.getsockname()[1], flush=True)
    print("pid", os.getpid(), flush=True)
    def echo(connection):
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.close()
    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()

def listener():
    made = socket.create_server(("127.0.0.1", 0))
    made.set_inheritable(True)
    return made

SCRIPT = sys.argv[1]
how = sys.argv[2]
match how:
    case "serve":
        serve(listener())
    case "executed":
        made = str(listener().detach())
        os.execv(sys.executable, [sys.executable, "-c", SCRIPT, SCRIPT, "descriptor", made])
    case "descriptor":
        serve(socket.socket(fileno=int(sys.argv[3])))
    case "daemonized":
        made = listener()
        if child := os.fork():
            print(f"port {made.getsockname()[1]}\npid {child}", flush=True)
            os._exit(0)
        os.setsid()
        sys.stdout = open(os.devnull, "w") # Its lines would get between those of its parent.
        serve(made)
    case "passed":
        # As asyncio's servers with workers: the worker calls `listen` again.
        ours, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        worker = subprocess.Popen([sys.executable, "-c", SCRIPT, SCRIPT, "worker", str(theirs.fileno())],
                                  pass_fds=[theirs.fileno()])
        made = listener()
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [made.fileno()]))])
        made.close()
        worker.wait()
    case "worker":
        _, rights, _, _ = socket.socket(fileno=int(sys.argv[3])).recvmsg(1, socket.CMSG_SPACE(4))
        made = socket.socket(fileno=array.array("i", rights[0][2])[0])
        made.listen(100)
        serve(made)
"#;

/// A client that checks what comes back: some rounds, or rounds without end.
const CLIENT: &str = r#"
import itertools, random, socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for number in itertools.count() if sys.argv[2] == "endless" else range(int(sys.argv[2])):
    line = random.randbytes(random.choice([1, 100, 5000]))
    connection.sendall(line)
    got = b""
    while len(got) < len(line):
        part = connection.recv(65536)
        assert part, "closed"
        got += part
    assert got == line
    if number % 1000 == 0:
        print("at", number, flush=True)
print("done", flush=True)
"#;

/// A server, and the process that serves, which is not always the one that was started.
pub(crate) struct Server {
    pub(crate) port: String,
    serving: rustix::process::Pid,
    pub(crate) started: Proc,
}

impl Server {
    pub(crate) fn start(stage: &Stage, how: &str) -> Self {
        let launch = stage.launch(PYTHON).args(["-c", SERVER, SERVER]);
        let launch = match how {
            // As systemd does it.
            "activated" => {
                let made = TcpListener::bind("127.0.0.1:0").unwrap();
                launch.args(["descriptor", "3"]).listen_fds(vec![("web".to_owned(), made.into())])
            }
            _ => launch.arg(how),
        };
        let mut started = launch.spawn().unwrap_or_else(|error| panic!("{error}"));
        let mut said = |what: &str| started.wait_prefix(what, timeout()).unwrap_or_else(|error| panic!("{error}"));
        let (port, serving) = (said("port "), said("pid "));
        let serving = serving.parse().unwrap_or_else(|error| panic!("{serving:?}: {error}"));
        Self { port, serving: rustix::process::Pid::from_raw(serving).unwrap(), started }
    }

    fn end(self) {
        rustix::process::kill_process(self.serving, rustix::process::Signal::KILL).unwrap();
        self.started.finish(timeout()).unwrap_or_else(|error| panic!("{error}"));
    }
}

pub(crate) fn client(stage: &Stage, port: &str, rounds: &str) -> Proc {
    let launch = stage.launch(PYTHON).args(["-c", CLIENT, port, rounds]);
    launch.spawn().unwrap_or_else(|error| panic!("{error}"))
}

/// The first connections may stay on TCP: one tells the server's library of the socket, and the library looks for a daemon once a second.
/// The next one becomes a stream.
fn second_connection_becomes_a_stream(stage: &Stage, server: Server) {
    let is_listed = || {
        let first = client(stage, &server.port, "100").finish(timeout());
        first.unwrap_or_else(|error| panic!("{error}")).expect_success();
        stage.streams()["listening"].as_u64() == Some(1)
    };
    eventually(timeout(), is_listed).unwrap_or_else(|error| panic!("{error}: {:#}", stage.streams()));
    let mut second = client(stage, &server.port, "endless");
    stage.wait_for_stream(&server.port);
    for _ in 0..3 {
        second.wait_prefix("at ", timeout()).unwrap_or_else(|error| panic!("{error}"));
    }
    second.kill().unwrap();
    server.end();
}

fn without_records() -> Option<Stage> {
    if !PathBuf::from(PYTHON).exists() {
        eprintln!("skipped: {PYTHON} is not installed (scripts/setup installs it)");
        return None;
    }
    Stage::library_with("[sockets]\nconnection_records = false\n")
}

#[test]
fn listening_socket_of_another_process() {
    for how in ["serve", "executed", "activated", "daemonized", "passed"] {
        eprintln!("{how}:");
        let Some(stage) = without_records() else { return };
        let server = Server::start(&stage, how);
        second_connection_becomes_a_stream(&stage, server);
    }
}

#[test]
fn server_that_is_older_than_its_daemon() {
    let Some(mut stage) = without_records() else { return };
    let daemon = stage.daemon().unwrap().proc();
    daemon.kill().unwrap();
    daemon.wait(timeout()).unwrap();
    let server = Server::start(&stage, "serve");
    client(&stage, &server.port, "100").finish(timeout()).unwrap_or_else(|error| panic!("{error}")).expect_success();
    stage.daemon().unwrap().start_again(timeout()).unwrap_or_else(|error| panic!("{error}"));
    second_connection_becomes_a_stream(&stage, server);
}
