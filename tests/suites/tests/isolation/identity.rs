//! Rules of the policy match users and cgroups. A name admits only the programs that it is bound to.

use crate::process_view::regions;
use crate::{EVERY_LENGTH, exchange, exchange_messages, is_root, report};
use isthmus_suites::{TestProgram, daemon, test_program};
use isthmus_testbed::{DaemonProcess, Launch, Scratch};
use std::path::{Path, PathBuf};

/// UIDs that no users have.
const WEB: u32 = 61_311;
const DB: u32 = 61_312;
const IMPOSTOR: u32 = 61_313;

fn attach(daemon: &DaemonProcess, uid: u32, name: &str) -> TestProgram {
    TestProgram::start_attached(daemon.launch_on_host(test_program::program()).owner(uid), name, "")
}

fn refusal_of(launch: Launch, name: &str) -> String {
    TestProgram::start(launch).ask(&format!("attach name={name}"))
}

/// Asserts that no message reaches `to`, with the reason of the policy.
#[track_caller]
fn expect_forbidden(from: &mut TestProgram, to: &str) {
    let posted = from.ask(&format!("send 0 {to}.e0 64 1"));
    let token = posted.strip_prefix("posted ").unwrap_or_else(|| panic!("{posted}")).to_owned();
    from.expect("wait 30000", &format!("failed {token} talk-forbidden"));
}

#[test]
fn name_of_another_user_admits_no_impostor() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::shared().unwrap();
    let policy = format!(
        "policy.attach = \"any-user\"\npolicy.names = [{{ name = \"web-*\", user = {WEB} }}]\npolicy.rules = [\
         {{ from = \"web-*\", to = {{ user = {DB} }}, allow = true }}, {{ from = {{ user = {DB} }}, to = \"web-*\", allow = true }}]\n"
    );
    let daemon = daemon(&scratch, &policy);
    let (mut web, mut db) = (attach(&daemon, WEB, "web-1"), attach(&daemon, DB, "db"));
    exchange_messages(&mut web, &mut db, ["web-1", "db"]);
    let launch = daemon.launch_on_host(test_program::program()).owner(IMPOSTOR);
    let refused = refusal_of(launch, "web-evil");
    assert!(refused.starts_with("refused ") && refused.contains("[name-forbidden]"), "{refused}");
    let mut other = attach(&daemon, IMPOSTOR, "evil");
    expect_forbidden(&mut other, "db");
    expect_forbidden(&mut db, "evil");
    let why = report(&mut web, "why web-1 db");
    assert_eq!((&why["path"], &why["from_a"]["rule"]), (&"channel".into(), &0.into()), "{why}");
}

/// A cgroup that is removed when the test is over.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup below the root. Returns `None` if this process may not do so.
    fn create(name: &str) -> Option<Self> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists())?;
        let path = root.join(format!("isthmus-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).ok().map(|()| Self(path))
    }

    fn path(&self) -> String {
        format!("/{}", self.0.file_name().expect("it has a name").to_string_lossy())
    }

    /// Moves a program into the cgroup.
    fn add(&self, program: &mut TestProgram) {
        std::fs::write(self.0.join("cgroup.procs"), program.view().pid().to_string()).expect("root may move it");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0); // It stays if a failed test has left a program in it.
    }
}

#[test]
fn rules_match_the_cgroup_in_which_a_program_has_attached() {
    let (true, Some(inside)) = (is_root(), Cgroup::create("inside")) else {
        return eprintln!("skipped: no cgroup can be created");
    };
    let scratch = Scratch::shared().unwrap();
    let side = format!("{{ cgroup = \"{}\" }}", inside.path());
    let policy = format!(
        "policy.attach = \"any-user\"\npolicy.names = [{{ name = \"pod-*\", cgroup = \"{}\" }}]\npolicy.rules = [\
         {{ from = {side}, to = {{ user = {DB} }}, allow = true }}, {{ from = {{ user = {DB} }}, to = {side}, allow = true }}]\n",
        inside.path()
    );
    let daemon = daemon(&scratch, &policy);
    let plain = || daemon.launch_on_host(test_program::program()).owner(WEB);
    let mut web = TestProgram::start(plain());
    inside.add(&mut web);
    let attached = web.ask("attach name=pod-1");
    assert!(attached.starts_with("attached "), "{attached}");
    assert_eq!(web.ask("open"), "open e0");
    let mut db = attach(&daemon, DB, "db");
    exchange_messages(&mut web, &mut db, ["pod-1", "db"]);
    let rows = report(&mut web, "domains");
    let cgroups: Vec<_> = rows["domains"].as_array().unwrap().iter().map(|row| row["cgroup"].as_str()).collect();
    assert_eq!(cgroups[0], Some(inside.path().as_str()), "{rows}");

    // The same user outside of the cgroup: no such name, and no messages. Entering it later does not matter.
    let refused = refusal_of(plain(), "pod-evil");
    assert!(refused.starts_with("refused ") && refused.contains("[name-forbidden]"), "{refused}");
    let mut outside = attach(&daemon, WEB, "outside");
    inside.add(&mut outside);
    expect_forbidden(&mut outside, "db");
    web.kill();
    outside.kill();
}

#[test]
fn memory_does_not_stay_mapped_between_containers() {
    let (true, Some(one), Some(other)) = (is_root(), Cgroup::create("one"), Cgroup::create("other")) else {
        return eprintln!("skipped: no cgroup can be created");
    };
    let scratch = Scratch::shared().unwrap();
    let daemon = daemon(&scratch, "");
    let program = |name: &str, cgroup: &Cgroup| {
        let mut program = TestProgram::start(daemon.launch_on_host(test_program::program()));
        cgroup.add(&mut program);
        let attached = program.ask(&format!("attach name={name}"));
        assert!(attached.starts_with("attached "), "{attached}");
        assert_eq!(program.ask("open"), "open e0");
        program
    };
    let [mut a, mut b, mut beside] =
        [("a", &one), ("b", &other), ("beside", &one)].map(|(name, cgroup)| program(name, cgroup));
    // All are of one user.
    exchange_messages(&mut a, &mut b, ["a", "b"]);
    exchange(&mut a, &mut b, ["a", "b"], EVERY_LENGTH, "window=4 buffers=fresh");
    exchange(&mut a, &mut b, ["a", "b"], "12x1048576", "window=1 buffers=reused");
    let why = report(&mut a, "why a b");
    assert_eq!((&why["path"], &why["large"]["reason"]), (&"channel".into(), &"different-container".into()), "{why}");
    assert_eq!((&why["from_a"]["grants"], &why["from_b"]["grants"]), (&0.into(), &0.into()), "{why}");
    let moved = [a.view(), b.view()].map(|view| regions(&view));
    assert!(moved[0].is_disjoint(&moved[1]), "{moved:?}");
    exchange(&mut a, &mut b, ["a", "b"], "12x2097152", "window=1 buffers=reused");
    assert_eq!(
        moved,
        [a.view(), b.view()].map(|view| regions(&view)),
        "a buffer was moved although all grants are refused"
    );
    exchange_messages(&mut a, &mut beside, ["a", "beside"]);
    exchange(&mut a, &mut beside, ["a", "beside"], "12x1048576", "window=1 buffers=reused");
    let why = report(&mut a, "why a beside");
    assert_eq!((&why["path"], &why["large"]), (&"channel".into(), &().into()), "{why}");
    assert!(!regions(&a.view()).is_disjoint(&regions(&beside.view())));
    [a, b, beside].into_iter().for_each(TestProgram::kill);
}
