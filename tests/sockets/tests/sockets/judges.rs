//! Programs of other people, each of another kind, in short forms: on the kernel alone, and with the library from the first byte.
//!
//! ```text
//! postgresql  a process for each connection, forked, and signals to wake the others
//! haproxy     threads with event sets, and connections of health checks that end by a reset
//! nginx       a proxy: connections that are used again, a websocket, a long download
//! asyncio     an event loop of a garbage-collected language
//! openssh     closes all descriptors, executes itself, and hands the connection from process to process
//! memcached   a thread for each event set, and many connections
//! ```
//!
//! The programs' own numbers say that nothing went wrong. At a moment at which all connections are open and quiet, the daemon's report says
//! how many of them are streams, and which share of their bytes went through shared memory.

use std::io::{Read, Write};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;

use isthmus_sockets_tests::{Container, Stage, timeout};
use isthmus_testbed::{Finished, Launch, Proc, eventually};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use crate::programs::{Programs, content, on_both_stages, stop};

const PYTHON: &str = "/usr/bin/python3.11";
const REDIS: &str = "/usr/bin/redis-server";

/// The share of bytes that goes by shared memory at least, of 100, if the messages fit into the memory that a stream has from the start. The
/// first ones may go by TCP, until both ends have the memory.
const SHARE_OF_SHORT: u64 = 75;

/// The share of long messages: if the memory is full and their receiver is late, the next bytes go by TCP.
const SHARE_OF_LONG: u64 = 1;

impl Programs {
    /// The programs of a judge: with the library from the first byte.
    fn judge(stage: Stage, needed: &[&str]) -> Option<Self> {
        Some(Self::new(stage, needed)?.env("ISTHMUS_SOCKETS_AFTER", "0"))
    }

    /// Starts a client that waits for the end of its standard input when it is done, and waits until it has printed `done`.
    #[track_caller]
    fn held(&self, program: &str, words: &[&str]) -> Proc {
        let client = self.launch(program, words).with_stdin().spawn();
        let mut client = client.unwrap_or_else(|error| panic!("{error}"));
        client.wait_line("done", timeout()).unwrap_or_else(|error| panic!("{program} {words:?}: {error}"));
        client
    }

    /// Asserts that at least this many connections with a server at this port are streams, and that shared memory took at least this share of
    /// their bytes, of 100. On the kernel alone, there is nothing to assert.
    #[track_caller]
    fn expect_share(&self, port: u16, count: usize, share: u64) {
        if !self.stage.has_library() {
            return;
        }
        let report = self.stage.streams();
        let port = format!(":{port}");
        let is_here = |stream: &&Value| stream["acceptor"]["address"].as_str().is_some_and(|at| at.ends_with(&port));
        let streams: Vec<&Value> = report["streams"].as_array().unwrap().iter().filter(is_here).collect();
        let bytes = |name: &str| {
            let ends = streams.iter().flat_map(|stream| [&stream["connector"], &stream["acceptor"]]);
            ends.filter_map(|end| end[name].as_u64()).sum::<u64>()
        };
        let (shared, tcp) = (bytes("shared_bytes"), bytes("tcp_bytes"));
        eprintln!("{port}: {} streams, bytes: {shared} shared, {tcp} by TCP", streams.len());
        assert!(streams.len() >= count, "{} streams of {count} at {port}: {report:#}", streams.len());
        assert!(
            shared > 0 && shared * 100 >= (shared + tcp) * share,
            "{port}: bytes: {shared} shared, {tcp} by TCP: {report:#}"
        );
    }
}

/// Ends the input of a client, which then ends its connections and itself.
#[track_caller]
fn release(client: Proc) {
    client.finish(timeout()).map(Finished::expect_success).unwrap_or_else(|error| panic!("{error}"));
}

/// The user of PostgreSQL, which root may not start.
const NOBODY: u32 = 65534;

/// The lines of a session, and those that it prints.
const SESSION: &str = include_str!("judges/session.sql");

const PRINTED: &str = include_str!("judges/session.txt");

/// Transactions of clients that stay connected: after its last one, each waits for a lock.
const TRANSACTIONS: &str = include_str!("judges/transactions.sql");

/// The programs of PostgreSQL, without root: a server in namespaces of its own, which its System V segment ends with.
struct Postgres {
    programs: Programs,
    server: Proc,
}

impl Postgres {
    const TOOLS: [&str; 4] = [
        "/usr/lib/postgresql/15/bin/initdb",
        "/usr/lib/postgresql/15/bin/postgres",
        "/usr/lib/postgresql/15/bin/psql",
        "/usr/lib/postgresql/15/bin/pgbench",
    ];
    const UNSHARE: &str = "/usr/bin/unshare";
    const SETPRIV: &str = "/usr/bin/setpriv";
    const OWNER: [&str; 4] = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];

    fn start(programs: Programs) -> Self {
        let folder = programs.folder.dir("data").unwrap();
        chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
        let folder = folder.to_string_lossy();
        let [initdb, postgres, ..] = Self::TOOLS;
        let alone = ["--ipc", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--", Self::SETPRIV];
        let alone = [&alone[..], &Self::OWNER].concat();
        let words = [initdb, "-D", &folder, "-A", "trust", "-U", "me", "-N", "--locale=C"];
        programs.run(Self::UNSHARE, &[&alone[..], &words].concat());
        let listen = format!("listen_addresses={}", programs.address);
        let mut words = [&alone[..], &[postgres, "-D", &folder]].concat();
        for setting in [
            &listen,
            "port=7000",
            "unix_socket_directories=",
            "fsync=off",
            "dynamic_shared_memory_type=mmap",
            "timezone=UTC",
        ] {
            words.extend(["-c", setting]);
        }
        let server = programs.start(Self::UNSHARE, &words);
        let is_ready = || server.stderr().contains("ready to accept connections");
        eventually(timeout(), is_ready).unwrap_or_else(|error| panic!("{error}\n{}", server.stderr()));
        Self { programs, server }
    }

    fn client(&self, program: &str, words: &[&str]) -> Launch {
        let place = ["-h", &self.programs.address, "-p", "7000", "-U", "me"];
        let all = [&Self::OWNER[..], &[program], &place, words, &["postgres"]].concat();
        self.programs.launch(Self::SETPRIV, &all)
    }

    /// Runs pgbench.
    fn bench(&self, words: &[&str]) -> Proc {
        self.client(Self::TOOLS[3], words).spawn().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits for the end of a pgbench that had this many transactions.
    #[track_caller]
    fn expect_done(&self, bench: Proc, count: usize) {
        let lines = bench.finish(timeout()).map(Finished::expect_success);
        let lines = lines.unwrap_or_else(|error| panic!("{error}\n{}", self.server.stderr()));
        let wanted = format!("number of transactions actually processed: {count}/{count}");
        assert!(lines.contains(&wanted), "{wanted}: {lines:#?}");
    }

    /// Returns the next line of a session.
    #[track_caller]
    fn line(&self, session: &mut Proc) -> String {
        session.line(timeout()).unwrap_or_else(|error| panic!("{error}\n{}", self.server.stderr()))
    }

    /// Returns the line that answers a question.
    #[track_caller]
    fn ask(&self, session: &mut Proc, question: &str) -> String {
        session.send_line(question).unwrap();
        self.line(session)
    }

    /// Starts a session, and checks what SQL prints.
    fn session(&self) -> Proc {
        let session = self.client(Self::TOOLS[2], &["-X", "-q", "-A", "-t"]).with_stdin().spawn();
        let mut session = session.unwrap_or_else(|error| panic!("{error}"));
        SESSION.lines().for_each(|line| session.send_line(line).unwrap());
        for wanted in PRINTED.lines() {
            assert_eq!(self.line(&mut session), wanted, "right: the next line of SQL");
        }
        let heard = self.ask(&mut session, "listen news; notify news, 'heard';");
        assert!(heard.starts_with("Asynchronous notification \"news\" with payload \"heard\""), "{heard}");
        // On a busy machine, the server may take the end of the time for a request of the user.
        for wanted in ["division by zero", "canceling statement due to "] {
            assert!(session.stderr().contains(wanted), "{wanted}: {}", session.stderr());
        }
        self.programs.expect_share(7000, 1, SHARE_OF_LONG);
        session
    }

    /// Ends the server, which waits for the end of its clients.
    fn stop(self) {
        let leader = Pid::from_raw(Container::pid(&self.server)).unwrap();
        pidfd_open(leader, PidfdFlags::empty()).and_then(|life| pidfd_send_signal(life, Signal::TERM)).unwrap();
        let ended = self.server.finish(timeout()).unwrap_or_else(|error| panic!("{error}"));
        for fault in ["terminated by signal", "PANIC", "FATAL", "could not receive", "could not send"] {
            assert!(!ended.stderr.contains(fault), "{fault}\n{}", ended.stderr);
        }
        ended.expect_success();
    }
}

/// A session of SQL, clients that connect for each transaction, and clients that stay.
fn postgresql(stage: Stage) {
    if !geteuid().is_root() {
        return eprintln!("skipped: a server of another user, in namespaces of its own, needs root");
    }
    let stage = if stage.has_library() { Stage::library_for_all_users().unwrap() } else { stage };
    let Some(programs) = Programs::judge(stage, &Postgres::TOOLS) else { return };
    let programs = programs.shared();
    let script = programs.write("transactions", TRANSACTIONS);
    let all = Postgres::start(programs);
    let mut session = all.session();

    all.bench(&["-i", "-q"]).finish(timeout()).map(Finished::expect_success).unwrap();
    let paired = || all.programs.stage.streams()["paired"].as_u64();
    let before = paired();
    all.expect_done(all.bench(&["-n", "-C", "-c", "4", "-j", "2", "-t", "50"]), 4 * 50);
    let count = paired().zip(before).map(|(after, before)| after - before);
    eprintln!("streams of 200 short connections: {count:?}");
    assert_ne!(count, Some(0), "right: the number of streams of 200 connections");

    assert_eq!(all.ask(&mut session, "select 'locked' from pg_advisory_lock(7);"), "locked");
    let clients = all.bench(&["-n", "-c", "4", "-t", "250", "-D", "done=0", "-M", "prepared", "-f", &script]);
    let count = "select count(*) from pg_locks where locktype = 'advisory' and not granted;";
    let all_wait = || all.ask(&mut session, count) == "4";
    eventually(timeout(), all_wait).unwrap_or_else(|error| panic!("{error}\n{}", all.server.stderr()));
    all.programs.expect_share(7000, 1 + 4, SHARE_OF_LONG);
    assert_eq!(all.ask(&mut session, "select pg_advisory_unlock(7);"), "t");
    all.expect_done(clients, 4 * 250);
    let sums = "select (select sum(delta) from pgbench_history) = (select sum(abalance) from pgbench_accounts), \
                (select count(*) from pgbench_history);";
    assert_eq!(all.ask(&mut session, sums), "t|1200");
    release(session);
    all.stop();
}

/// A client of Redis with many connections, which checks every value.
const REDIS_CLIENT: &str = include_str!("judges/redis.py");

/// Starts a server of Redis without files, and waits until it is ready.
fn start_redis(programs: &Programs, port: &str) -> Proc {
    let words = ["--bind", &programs.address, "--port", port, "--save", "", "--dir", &programs.path("")];
    let mut server = programs.start(REDIS, &words);
    let ready = |line: &str| line.contains("Ready to accept connections");
    server.find_line(timeout(), "a server that is ready", ready).unwrap_or_else(|error| panic!("{error}"));
    server
}

/// A proxy with four threads in front of two servers. It checks their health all the time.
fn haproxy(stage: Stage) {
    let [haproxy, cli] = ["/usr/sbin/haproxy", "/usr/bin/redis-cli"];
    let Some(programs) = Programs::judge(stage, &[haproxy, REDIS, cli, PYTHON]) else { return };
    let address = &programs.address;
    let servers = ["7001", "7002"].map(|port| start_redis(&programs, port));
    let statistics = programs.path("statistics");
    let config = programs.write(
        "haproxy.cfg",
        format!(
            "global\n nbthread 4\n stats socket {statistics} level admin\n\
             defaults\n mode tcp\n timeout connect 30s\n timeout client 60s\n timeout server 60s\n timeout check 30s\n\
             frontend front\n bind {address}:7000\n default_backend back\n\
             backend back\n balance roundrobin\n option tcp-check\n tcp-check send PING\\r\\n\n tcp-check expect string +PONG\n\
             default-server check inter 20ms fall 1 rise 1\n server one {address}:7001\n server two {address}:7002\n"
        ),
    );
    let proxy = programs.start(haproxy, &["-db", "-f", &config]);
    let report = || {
        let mut report = String::new();
        let mut socket = UnixStream::connect(&statistics)?;
        socket.write_all(b"show stat\n")?;
        socket.read_to_string(&mut report).map(|_| report)
    };
    // It has its socket when it serves.
    eventually(timeout(), || report().is_ok()).unwrap_or_else(|error| panic!("{error}\n{}", proxy.stderr()));
    let connections = |port: &str| -> u64 {
        let lines = programs.run(cli, &["-h", address, "-p", port, "info", "stats"]);
        lines.iter().find_map(|line| line.trim().strip_prefix("total_connections_received:")?.parse().ok()).unwrap()
    };
    let wait_for_checks = || {
        for port in ["7001", "7002"] {
            let before = connections(port);
            let checked = eventually(timeout(), || connections(port) >= before + 20);
            checked.unwrap_or_else(|error| panic!("{error}\n{}", proxy.stderr()));
        }
    };
    wait_for_checks();
    let client = programs.write("client.py", REDIS_CLIENT);
    let client = programs.held(PYTHON, &[&client, address, "7000"]);
    wait_for_checks();
    programs.expect_share(7000, 40, SHARE_OF_SHORT);
    for port in [7001, 7002] {
        programs.expect_share(port, 20, SHARE_OF_SHORT);
    }
    release(client);
    let report = report().unwrap();
    let mut lines = report.lines().map(|line| line.trim_start_matches("# ").split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let servers_of_report: Vec<_> =
        lines.filter(|line| line[0] == "back" && ["one", "two"].contains(&line[1])).collect();
    assert_eq!(servers_of_report.len(), 2, "{report}");
    for server in servers_of_report {
        // The star says that the next check is under way.
        let value = |name| server[head.iter().position(|column| *column == name).unwrap()].trim_start_matches("* ");
        assert_eq!(
            ["status", "check_status", "chkfail", "chkdown", "econ", "eresp"].map(value),
            ["UP", "L7OK", "0", "0", "0", "0"],
            "{report}\n{}",
            proxy.stderr()
        );
    }
    stop(proxy);
    for server in servers {
        server.kill().unwrap();
    }
}

/// A server of a websocket that sends each frame back, and its client, which checks it. Standard Python has all that they need.
const WEBSOCKET: &str = include_str!("judges/websocket.py");

/// A proxy with connections that it uses again, a websocket that stays, and a long download.
fn nginx_as_proxy(stage: Stage) {
    let [nginx, curl, ab] = ["/usr/sbin/nginx", "/usr/bin/curl", "/usr/bin/ab"];
    let Some(programs) = Programs::judge(stage, &[nginx, curl, ab, PYTHON]) else { return };
    let file = content(50 << 20);
    programs.write("large", &file);
    programs.write("small", &file[..4096]);
    let (folder, errors, address) = (programs.path(""), programs.path("errors"), &programs.address);
    let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]; // The default folders are those of root.
    let temporary: String = kinds.iter().map(|kind| format!("{kind}_temp_path {folder}/{kind}; ")).collect();
    let config = |name: &str, servers: &str| {
        programs.write(
            name,
            format!(
                "user root; daemon off; worker_processes 2; pid {folder}/{name}.pid; error_log {errors} notice;\n\
                 events {{ worker_connections 512; }}\n\
                 http {{ access_log off; sendfile on; keepalive_requests 1000000; {temporary}\n{servers} }}\n"
            ),
        )
    };
    let server = config("server.conf", &format!("server {{ listen {address}:7001; root {folder}; }}"));
    let proxy = config(
        "proxy.conf",
        &format!(
            "upstream files {{ server {address}:7001; keepalive 32; keepalive_requests 1000000; }}\n\
             server {{ listen {address}:7000; proxy_http_version 1.1;\n\
             location / {{ proxy_pass http://files; proxy_set_header Connection ''; }}\n\
             location /socket {{ proxy_pass http://{address}:7002; proxy_set_header Upgrade $http_upgrade; \
             proxy_set_header Connection upgrade; }} }}\n"
        ),
    );
    let websocket = programs.write("websocket.py", WEBSOCKET);
    let echo = programs.held(PYTHON, &[&websocket, "server", address, "7002"]);
    let [server, proxy] = [server, proxy].map(|config| programs.start(nginx, &["-e", &errors, "-c", &config]));
    [7000, 7001].into_iter().for_each(|port| programs.wait_for_port(port));

    let talk = programs.held(PYTHON, &[&websocket, "client", address, "7000"]);
    programs.expect_share(7002, 1, SHARE_OF_LONG);
    programs.expect_share(7000, 1, SHARE_OF_LONG);
    let url = |name: &str| format!("http://{address}:7000/{name}");
    let copies = ["first", "second"].map(|name| programs.path(name));
    for copy in &copies {
        programs.run(curl, &["-s", "-S", "-f", "-o", copy, &url("large")]);
        assert!(std::fs::read(copy).unwrap() == file, "the download differs");
    }
    let lines = programs.run(ab, &["-k", "-q", "-n", "5000", "-c", "20", &url("small")]);
    for wanted in ["Complete requests: 5000", "Failed requests: 0", "Keep-Alive requests: 5000"] {
        let words = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(lines.iter().map(words).any(|line| line == wanted), "{wanted}: {lines:#?}");
    }
    programs.expect_share(7001, 1, SHARE_OF_LONG);
    release(talk);
    stop(proxy);
    stop(server);
    echo.kill().unwrap();
    let log = std::fs::read_to_string(&errors).unwrap();
    assert!(!["[error]", "[alert]", "[crit]", "[emerg]"].iter().any(|fault| log.contains(fault)), "{log}");
}

/// A server that sends everything back, and fifty clients in one loop.
const ASYNCIO: &str = include_str!("judges/asyncio.py");

fn asyncio(stage: Stage) {
    let Some(programs) = Programs::judge(stage, &[PYTHON]) else { return };
    let script = programs.write("loop.py", ASYNCIO);
    let server = programs.held(PYTHON, &[&script, "server", &programs.address]);
    let clients = programs.held(PYTHON, &[&script, "clients", &programs.address]);
    programs.expect_share(7000, 50, SHARE_OF_SHORT);
    release(clients);
    assert_eq!(server.stderr(), "", "right: a server without errors");
    server.kill().unwrap();
}

/// Copies over a connection of their own and over one that stays, and connections that are forwarded. The server executes itself for each
/// connection, or only forks: its own connections stay on TCP. Those that it forwards do not.
fn openssh(stage: Stage) {
    let [sshd, keygen, ssh, scp] = ["/usr/sbin/sshd", "/usr/bin/ssh-keygen", "/usr/bin/ssh", "/usr/bin/scp"];
    const OWN_RUN: &str = "mount -n -t tmpfs none /run && mkdir -m 755 /run/sshd && exec \"$@\"";
    if !geteuid().is_root() {
        return eprintln!("skipped: sshd needs root");
    }
    if std::fs::read_to_string("/etc/shadow").is_ok_and(|users| users.starts_with("root:!")) {
        return eprintln!("skipped: the account of root is locked");
    }
    let Some(programs) = Programs::judge(stage, &[sshd, keygen, ssh, scp, REDIS, PYTHON]) else { return };
    let address = &programs.address;
    let file = content(64 << 20);
    let original = programs.write("original", &file);
    let [host_key, key] = ["host", "user"].map(|name| programs.path(name));
    for key in [&host_key, &key] {
        programs.run(keygen, &["-q", "-t", "ed25519", "-N", "", "-f", key]);
    }
    let public = std::fs::read_to_string(programs.path("host.pub")).unwrap();
    let known = programs.write("known", format!("[{address}]:7000 {public}[{address}]:7001 {public}"));
    let settings = programs.write(
        "sshd_config",
        format!(
            "HostKey {host_key}\nAuthorizedKeysFile {key}.pub\nStrictModes no\nPermitRootLogin yes\nUsePAM no\n\
             PidFile none\nPrintMotd no\nPrintLastLog no\nSubsystem sftp internal-sftp\n"
        ),
    );
    let client_settings = programs.write(
        "ssh_config",
        format!("IdentityFile {key}\nIdentitiesOnly yes\nUserKnownHostsFile {known}\nBatchMode yes\nUser root\n"),
    );
    let redis = start_redis(&programs, "7004");
    let client = programs.write("client.py", REDIS_CLIENT);
    for (port, forwarded, more) in [("7000", 7002_u16, &[][..]), ("7001", 7003, &["-r"])] {
        let listen = format!("ListenAddress={address}:{port}");
        let words = ["--mount", "--", "/bin/sh", "-c", OWN_RUN, "sh", sshd, "-D", "-e", "-f", &settings, "-o", &listen];
        let server = programs.start("/usr/bin/unshare", &[&words[..], more].concat());
        let listens = || server.stderr().contains("Server listening");
        eventually(timeout(), listens).unwrap_or_else(|error| panic!("{error}\n{}", server.stderr()));
        let [copy, back] = ["copy", "back"].map(|name| programs.path(&format!("{name}{port}")));
        let remote = format!("{address}:{copy}");
        let by = ["-q", "-F", &client_settings, "-P", port];
        programs.run(scp, &[&by[..], &[&original, &remote]].concat());
        assert!(std::fs::read(&copy).unwrap() == file, "{more:?}: the copy differs\n{}", server.stderr());

        let shared = format!("ControlPath={}", programs.path(&format!("control{port}")));
        let forward = format!("{address}:{forwarded}:{address}:7004");
        let master = ["-F", &client_settings, "-p", port, "-M", "-o", &shared, "-o", "ExitOnForwardFailure=yes"];
        let master = programs.held(ssh, &[&master[..], &["-L", &forward, address, "echo done; cat"]].concat());
        programs.run(scp, &[&by[..], &["-o", &shared, &remote, &back]].concat());
        assert!(std::fs::read(&back).unwrap() == file, "{more:?}: the copy back differs\n{}", server.stderr());

        let client = programs.held(PYTHON, &[&client, address, &forwarded.to_string()]);
        programs.expect_share(forwarded, 40, SHARE_OF_SHORT);
        programs.expect_share(7004, 40, SHARE_OF_SHORT);
        release(client);
        release(master);
        stop(server);
    }
    redis.kill().unwrap();
}

/// A client of memcached with eight threads, which checks every value.
const MEMCACHED_CLIENT: &str = include_str!("judges/memcached.py");

fn memcached_with_eight_threads(stage: Stage) {
    let memcached = "/usr/bin/memcached";
    let Some(programs) = Programs::judge(stage, &[memcached, PYTHON]) else { return };
    let client = programs.write("client.py", MEMCACHED_CLIENT);
    let words = ["-u", "root", "-t", "8", "-l", &programs.address, "-p", "7000"];
    let server = programs.start(memcached, &words);
    programs.wait_for_port(7000);
    let client = programs.held(PYTHON, &[&client, &programs.address]);
    programs.expect_share(7000, 200, SHARE_OF_SHORT);
    release(client);
    stop(server);
}

on_both_stages! { postgresql haproxy nginx_as_proxy asyncio openssh memcached_with_eight_threads }
