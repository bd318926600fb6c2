//! A program that prints its view of the place where it runs, one `name=value` a line, and does small things on request.
//!
//! ```text
//! isthmus-probe show              namespaces, uid, capabilities; what it can write to (of use in a sandbox only)
//! isthmus-probe syscalls          which system calls are refused
//! isthmus-probe map-memfd SOCKET  connects, receives a memfd, maps it, says its content and writes an answer
//! isthmus-probe echo              repeats the lines of its standard input; "spin" burns time, "panic" panics
//! isthmus-probe ready             says READY=1 (or $PROBE_SAYS) to $NOTIFY_SOCKET, then waits to be killed
//! ```

#![forbid(unsafe_code)]

use std::io::{self, BufRead, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use isthmus_layout::RegionSize;
use isthmus_shm::{Access, Mapping, Payload, SharedMapping};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketType};

fn main() -> ExitCode {
    let args = std::env::args().skip(1).collect::<Vec<_>>();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["show"] => look(),
        ["syscalls"] => try_calls(),
        ["map-memfd", socket] => meet(socket),
        ["echo"] => echo(),
        ["ready"] => ready(),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "usage: isthmus-probe show|syscalls|map-memfd SOCKET|echo|ready",
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("isthmus-probe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn look() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/ns")? {
        let entry = entry?;
        let target = std::fs::read_link(entry.path())?;
        println!("ns.{}={}", entry.file_name().display(), target.display());
    }
    println!("pid={}", std::process::id());
    println!("uid={}", rustix::process::getuid().as_raw());
    println!("gid={}", rustix::process::getgid().as_raw());
    println!("hostname={}", rustix::system::uname().nodename().to_string_lossy());
    for line in std::fs::read_to_string("/proc/self/status")?.lines() {
        match line.split_once(':') {
            Some((name, value)) if name.starts_with("Cap") || name == "NoNewPrivs" || name == "Seccomp" => {
                println!("{name}={}", value.trim());
            }
            _ => {}
        }
    }
    look_at_files()?;
    println!("env={}", std::env::vars().map(|(name, _)| name).collect::<Vec<_>>().join(","));
    let interfaces = std::fs::read_to_string("/proc/self/net/dev")?;
    let interfaces = interfaces.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
    println!("interfaces={}", interfaces.collect::<Vec<_>>().join(","));
    Ok(())
}

fn try_calls() -> io::Result<()> {
    println!("process_vm_readv={}", outcome(peek()));
    println!("ptrace={}", outcome(nix::sys::ptrace::traceme().map_err(io::Error::from)));
    println!("pidfd_getfd={}", outcome(dup_peer_fd()));
    println!("memfd_create={}", outcome(rustix::fs::memfd_create("probe", rustix::fs::MemfdFlags::CLOEXEC)));
    println!("eventfd={}", outcome(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)));
    Ok(())
}

fn look_at_files() -> io::Result<()> {
    let mut root =
        std::fs::read_dir("/")?.flatten().map(|entry| entry.file_name().display().to_string()).collect::<Vec<_>>();
    root.sort();
    println!("root={}", root.join(","));
    let shm = rustix::fs::statvfs("/dev/shm")?;
    println!("shm_bytes={}", shm.f_blocks * shm.f_frsize);
    for dir in ["/", "/usr", "/dev", "/dev/shm", "/tmp", "/run/isthmus", "/program"] {
        let file = std::path::Path::new(dir).join("probe-was-here");
        println!(
            "create {dir}={}",
            outcome(std::fs::File::create_new(&file).and_then(|_| std::fs::remove_file(&file)))
        );
    }
    Ok(())
}

/// Reads our own memory the way cross memory attach reads a peer's: the kernel allows that to everybody.
fn peek() -> io::Result<()> {
    let (ours, mut copy) = ([7_u8; 8], [0_u8; 8]);
    let remote = RemoteIoVec { base: ours.as_ptr().addr(), len: ours.len() };
    process_vm_readv(nix::unistd::Pid::this(), &mut [IoSliceMut::new(&mut copy)], &[remote])?;
    if ours == copy { Ok(()) } else { Err(io::Error::other("another copy")) }
}

/// Takes a descriptor out of a process: out of ourselves, which the kernel allows to everybody.
fn dup_peer_fd() -> io::Result<OwnedFd> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    Ok(pidfd_getfd(&own, 0, PidfdGetfdFlags::empty())?)
}

fn meet(path: &str) -> io::Result<()> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut packet = [0; 64];
    let received =
        rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut packet)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    println!("packet={}", String::from_utf8_lossy(&packet[..received.bytes]));
    let memory = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let memory = memory.ok_or_else(|| io::Error::other("no descriptor came"))?;
    show(memory)?;
    rustix::net::send(&socket, b"seen", rustix::net::SendFlags::empty())?;
    Ok(())
}

/// Maps it as domains do, and says and answers what is there.
fn show(memory: OwnedFd) -> io::Result<()> {
    let mapping = Mapping::new(&memory, RegionSize(8192), Access::ReadWrite).map_err(io::Error::other)?;
    drop(memory); // The mapping is enough.
    let window = SharedMapping::new(mapping);
    let mut head = [0; 8];
    window.copy_out(0, &mut head);
    println!("memory={}", String::from_utf8_lossy(&head));
    window.copy_in(4096, b"answered");
    Ok(())
}

fn echo() -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let line = line?;
        match line.as_str() {
            "spin" => println!("{}", (0..50_000_000_u64).fold(0, |sum, i| std::hint::black_box(sum ^ i))),
            "panic" => panic!("as asked"),
            "complain" => eprintln!("a complaint"),
            line => println!("{line}"),
        }
        io::stdout().flush()?;
    }
    Ok(())
}

fn ready() -> io::Result<()> {
    let args = std::env::var("PROBE_SAYS").unwrap_or_else(|_| "READY=1".into());
    let manager = std::env::var_os("NOTIFY_SOCKET").ok_or_else(|| io::Error::other("no NOTIFY_SOCKET"))?;
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    socket.send_to(format!("STATUS=probing\n{args}").as_bytes(), manager)?;
    std::thread::park();
    Ok(())
}

fn outcome<T>(tried: Result<T, impl Into<io::Error>>) -> String {
    match tried.map_err(Into::into) {
        Ok(_) => "allowed".into(),
        Err(error) => match error.raw_os_error() {
            Some(number) => format!("{:?}", nix::errno::Errno::from_raw(number)),
            None => error.to_string(),
        },
    }
}
