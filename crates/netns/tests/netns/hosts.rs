//! Tests of a host and of the programs that run in it.

use std::path::Path;
use std::process::Command;

use isthmus_testbed::View;

use crate::{packets, two_hosts};

#[test]
fn host_has_only_a_loopback_interface() {
    let Some((_bed, a, b)) = two_hosts() else { return };
    let interfaces = |host| packets(host).into_keys().filter(|name| !name.contains("tnl")).collect::<Vec<_>>();
    assert!(interfaces(&a).contains(&"lo".to_owned()));
    assert!(interfaces(&a).iter().all(|name| !name.starts_with("wire") && !name.starts_with("eth")));
    let number =
        |host: &isthmus_netns::Host| host.with(|| std::fs::read_link("/proc/thread-self/ns/net")).unwrap().unwrap();
    let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
    assert!(number(&a) != ours && number(&b) != ours && number(&a) != number(&b));
    assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), ours, "this thread has not moved");
    let server = a.with(|| std::net::TcpListener::bind(("127.0.0.1", 0))).unwrap().expect("lo is up");
    let at = server.local_addr().unwrap();
    a.with(|| std::net::TcpStream::connect(at)).unwrap().expect("lo carries");
    assert!(b.with(|| std::net::TcpStream::connect(at)).unwrap().is_err(), "and not to another host");
}

#[test]
fn programs_run_in_the_host_they_are_started_in() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let cable = bed.link(&a, &b, &Default::default()).unwrap();
    let mut list = Command::new("ip");
    list.args(["-o", "link", "show", &cable.a().name]);
    let output = a.output(list).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("link/ether 02:69:73:00:00:01"), "{said}");
    let mut sleep = Command::new("sleep");
    sleep.arg("1000");
    let mut child = b.spawn(sleep).unwrap();
    let of = |view: View| view.namespaces().unwrap()["net"].clone();
    let inside = b.with(|| std::fs::read_link("/proc/thread-self/ns/net")).unwrap().unwrap();
    assert_eq!(Path::new(&of(View::of(child.id().cast_signed()))), inside);
    child.kill().unwrap();
    child.wait().unwrap();
    let missing = a.spawn(Command::new("/no/such/program")).unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn sys_shows_the_host_to_its_programs() {
    let Some((mut bed, a, b)) = two_hosts() else { return };
    let cable = bed.link(&a, &b, &isthmus_netns::Wire::mtu(4000)).unwrap();
    let mut cat = Command::new("cat");
    cat.arg(format!("/sys/class/net/{}/mtu", cable.a().name));
    let output = a.output(cat).unwrap();
    if !output.status.success() && !rustix::process::geteuid().is_root() {
        eprintln!("skipped: sysfs cannot be mounted here");
        return;
    }
    assert_eq!(String::from_utf8_lossy(&output.stdout), "4000\n");
    assert!(!Path::new("/sys/class/net").join(&cable.a().name).exists(), "and not to us");
}

#[test]
fn closure_inside_may_borrow_and_may_panic() {
    let Some((_bed, a, _)) = two_hosts() else { return };
    let mut seen = Vec::new();
    let count = a.with(|| {
        seen.push(1);
        seen.len()
    });
    assert_eq!((count.unwrap(), seen.as_slice()), (1, &[1][..]));
    let caught = std::panic::catch_unwind(|| a.with(|| panic!("inside")));
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"inside"));
    a.with(|| ()).expect("the host has outlived it");
}
