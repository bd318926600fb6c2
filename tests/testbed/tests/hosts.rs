//! Programs and daemons on hosts of a testbed: the same as elsewhere, in another network namespace.

use isthmus_netns::{Host, Testbed};
use isthmus_testbed::{DaemonProcess, Deadline, Exit, Launch, Sandbox, Scratch, View};

const PROBE: &str = env!("CARGO_BIN_EXE_isthmus-probe");

fn patience() -> Deadline {
    Deadline::secs(60)
}

fn host() -> Option<(Testbed, Host)> {
    let made = Testbed::new().and_then(|mut bed| bed.host("a").map(|host| (bed, host)));
    made.map_err(|why| eprintln!("skipped: {why}")).ok()
}

fn number(host: &Host) -> String {
    let link = host.with(|| std::fs::read_link("/proc/thread-self/ns/net")).expect("the host is there");
    link.expect("/proc is there").to_string_lossy().into_owned()
}

#[test]
fn launch_runs_on_the_host_it_is_given() {
    let Some((_bed, host)) = host() else { return };
    let tell = || Launch::new("/bin/sh").args(["-c", "readlink /proc/self/ns/net; read end"]).with_stdin();
    let ours = View::own().namespaces().unwrap()["net"].clone();
    assert_ne!(number(&host), ours);
    for (launch, expected) in [(tell(), ours), (tell().host(&host), number(&host))] {
        let mut proc = launch.spawn().unwrap();
        proc.wait_line(&expected, patience()).unwrap();
        assert_eq!(proc.view().unwrap().namespaces().unwrap()["net"], expected);
    }
}

#[test]
fn program_ends_with_its_testbed() {
    let Some((bed, host)) = host() else { return };
    let mut proc = Launch::new("/bin/sleep").arg("1000").host(&host).spawn().unwrap();
    drop(bed);
    assert_eq!(proc.wait(patience()).unwrap(), Exit::Signal(9));
    assert!(Launch::new("/bin/true").host(&host).spawn().is_err());
}

#[test]
fn sandbox_on_a_host_is_still_a_sandbox() {
    let Some((_bed, host)) = host() else { return };
    if !Sandbox::is_available() {
        return;
    }
    let finished = Sandbox::new().command(PROBE).arg("show").host(&host).spawn().unwrap().finish(patience()).unwrap();
    let lines = finished.expect_success();
    let space = lines.iter().find_map(|line| line.strip_prefix("ns.net=")).expect("it tells its namespaces");
    assert!(space != number(&host) && space != View::own().namespaces().unwrap()["net"]);
}

#[test]
fn daemon_and_its_programs_share_a_host() {
    let Some((_bed, host)) = host() else { return };
    let scratch = Scratch::new().unwrap();
    let config = "daemon.socket = \"{socket}\"\ndaemon.runtime_dir = \"{state}\"\n";
    let mut daemon = DaemonProcess::on(&scratch).config(config).host(&host).start(patience()).unwrap();
    let namespace = |view: View| view.namespaces().unwrap()["net"].clone();
    assert_eq!(namespace(daemon.view().unwrap()), number(&host));
    let beside = daemon.launch_on_host("/bin/cat").with_stdin().spawn().unwrap();
    assert_eq!(namespace(beside.view().unwrap()), number(&host));
    daemon.kill_and_restart(patience()).unwrap();
    assert_eq!(namespace(daemon.view().unwrap()), number(&host), "in its next life too");
}
