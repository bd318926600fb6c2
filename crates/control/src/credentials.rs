//! The groups, the cgroup and the guest of a domain's program. They are read once, when the domain attaches.

use isthmus_layout::control::Name;
use isthmus_platform::{peer_credentials, seqpacket};
use isthmus_report::container_of_cgroup;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::core::types::SocketPeer;

/// The GID that the kernel shows in place of groups without one in the daemon's user namespace (`kernel.overflowgid`).
const OVERFLOW_GID: u32 = 65534;

/// The groups, the cgroup and the guest of a domain's program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Its groups. Programs of a guest have none.
    pub gids: Vec<u32>,
    /// The path of its cgroup (version 2), if that is known.
    pub cgroup: Option<String>,
    /// Its container, as its cgroups name it, if they are known. Equal for two programs if they are in one container.
    pub container: Option<String>,
    /// Its guest.
    pub guest: Option<Name>,
}

impl Credentials {
    /// Reads the credentials of the program at the other end of a connection.
    pub(crate) fn of_peer(peer: &SocketPeer, has_overflow_ids: bool) -> Self {
        if let Some(guest) = peer.allocator.guest() {
            return Self { guest: Some(guest.clone()), ..Self::default() };
        }
        let mut gids = peer_credentials::groups(&peer.socket).unwrap_or_default();
        gids.retain(|&gid| !has_overflow_ids || gid != OVERFLOW_GID);
        let cgroups = cgroups(peer);
        let cgroup = cgroups.as_deref().and_then(unified).map(str::to_owned);
        Self { gids, cgroup, container: cgroups.as_deref().map(container), guest: None }
    }
}

/// Returns why no program of this host has a known cgroup, with the remedy. None if programs have one.
pub fn missing_for_cgroups() -> Option<&'static str> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    missing(kernel_tells_processes(), &own)
}

/// True if this kernel reports the process of a connection. Otherwise no program has a known container.
pub fn kernel_tells_processes() -> bool {
    seqpacket::pair().is_ok_and(|(one, _other)| peer_credentials::process(&one).is_ok())
}

fn missing(has_process: bool, own: &str) -> Option<&'static str> {
    if !has_process {
        Some("this kernel does not report the process of a connection: start Linux 6.5 or later")
    } else if unified(own).is_none() {
        Some("this host has no cgroups of version 2: start its kernel with systemd.unified_cgroup_hierarchy=1")
    } else {
        None
    }
}

/// Returns the cgroups of the process that has made the connection, as `/proc/<pid>/cgroup` lists them. None if the process has ended, because another one may have its PID; and
/// none if it has executed a program of another user meanwhile, because that program may be in a cgroup of that user.
fn cgroups(peer: &SocketPeer) -> Option<String> {
    let pid = peer.pid?;
    let process = peer_credentials::process(&peer.socket).ok()?;
    let read = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    let (status, cgroups) = (read("status")?, read("cgroup")?);
    let mut has_ended = [PollFd::new(&process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let is_running = poll(&mut has_ended, Some(&now)) == Ok(0);
    (is_running && is_of_user(&status, peer.uid)).then_some(cgroups)
}

/// Whether all user IDs in `/proc/<pid>/status` are this one.
fn is_of_user(status: &str, uid: u32) -> bool {
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    let mut uids = uids.split_whitespace().map(str::parse).peekable();
    uids.peek().is_some() && uids.all(|found| found == Ok(uid))
}

/// Returns the path in the hierarchy of version 2, given `/proc/<pid>/cgroup`.
fn unified(cgroups: &str) -> Option<&str> {
    cgroups.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Returns what tells a container from others: in each hierarchy the path to the container, else the whole path. Runtimes that use version 1
/// leave the path of version 2 the same for all containers.
fn container(cgroups: &str) -> String {
    let lines = cgroups.lines().map(|line| container_of_cgroup(line).map_or(line, |(container, _)| container));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_without_what_cgroups_need_is_told_what_to_do() {
        assert_eq!(missing(true, "2:cpu:/c\n0::/user.slice\n"), None);
        assert!(missing(true, "2:cpu:/c\n").is_some_and(|text| text.contains("unified_cgroup_hierarchy")));
        assert!(missing(false, "0::/\n").is_some_and(|text| text.contains("Linux 6.5")));
    }

    #[test]
    fn cgroup_is_that_of_the_unified_hierarchy() {
        assert_eq!(unified("9:name=systemd:/a\n0::/system.slice/web.service\n"), Some("/system.slice/web.service"));
        assert_eq!(unified("4:memory:/a\n"), None);
    }

    #[test]
    fn programs_of_one_container_have_the_same_container() {
        let [a, b] = ["a", "b"].map(|id| id.repeat(64));
        let same = [
            (format!("0::/system.slice/docker-{a}.scope\n"), format!("0::/system.slice/docker-{a}.scope/init\n")),
            (format!("4:memory:/docker/{a}\n0::/\n"), format!("4:memory:/docker/{a}/job\n0::/\n")),
            (
                format!("0::/machine.slice/libpod-{a}.scope/container"),
                format!("0::/machine.slice/libpod-{a}.scope/x/y"),
            ),
            ("0::/lxc.payload.web/system.slice/a.service".into(), "0::/lxc.payload.web/user.slice".into()),
            ("0::/user.slice/session-3.scope\n".into(), "0::/user.slice/session-3.scope\n".into()),
        ];
        for (one, other) in same {
            assert_eq!(container(&one), container(&other));
        }
        let different = [
            (format!("0::/system.slice/docker-{a}.scope\n"), format!("0::/system.slice/docker-{b}.scope\n")),
            (format!("4:memory:/docker/{a}\n0::/\n"), format!("4:memory:/docker/{b}\n0::/\n")),
            (format!("0::/docker/{a}/docker/{b}"), format!("0::/docker/{b}/docker/{b}")),
            (format!("0::/docker/{a}/docker/{b}"), format!("0::/docker/{a}")),
            (format!("0::/docker/{a}"), format!("0::/docker/{a}a")),
            ("0::/lxc.payload.web".into(), "0::/lxc.payload.web2".into()),
            ("0::/user.slice/session-3.scope\n".into(), "0::/user.slice/session-4.scope\n".into()),
            ("0::/\n".into(), format!("0::/docker/{a}\n")),
        ];
        for (one, other) in different {
            assert_ne!(container(&one), container(&other));
        }
    }

    #[test]
    fn process_with_several_users_is_of_none() {
        let status = |uids| format!("Name:\tx\nUid:\t{uids}\nGid:\t5\t5\t5\t5\n");
        assert!(is_of_user(&status("5\t5\t5\t5"), 5));
        assert!(!is_of_user(&status("5\t0\t0\t0"), 5) && !is_of_user(&status("6\t6\t6\t6"), 5));
        assert!(!is_of_user("Name:\tx\n", 5));
    }
}
