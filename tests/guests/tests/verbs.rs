//! Unmodified RDMA programs between two programs of one guest, and between two guests: pingpongs, perftest and UCX on the virtual device.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

use isthmus_guests_tests::{Extra, Guest, GuestKit, GuestLab, Monitors, TwoGuests, timeout};
use isthmus_testbed::{Launch, Sandbox, Scratch, binary, eventually_some, link_library};
use serde_json::Value;

const PROGRAMS: [&str; 6] = [
    "/usr/bin/ibv_rc_pingpong",
    "/usr/bin/ib_send_lat",
    "/usr/bin/ib_write_lat",
    "/usr/bin/ib_read_lat",
    "/usr/bin/ib_atomic_lat",
    "/usr/bin/ucx_perftest",
];

/// The module of UCX for RDMA devices, where UCX looks for it beside its libraries.
const MODULE: &str = "/usr/lib/x86_64-linux-gnu/ucx/libuct_ib.so.0";

/// The plug-in of libibverbs and the library that programs preload: their packages, and their files as built for installation.
const LIBRARIES: [(&str, &str, &str); 2] = [
    ("abi/ibverbs", "libisthmus-rdmav34.so", "libisthmus-rdmav34.so"),
    ("abi/ibverbs-preload", "libisthmus-verbs.so", "libisthmus-verbs.so.0"),
];

/// Allows no other transport than those of the device.
const UCX: &str = "UCX_TLS=rc_verbs,ud_verbs UCX_LOG_LEVEL=info UCX_MODULE_DIR=/lib/ucx";

/// Returns the content that a guest needs for RDMA programs. The error says what is missing.
fn rdma(folder: &Path) -> Result<Extra, String> {
    if let Some(missing) = PROGRAMS.into_iter().chain([MODULE]).find(|file| !Path::new(file).is_file()) {
        return Err(format!("there is no {missing} (scripts/setup)"));
    }
    let built = std::env::var_os("ISTHMUS_BIN_DIR").map(PathBuf::from);
    let library = |(package, library, file): (&str, &str, &str)| {
        let path = built.as_ref().map_or_else(
            || {
                link_library(package, library, folder);
                folder.join(library)
            },
            |built| built.join(file),
        );
        (format!("lib/{library}"), path)
    };
    let module = ("lib/ucx/libuct_ib.so.0".to_owned(), PathBuf::from(MODULE));
    Ok(Extra {
        programs: PROGRAMS.map(PathBuf::from).into(),
        libraries: LIBRARIES.map(library).into_iter().chain([module]).collect(),
        files: vec![("etc/hosts".to_owned(), b"127.0.0.1 localhost\n".to_vec())],
    })
}

/// Makes the files of the device in a guest.
fn prepare(guest: &mut Guest) {
    guest.run("by window; mkdir -p /dev/shm /dev/infiniband; ln -s /dev/null /dev/infiniband/uverbs0");
    guest.run("ln -s /dev/full /dev/infiniband/rdma_cm");
    guest.run("isthmus verbs enable");
}

/// Two guests, in which the device can be opened.
struct Testbed {
    hosted: TwoGuests,
    next_port: u16,
}

impl Testbed {
    fn new(monitors: Monitors) -> Option<Self> {
        let scratch = Scratch::new().unwrap();
        let started =
            rdma(scratch.path()).and_then(|extra| TwoGuests::start_as(&GuestKit::find()?, (monitors, 32), &extra));
        let mut hosted = match started {
            Ok(hosted) => hosted,
            Err(why) => {
                println!("skipped: {why}");
                return None;
            }
        };
        hosted.guests.iter_mut().for_each(prepare);
        Some(Self { hosted, next_port: 18_515 })
    }

    fn port(&mut self) -> u16 {
        self.next_port += 1;
        self.next_port
    }

    /// Runs a program in `server`, and its client in `client`. Returns the lines of the client and of the server.
    #[track_caller]
    fn pair(&mut self, (server, client): (usize, usize), program: &str) -> [Vec<String>; 2] {
        let port = self.port();
        let guests = &mut self.hosted.guests;
        guests[server].run(&format!("keep rdma isthmus run --quiet -- {program} -p {port}; listens {port} rdma"));
        let address = format!("10.86.223.{}", 1 + server);
        guests[client].start_command(&format!("isthmus run --quiet -- {program} -p {port} {address} 2>&1"));
        let done = guests[client].finish_command();
        guests[server].start_command("kept rdma");
        let served = guests[server].finish_command();
        let is_error = |line: &&String| ["ailed", "nvalid data", "ERROR"].iter().any(|word| line.contains(word));
        // UCX says so where it tries something.
        let lines = done.lines.iter().chain(&served.lines).filter(|line| !line.contains("UCX  DIAG"));
        let error = lines.into_iter().find(is_error);
        assert!((done.code, served.code, error) == (0, 0, None), "{program}: {done:#?}\n{served:#?}");
        [done.lines, served.lines]
    }

    /// Runs the pingpong, programs of perftest and tests of UCX between two guests, or two programs of one.
    fn run_all(&mut self, places: (usize, usize), perftest: &[&str], ucx: &[&str]) {
        let [client, server] = self.pair(places, "ibv_rc_pingpong -c -g 0 -n 200");
        for lines in [client, server] {
            assert!(lines.iter().any(|line| line.starts_with("200 iters in ")), "{lines:#?}");
        }
        for program in perftest {
            let (program, options) = program.split_once(' ').unwrap();
            let [client, _] = self.pair(places, &format!("{program} -F -x 0 -n 50 {options}"));
            assert!(client.iter().any(|line| line.split_whitespace().nth(1) == Some("50")), "{program}: {client:#?}");
        }
        for test in ucx {
            let [client, server] = self.pair(places, &format!("env {UCX} ucx_perftest -n 50 -w 5 -t {test}"));
            let done = client.iter().find_map(|line| line.strip_prefix("Final:")?.split_whitespace().next());
            assert_eq!(done, Some("50"), "{test}: {client:#?}");
            for lines in [client, server] {
                assert!(lines.iter().any(|line| line.contains("_verbs/isthmus0:1")), "{test}: {lines:#?}");
            }
        }
    }

    /// Returns the answer of `isthmus` on the host as JSON.
    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.hosted.isthmus(&[words, &["--json"]].concat())).unwrap()
    }

    /// Returns the answers about queue pairs that satisfy a condition, once there are two.
    #[track_caller]
    fn answers(&self, is_wanted: impl Fn(&Value) -> bool) -> [Value; 2] {
        let answers = eventually_some(timeout(), || {
            let list = self.json(&["verbs", "list"]);
            let firsts =
                list["domains"].as_array().unwrap().iter().map(|domain| domain["blocks"][0]["first"].to_string());
            let answers = firsts.map(|first| self.json(&["why", &format!("qp:{first}")]));
            answers.filter(&is_wanted).collect::<Vec<_>>().try_into().ok()
        });
        answers.unwrap_or_else(|late| panic!("{late}: {}", self.json(&["verbs", "list"])))
    }
}

#[test]
fn rdma_programs_run_in_one_guest_and_between_two() {
    let Some(mut testbed) = Testbed::new(Monitors::Both) else { return };
    // Each guest has GIDs and a node GUID of its own.
    let listed = [0, 1].map(|guest: usize| {
        let text = testbed.hosted.guests[guest].run("isthmus verbs list --json").join("\n");
        serde_json::from_str::<Value>(&text).unwrap()
    });
    for (guest, report) in (1..).zip(&listed) {
        let own = format!("0000:0000:0000:0000:0000:ffff:0a56:df{guest:02x}");
        let gids: Vec<_> = report["gids"].as_array().unwrap().iter().map(|row| row["gid"].as_str().unwrap()).collect();
        assert!(gids.contains(&own.as_str()) && report["domains"].as_array().unwrap().is_empty(), "{report:#?}");
    }
    let host = testbed.json(&["verbs", "list"]);
    assert!(
        listed[0]["node_guid"] != listed[1]["node_guid"]
            && listed.iter().all(|of| of["node_guid"] != host["node_guid"])
    );
    testbed.run_all((0, 0), &["ib_send_lat -s 65536", "ib_write_lat -s 64"], &["tag_lat"]);
    let perftest = [
        "ib_send_lat -s 65536",
        "ib_send_lat -c UD -s 2048",
        "ib_write_lat -s 4096",
        "ib_read_lat -s 65536",
        "ib_atomic_lat -A FETCH_AND_ADD",
    ];
    testbed.run_all((0, 1), &perftest, &["tag_bw -s 65536", "ucp_put_lat"]);

    // A program of each guest, with the channel between them in the pair window.
    let port = testbed.port();
    let program = "ib_write_lat -F -x 0 -s 64 -n 5000000";
    testbed.hosted.guests[0].run(&format!("keep rdma isthmus run --quiet -- {program} -p {port}; listens {port} rdma"));
    testbed.hosted.guests[1].run(&format!("keep rdma isthmus run --quiet -- {program} -p {port} 10.86.223.1"));
    let answers = testbed.answers(|answer| {
        let directions = answer["peers"][0]["path"]["channel"]["directions"].as_array();
        directions.is_some_and(|rows| rows.iter().any(|row| row["served"].as_u64() > Some(50)))
    });
    for (answer, other) in answers.iter().zip(answers.iter().rev()) {
        let peer = &answer["peers"][0];
        assert_eq!((&peer["path"]["path"], &peer["refused"]), (&"channel".into(), &Value::Null));
        assert_eq!(peer["program"]["domain"], other["holder"]["domain"]);
    }
    // A guest sees its own end.
    let number = answers[0]["number"].as_u64().unwrap();
    for guest in &mut testbed.hosted.guests {
        let said = guest.run(&format!("isthmus why qp:{number}")).join("\n");
        assert!(said.contains(" performed them, ") && said.contains("by a channel"), "{said}");
    }
    for guest in &mut testbed.hosted.guests {
        guest.start_command("kill $(cat /tmp/kept.rdma.pid); kept rdma");
        guest.finish_command();
        assert_eq!(guest.complaints(), [""; 0]);
    }
}

#[test]
fn rdma_programs_of_guests_without_a_pair_window_use_the_daemon_path() {
    let Some(mut testbed) = Testbed::new(Monitors::None) else { return };
    testbed.run_all((0, 1), &["ib_write_lat -s 4096"], &[]);
}

/// A program of a guest with one of its host, in the network namespace of the host's daemon.
#[test]
fn rdma_programs_of_a_guest_and_its_host_use_the_daemon_path() {
    if !Sandbox::is_available() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let started = rdma(scratch.path()).and_then(|extra| {
        let libraries = extra.libraries.clone();
        Ok((GuestLab::start(&GuestKit::find()?, 1, 1, &extra)?, libraries))
    });
    let (mut lab, libraries) = match started {
        Ok(started) => started,
        Err(why) => return println!("skipped: {why}"),
    };
    let host = lab.local.host().clone();
    let on_host = |launch: Launch, words: &[&str]| {
        let finished = launch.host(&host).args(words).spawn().unwrap().finish(timeout()).unwrap();
        finished.expect_success()
    };
    on_host(Launch::new("/usr/sbin/ip"), &["addr", "add", "10.86.223.100/24", "dev", "br0"]);
    let isthmus = binary("isthmus", "isthmus").unwrap();
    on_host(lab.local.daemon.launch_on_host(isthmus), &["verbs", "enable"]);
    prepare(&mut lab.guests[0]);

    let folder = scratch.join("host");
    std::fs::create_dir(&folder).unwrap();
    for (inside, path) in &libraries {
        std::fs::copy(path, folder.join(Path::new(inside).file_name().unwrap())).unwrap();
    }
    let sandbox = Sandbox::new().host_network().bind(&folder, "/verbs");
    let sandbox =
        sandbox.symlink("/dev/null", "/dev/infiniband/uverbs0").symlink("/dev/full", "/dev/infiniband/rdma_cm");
    for (port, program) in (18_600..)
        .zip([&["ibv_rc_pingpong", "-c", "-g", "0", "-n", "200"][..], &["ib_write_lat", "-F", "-x", "0", "-n", "50"]])
    {
        let (program, words, port) = (program[0], &program[1..], format!("{port}"));
        let words = [words, &["-p", &port]].concat();
        let served = format!("{program} {}", words.join(" "));
        lab.guests[0].run(&format!("keep rdma isthmus run --quiet -- {served}; listens {port} rdma"));
        let launch = lab.local.daemon.launch_in_sandbox(sandbox.clone(), format!("/usr/bin/{program}"));
        let launch = launch.env("SYSFS_PATH", "/run/isthmus/verbs/sys").env("IBV_DRIVERS", "/verbs/libisthmus");
        let lines = on_host(launch, &[&words[..], &["10.86.223.1"]].concat());
        let is_done = |line: &String| line.starts_with("200 iters in ") || line.split_whitespace().nth(1) == Some("50");
        assert!(lines.iter().any(is_done), "{lines:#?}");
        lab.guests[0].run("kept rdma");
    }
}
