//! A sandbox is what it says: looked at from inside by `isthmus-probe`, and from outside.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use isthmus_testbed::{
    DENIED, Deadline, Exit, Launch, LaunchError, Leftovers, Sandbox, Scratch, SeededRandom, SyscallDenial, View,
};
use nix::libc;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType};

type Done<T = ()> = Result<T, Box<dyn std::error::Error>>;

const PROBE: &str = env!("CARGO_BIN_EXE_isthmus-probe");
/// A uid that no user has.
const OTHER_UID: u32 = 61_234;

fn patience() -> Deadline {
    Deadline::secs(60)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn look(launch: Launch) -> BTreeMap<String, String> {
    ask(launch, "show")
}

fn ask(launch: Launch, what: &str) -> BTreeMap<String, String> {
    let finished = launch.arg(what).spawn().expect("the probe starts").finish(patience());
    let lines = finished.expect("the probe ends").expect_success();
    let fields = lines.iter().map(|line| line.split_once('=').expect("name=value"));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn sandbox_shares_no_namespace_and_no_privilege_with_the_host() {
    if !Sandbox::is_available() {
        return;
    }
    let seen = look(Sandbox::new().user(4711).command(PROBE));
    let ours = View::own().namespaces().unwrap();
    for space in ["pid", "ipc", "user", "mnt", "net", "uts", "cgroup"] {
        assert_ne!(seen[&format!("ns.{space}")], ours[space], "the {space} namespace is shared");
    }
    assert_eq!((seen["uid"].as_str(), seen["gid"].as_str()), ("4711", "4711"));
    assert_ne!(seen["hostname"].as_bytes(), rustix::system::uname().nodename().to_bytes());
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(seen[set], "0000000000000000", "{set}");
    }
    assert_eq!((seen["NoNewPrivs"].as_str(), seen["Seccomp"].as_str()), ("1", "2"));
    assert_eq!(seen["interfaces"], "lo");
    assert!(!seen["env"].contains("CARGO"), "{}", seen["env"]);
}

#[test]
fn sandbox_denies_ptrace_class_calls_and_allows_needed_ones() {
    if !Sandbox::is_available() {
        return;
    }
    let inside = ask(Sandbox::new().command(PROBE), "syscalls");
    let outside = ask(Launch::new(PROBE), "syscalls");
    for name in ["process_vm_readv", "ptrace", "pidfd_getfd"] {
        assert!(DENIED.iter().any(|(denied, _)| *denied == name));
        assert_eq!(inside[name], "EPERM", "{name}");
    }
    assert_eq!(outside["process_vm_readv"], "allowed", "or this test shows nothing");
    for name in ["memfd_create", "eventfd"] {
        assert_eq!(inside[name], "allowed", "{name}");
    }
    eprintln!("yama here: {:?}", Sandbox::yama());
}

#[test]
fn sandbox_denies_additional_syscalls() {
    if !Sandbox::is_available() {
        return;
    }
    let files = SyscallDenial::new(libc::SYS_memfd_create, Errno::NOSYS);
    let events = |flags: i32| SyscallDenial::new(libc::SYS_eventfd2, Errno::ACCESS).only(1, u64::MAX, flags as u64);
    let seen = |events| ask(Sandbox::new().deny_syscall(files.clone()).deny_syscall(events).command(PROBE), "syscalls");
    let seen = [libc::EFD_CLOEXEC, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE].map(|flags| seen(events(flags)));
    for (seen, eventfd) in seen.iter().zip(["EACCES", "allowed"]) {
        assert_eq!((seen["memfd_create"].as_str(), seen["eventfd"].as_str()), ("ENOSYS", eventfd));
        assert_eq!(seen["process_vm_readv"], "EPERM", "as in every sandbox");
    }
}

#[test]
fn sandbox_without_proc_has_none() {
    if !Sandbox::is_available() {
        return;
    }
    let list = |sandbox: Sandbox| {
        let finished = sandbox.command("/usr/bin/ls").arg("/").spawn().unwrap().finish(patience());
        finished.unwrap().expect_success()
    };
    let has = |sandbox| list(sandbox).iter().any(|name| name == "proc");
    assert_eq!((has(Sandbox::new()), has(Sandbox::new().no_proc())), (true, false));
}

#[test]
fn sandbox_root_is_read_only_and_shm_is_small() {
    if !Sandbox::is_available() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let seen = look(Sandbox::new().bind(scratch.path(), "/run/isthmus").command(PROBE));
    for dir in ["/", "/usr", "/dev", "/run/isthmus", "/program"] {
        assert_eq!(seen[&format!("create {dir}")], "EROFS", "{dir}");
    }
    assert_eq!(seen["create /tmp"], "ENOENT");
    assert_eq!(seen["create /dev/shm"], "allowed");
    assert_eq!(seen["shm_bytes"], (64 << 20).to_string());
    for name in seen["root"].split(',') {
        let known = ["bin", "dev", "lib", "lib64", "proc", "program", "run", "sbin", "usr"];
        assert!(known.contains(&name), "/{name} should not be there");
    }
    assert_eq!(scratch.content().unwrap(), Vec::<std::path::PathBuf>::new());
    let smaller = look(Sandbox::new().shm_bytes(1 << 20).command(PROBE));
    assert_eq!(smaller["shm_bytes"], (1 << 20).to_string());
}

#[test]
fn two_sandboxes_share_no_namespace() {
    if !Sandbox::is_available() {
        return;
    }
    let [one, other] = [(); 2].map(|()| Sandbox::new().command(PROBE).arg("echo").with_stdin().spawn().unwrap());
    let [spaces, others] = [&one, &other].map(|probe| probe.view().unwrap().namespaces().unwrap());
    for space in ["pid", "ipc", "user", "mnt", "net", "uts", "cgroup"] {
        assert_ne!(spaces[space], others[space], "the {space} namespace is shared");
    }
    let [one, other] = [(); 2].map(|()| look(Sandbox::new().command(PROBE)));
    assert_ne!(one["hostname"], other["hostname"]);
    let named = look(Sandbox::new().hostname("twin").command(PROBE)); // Cloned machines have the same name.
    assert_eq!(named["hostname"], "twin");
}

#[test]
fn memory_reaches_a_sandbox_through_the_bound_socket() {
    if Sandbox::is_available() {
        meet(Scratch::new().unwrap(), Sandbox::new(), rustix::process::geteuid().as_raw()).unwrap();
    }
}

#[test]
fn the_listener_sees_the_owner_of_a_sandbox() {
    if !is_root() {
        let refused = Sandbox::new().owner(OTHER_UID).command(PROBE).spawn();
        assert!(matches!(refused, Err(LaunchError::OwnerNeedsRoot { owner: OTHER_UID })));
    } else if Sandbox::is_available() {
        meet(Scratch::shared().unwrap(), Sandbox::new().owner(OTHER_UID), OTHER_UID).unwrap();
        meet(Scratch::shared().unwrap(), Sandbox::new().owner(OTHER_UID + 1).user(0), OTHER_UID + 1).unwrap();
    }
}

/// Gives a memfd to a probe in a sandbox; both write into it and see what the other wrote.
fn meet(scratch: Scratch, sandbox: Sandbox, owner: u32) -> Done {
    let run = scratch.dir("run")?;
    let listener = listen(&run.join("sock"))?;
    let launch = sandbox.bind(&run, "/run/isthmus").command(PROBE).args(["map-memfd", "/run/isthmus/sock"]);
    let mut probe = launch.spawn()?;
    patience().readable([listener.as_fd(), probe.pidfd()])?;
    let Ok(peer) = rustix::net::accept(&listener) else { panic!("{:?}", probe.line(patience())) };

    let credentials = rustix::net::sockopt::socket_peercred(&peer)?;
    assert_eq!((credentials.uid.as_raw(), credentials.gid.as_raw()), (owner, owner_gid(owner)));
    assert_eq!(credentials.pid.as_raw_nonzero().get(), probe.pid()?);

    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = File::from(rustix::fs::memfd_create("given", flags)?);
    memory.set_len(8192)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)?;
    memory.write_all_at(b"question", 0)?;
    let fds = [memory.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(&peer, &[IoSlice::new(b"take this")], &mut control, SendFlags::empty())?;

    probe.wait_line("packet=take this", patience())?;
    probe.wait_line("memory=question", patience())?;
    let mut reply = [0; 16];
    patience().readable([peer.as_fd()])?;
    assert_eq!(rustix::io::read(&peer, &mut reply)?, 4, "{}", probe.stderr());
    let mut answer = [0; 8];
    memory.read_exact_at(&mut answer, 4096)?;
    assert_eq!(&answer, b"answered");
    assert_eq!(probe.wait(patience())?, Exit::Code(0));
    Ok(())
}

fn owner_gid(owner: u32) -> u32 {
    if owner == rustix::process::geteuid().as_raw() { rustix::process::getegid().as_raw() } else { owner }
}

fn listen(path: &Path) -> Done<OwnedFd> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    rustix::net::listen(&socket, 4)?;
    Ok(socket)
}

#[test]
fn program_in_a_sandbox_has_three_descriptors_and_is_reached_by_signals() {
    if !Sandbox::is_available() {
        return;
    }
    let mut probe = Sandbox::new().command(PROBE).arg("echo").with_stdin().spawn().unwrap();
    probe.send_line("here").unwrap();
    probe.wait_line("here", patience()).unwrap();
    let view = probe.view().unwrap();
    let numbers = view.fds().unwrap().iter().map(|fd| fd.number).collect::<Vec<_>>();
    assert_eq!(numbers, [0, 1, 2]);
    assert_ne!(view.namespaces().unwrap()["pid"], View::own().namespaces().unwrap()["pid"]);
    probe.kill().unwrap();
    assert_eq!(probe.wait(patience()).unwrap(), Exit::Signal(9));
    assert!(matches!(view.memory(), Err(isthmus_testbed::ViewError::Gone { .. })));
}

#[test]
fn dropped_sandbox_leaves_no_process() {
    if !Sandbox::is_available() {
        return;
    }
    let mut probe =
        Sandbox::new().command("/bin/sh").args(["-c", "sleep 4711 & sleep 4711 & echo both; wait"]).spawn().unwrap();
    probe.wait_line("both", patience()).unwrap();
    let space = probe.view().unwrap().namespaces().unwrap()["pid"].clone();
    let members = || {
        let processes = Leftovers::snapshot().unwrap().processes.into_iter();
        let of_space = |pid: i32| View::of(pid).namespaces().is_ok_and(|spaces| spaces.get("pid") == Some(&space));
        processes.filter(|(pid, _)| of_space(*pid)).collect::<Vec<_>>()
    };
    assert!(members().len() >= 3, "{:?}", members());
    drop(probe);
    assert_eq!(members(), []);
}

#[test]
fn unavailable_sandbox_reports_a_reason() {
    if !Sandbox::is_available() {
        return;
    }
    let error = Sandbox::new().bind("/no/such/folder", "/run/isthmus").command(PROBE).spawn().unwrap_err();
    assert!(matches!(error, LaunchError::Sandbox { .. }) && error.to_string().contains("/no/such/folder"), "{error}");
    let error = Sandbox::new().command("/no/such/program").spawn().unwrap_err();
    assert!(matches!(error, LaunchError::NoProgram { .. }), "{error}");
}

#[test]
fn many_short_processes_end_cleanly() {
    if !Sandbox::is_available() {
        return;
    }
    let live = |seed| {
        let mut schedule = SeededRandom::seeded(seed);
        for _ in 0..8 {
            let probe = Sandbox::new().command(PROBE).arg("echo").with_stdin().spawn().unwrap();
            schedule.sleep_random(std::time::Duration::from_millis(3));
            if schedule.one_in(2) {
                probe.kill().unwrap();
                assert_eq!(probe.finish(patience()).unwrap().exit, Exit::Signal(9));
            }
        }
    };
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            scope.spawn(move || live(seed));
        }
    });
}
