//! Checks of the daemon: whether it answers, its user and version, the safety of its folder, its resources.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use isthmus_client::{Options, Reason, Refusal, Topic, is_in_guest};
use isthmus_config::Role;
use isthmus_report::{Doctor, StatusReport};

use super::Finding;
use crate::daemon::{Daemon, read, usual_socket};

/// The limit of descriptors below which the daemon may run out of them.
const FILES_RECOMMENDED: u64 = 4096;

/// Checks the daemon. Returns whether one answers.
pub(super) fn check(options: &Options, findings: &mut Vec<Finding>) -> bool {
    let tried = "connecting to the daemon and exchanging versions";
    let mut daemon = match Daemon::connect(options) {
        Ok(daemon) => daemon,
        Err(error) => {
            findings.push(unreachable_daemon(options, tried, &error));
            return false;
        }
    };
    let status = daemon.ask(Topic::Status, &[]).and_then(|answer| read::<StatusReport>(&answer));
    let is_guest = status.as_ref().is_ok_and(|status| status.guest.is_some());
    match status {
        Ok(status) => {
            let result = match &status.guest {
                Some(guest) => format!("{} of the host answers; this is the guest {guest}", status.daemon),
                None => format!("{} answers at {}", status.daemon, status.socket),
            };
            findings.push(Finding::ok("daemon.reachable", tried, result));
            findings.push(version(&status));
            findings.push(owner(&status));
            findings.push(folder(&status, options));
        }
        Err(error) => findings.push(unexpected("daemon.reachable", tried, &error)),
    }
    let tried = "querying the resources of the daemon";
    match daemon.ask(Topic::Doctor, &[]).and_then(|answer| read::<Doctor>(&answer)) {
        Ok(doctor) => {
            findings.push(files(&doctor));
            findings.push(hidden_processes(&doctor));
            findings.push(restart(&doctor, is_guest));
            findings.extend(guests(&doctor));
        }
        Err(error) => findings.push(unexpected("daemon.descriptors", tried, &error)),
    }
    true
}

pub(crate) fn unexpected(id: &'static str, tried: &str, error: &anyhow::Error) -> Finding {
    match error.downcast_ref::<Refusal>() {
        Some(refusal) => Finding::refused(id, tried, refusal),
        None => Finding::problem(id, tried, crate::output::causes(error))
            .remedy("Use a tool and a daemon of the same version, or versions next to each other."),
    }
}

/// Returns the finding about a daemon that does not answer. That is no problem if the library may start one.
fn unreachable_daemon(options: &Options, tried: &str, error: &anyhow::Error) -> Finding {
    let id = "daemon.reachable";
    let Some(refusal) = error.downcast_ref::<Refusal>() else { return unexpected(id, tried, error) };
    let starts = Options::from_environment().is_ok_and(|options| !options.no_autostart);
    // No library starts a daemon in a guest.
    let usual = options.socket.is_none() && refusal.reason == Reason::DaemonUnreachable && !is_in_guest();
    if usual && starts {
        let result = "no daemon runs; the library starts one for this user when a program attaches";
        return Finding::note(id, tried, result).remedy(
            "None needed. To check domains and channels as well, run `isthmusd --user` or a program that attaches.",
        );
    }
    Finding::refused(id, tried, refusal)
}

/// Checks the versions. That the protocols are compatible is known from the connection.
fn version(status: &StatusReport) -> Finding {
    let (id, tried) = ("daemon.version", "agreeing on a version of the control protocol");
    let ours = isthmus_layout::control::VersionRange::CURRENT.version().to_string();
    let own = concat!("isthmusd ", env!("CARGO_PKG_VERSION"));
    let result = format!(
        "{} with protocol {}, this tool {} with {ours}",
        status.daemon,
        status.protocol,
        env!("CARGO_PKG_VERSION")
    );
    if status.daemon == own && status.protocol == ours {
        return Finding::ok(id, tried, result);
    }
    Finding::note(id, tried, result)
        .remedy("None needed while they are one minor version apart at most. Update both together.")
}

fn owner(status: &StatusReport) -> Finding {
    let (id, tried) = ("daemon.owner", "querying the user of the daemon");
    let system = usual_socket(Role::System);
    let uid = rustix::process::geteuid().as_raw();
    let result = match Path::new(&status.socket) {
        _ if status.guest.is_some() => {
            "it is on the host, and serves the users that the daemon of this guest permits".to_owned()
        }
        socket if socket == system => {
            format!("it serves the users of this host that its policy permits, and runs as user {}", status.uid)
        }
        _ if status.uid == uid => "it belongs to this user".to_owned(),
        _ => format!("it belongs to user {}", status.uid),
    };
    Finding::ok(id, tried, result)
}

/// Checks the folder of the socket, because a user with write permission can put another daemon there, which sees all messages.
fn folder(status: &StatusReport, options: &Options) -> Finding {
    let (id, tried) = ("daemon.socket-directory", "checking the owner and the mode of the socket's folder");
    let socket = options.socket.clone().unwrap_or_else(|| {
        used_socket([Role::System, Role::User].map(usual_socket), Path::new(&status.socket), Path::exists)
    });
    let socket = socket.as_path();
    let folder = socket.parent().unwrap_or(socket);
    let found = match std::fs::metadata(folder) {
        Ok(found) => found,
        Err(error) => {
            return Finding::note(id, tried, format!("{}: {error}", folder.display())).because(Reason::SocketDenied);
        }
    };
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    let result = format!("{} belongs to user {owner}, mode {mode:04o}", folder.display());
    let uid = rustix::process::geteuid().as_raw();
    let trusted = [0, uid, status.uid].contains(&owner) && (mode & 0o022 == 0 || mode & 0o1000 != 0);
    if trusted {
        Finding::ok(id, tried, result)
    } else {
        Finding::problem(id, tried, result).because(Reason::SocketUntrusted)
    }
}

/// Returns the usual socket that this tool has used. That is the reported one, unless the path has another meaning here: in a container, the
/// daemon's folder is mounted elsewhere, and in a guest, the socket is that of the guest's own daemon.
fn used_socket(usual: [PathBuf; 2], reported: &Path, exists: impl Fn(&Path) -> bool) -> PathBuf {
    let [system, user] = usual;
    if user == reported || (!exists(&system) && exists(&user)) { user } else { system }
}

fn files(doctor: &Doctor) -> Finding {
    let (id, tried) = ("daemon.descriptors", "querying the descriptors of the daemon");
    let result = format!("{} of {}", doctor.fds, doctor.fds_max);
    match doctor.fds_max {
        most if doctor.fds + 64 > most => Finding::problem(id, tried, result).because(Reason::DaemonOutOfFds),
        most if most < FILES_RECOMMENDED => Finding::note(id, tried, result).because(Reason::DaemonOutOfFds),
        _ => Finding::ok(id, tried, result),
    }
}

/// Reports domains in other pid namespaces. They work, but have no pid in lists.
fn hidden_processes(doctor: &Doctor) -> Finding {
    let (id, tried) = ("daemon.visibility", "querying the domains and channels that the daemon cannot inspect");
    let (domains, channels) = (doctor.domains_without_pid, doctor.channels_without_counters);
    let result =
        format!("{domains} domains in pid namespaces that it cannot see, {channels} channels without counters");
    match channels {
        0 => Finding::ok(id, tried, result),
        _ => Finding::note(id, tried, result).because(Reason::DaemonOutOfFds),
    }
}

/// Reports guests that lose their devices. None for a daemon without guests.
fn guests(doctor: &Doctor) -> Option<Finding> {
    let (id, tried) = ("daemon.guests", "querying whether guests keep their devices when the daemon restarts");
    let result = format!("{} guests would lose their device", doctor.guests_losing_device?);
    let remedy = "Run the daemon as a service of systemd with a file descriptor store (`FileDescriptorStoreMax=512` and `Environment=FDSTORE=512`, as in packaging/systemd/isthmusd.service), or plug the devices of these guests again after a restart (docs/operate/guests.md).";
    doctor.guests_losing_device.filter(|unkept| *unkept > 0).map(|_| Finding::note(id, tried, result).remedy(remedy))
}

fn restart(doctor: &Doctor, is_guest: bool) -> Finding {
    let (id, tried) = ("daemon.restart", "querying whether domains resume when the daemon restarts");
    if is_guest {
        return Finding::ok(id, tried, "those of guests do not: their programs attach again");
    }
    if doctor.resumable {
        return Finding::ok(id, tried, "domains and channels resume when it restarts");
    }
    Finding::note(id, tried, "it could not store its key: domains attach again when it restarts")
        .remedy("Give the daemon write access to `daemon.runtime_dir`, and see its log.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;

    #[test]
    fn folder_of_the_socket_is_that_of_this_tool_and_not_that_of_the_host() {
        let usual = || ["/run/isthmus/s", "/run/user/7/isthmus/s"].map(PathBuf::from);
        let used = |reported: &str, existing: &[&str]| {
            used_socket(usual(), Path::new(reported), |path| existing.iter().any(|known| Path::new(known) == path))
        };
        let [system, user] = usual();
        let both = ["/run/isthmus/s", "/run/user/7/isthmus/s"];
        assert_eq!(used("/run/isthmus/s", &both), system);
        assert_eq!(used("/run/user/7/isthmus/s", &both), user);
        assert_eq!(used("/srv/of-the-host/s", &both[..1]), system, "in a container");
        assert_eq!(used("/srv/of-the-host/s", &both[1..]), user);
    }

    #[test]
    fn guests_losing_their_device_are_a_warning_with_remedy() {
        let of = |guests_losing_device| Doctor {
            schema: 1,
            fds_max: 1024,
            fds: 10,
            nobody_uid: None,
            domains_without_pid: 0,
            channels_without_counters: 0,
            resumable: true,
            guests_losing_device,
        };
        for silent in [None, Some(0)] {
            assert!(guests(&of(silent)).is_none());
        }
        let found = guests(&of(Some(2))).expect("a finding");
        assert_eq!((found.id, found.severity), ("daemon.guests", Severity::Warning));
        assert!(found.result.starts_with("2 guests") && found.remedy.is_some());
    }
}
