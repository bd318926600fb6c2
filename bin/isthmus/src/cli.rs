//! The command line: `isthmus <noun> <verb>`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use isthmus_config::Role;

use crate::capability::CapabilityCommand;
use crate::output::{Outcome, Output, UsageError};
use crate::{admission, cdi, config, daemon, demo, doctor, environment, guest, reason, run};

/// Shows what Isthmus does on this host: the attached domains, the paths of their messages, and why these paths.
///
/// Only `overlay` changes a running daemon: its networks, until it restarts or reads its configuration again.
///
/// Results go to standard output, everything else to standard error. Exit status: 0 done, 1 failed (for `doctor`: a problem was
/// found), 2 wrong usage.
#[derive(Parser)]
#[command(name = "isthmus", version)]
struct Cli {
    /// Print one JSON object, with `schema` (its version) and `kind`, in place of text for people.
    #[arg(long, global = true)]
    json: bool,

    /// The daemon's socket [default: $ISTHMUS_SOCKET, else the first of the usual places where a daemon answers].
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,

    #[command(subcommand)]
    noun: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The daemon: version, process, socket, and the numbers of domains, endpoints and channels.
    Status,

    /// Attached domains: programs, containers, guests.
    #[command(subcommand)]
    Domain(DomainVerb),

    /// Channels, and pairs of domains that exchange messages without one.
    #[command(subcommand)]
    Channel(ChannelVerb),

    /// Guests with programs that use this host's daemon.
    #[command(subcommand)]
    Guest(GuestVerb),

    /// Packets between guests, through shared memory or by the bridge.
    #[command(subcommand)]
    Loop(LoopVerb),

    /// Open endpoints.
    #[command(subcommand)]
    Endpoint(EndpointVerb),

    /// The path of messages between two domains, of a TCP connection or of a queue pair, why it is not a faster one, and what would
    /// change that.
    ///
    /// The path between domains is shown as each of the two sees it. A TCP connection may be one of any program, with Isthmus or
    /// without, and is named by a descriptor of one end. A queue pair is one of an RDMA program on Isthmus.
    Why {
        /// Two domains, each by name, or by number as in `d7`; a descriptor of a process, as in `4711:5`; or a queue pair, as in `qp:0x432800`.
        #[arg(value_name = "TARGET", required = true, num_args = 1..)]
        target: Vec<String>,
    },

    /// Reasons: all refusals, fallbacks, faults and ends, each with its remedy. Needs no daemon.
    #[command(subcommand)]
    Reason(ReasonVerb),

    /// Variables of the environment. Needs no daemon.
    #[command(subcommand)]
    Environment(EnvironmentVerb),

    /// Runs a program with the capabilities that are installed: `isthmus run -- ./program`. Needs no daemon.
    ///
    /// The program finds the library of each capability. One line on standard error says which capabilities are on. Signals, exit
    /// status and environment are the program's; variables that are set already keep their values. Exit status 127 if there is no
    /// such program, 126 if it cannot be started.
    Run(run::RunArgs),

    /// Prints a device for containers, which `podman run --device isthmus/host=all` gives to one. Needs no daemon.
    ///
    /// The device is a specification of the Container Device Interface (CDI). It mounts the folder of the daemon's socket and the
    /// libraries of the capabilities that are installed, and sets the variables of `isthmus run`. The socket is that of
    /// `--socket` or ISTHMUS_SOCKET, else the one of the system's daemon. Variables of the device replace those of the image and
    /// of `--env`.
    Cdi(cdi::CdiArgs),

    #[command(flatten)]
    Capability(CapabilityCommand),

    /// The daemon's configuration.
    #[command(subcommand)]
    Config(ConfigVerb),

    /// Tries the operations that Isthmus needs, and names a remedy for each that fails.
    ///
    /// Attaches two domains to the daemon, which exchange messages. Starts no daemon, and changes nothing. Each finding has an
    /// identifier that does not change between versions. Exit status 1 if there is a problem.
    Doctor,

    /// Measures Isthmus on this machine within a minute: message rates and bandwidth beside TCP, Unix sockets and pipes.
    ///
    /// It starts a daemon of its own in a temporary folder, and two programs exchange messages of 8 bytes to 4 MiB. It needs no
    /// network card, no root and no configuration, and leaves nothing but the folder named by `--out`.
    Try(TryArgs),

    /// One side of a measurement; started by `isthmus try`.
    #[command(hide = true)]
    Worker,

    /// Another program that ends with its parent; started by `isthmus try`.
    #[command(hide = true)]
    RunBound {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },

    /// Removes a folder when standard input ends; started by `isthmus try`.
    #[command(hide = true)]
    RemoveOnExit { folder: PathBuf },
}

#[derive(Subcommand)]
enum LoopVerb {
    /// Lists the interfaces of guests that may exchange packets through shared memory, and the pairs of them that have tried.
    List,
}

#[derive(Subcommand)]
enum DomainVerb {
    /// Lists the domains: user, process, library, and traffic through the daemon.
    List,
}

#[derive(Subcommand)]
enum ChannelVerb {
    /// Lists the pairs: path, reason, bytes, wakeups.
    List,
}

#[derive(Subcommand)]
enum GuestVerb {
    /// Lists the guests of the configuration, each with the state of its device and daemon, and the use of its window.
    List,
    /// Prints the device for the configuration of a guest's machine: an element for libvirt's `<devices>`.
    Xml {
        /// The guest's name in the daemon's configuration.
        #[arg(value_name = "GUEST")]
        name: String,
        /// Print the arguments of `qemu-system-x86_64` instead.
        #[arg(long)]
        qemu: bool,
        /// For a q35 machine: print this number of root ports, each for a pair window with another guest, and one more for the
        /// guest's own window.
        #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=16))]
        ports: u8,
        /// For libvirt, with `--ports`: the number of the first port, which must be above those of all PCI controllers.
        #[arg(long, value_name = "INDEX", requires = "ports", value_parser = clap::value_parser!(u8).range(1..=200))]
        index: Option<u8>,
    },

    /// Permits a Xen guest to attach: writes its backends into XenStore, and prints the equivalent commands of xenstore-utils.
    ///
    /// For root in domain 0. The permission ends with the guest, because the guest has another number after its next start. A
    /// guest with another backend moves while it runs; the command then ends when the guest daemon has detached from that one.
    Allow(AllowArgs),

    /// Revokes the permission of `allow`, and prints the equivalent commands. Ends when the guest daemon has detached.
    Deny(DenyArgs),
}

#[derive(Subcommand)]
enum EndpointVerb {
    /// Lists the endpoints: domain, number, label.
    List,
}

#[derive(Subcommand)]
enum ReasonVerb {
    /// Lists the reasons.
    List,
    /// Shows one reason: its cause and its remedy.
    Show {
        /// The name or the code of the reason.
        reason: String,
    },
}

#[derive(Subcommand)]
enum EnvironmentVerb {
    /// Lists the variables of the library and of the daemon, with their values here.
    List {
        #[command(flatten)]
        role_args: RoleArgs,
    },
}

#[derive(Subcommand)]
enum ConfigVerb {
    /// Shows the configuration in force.
    ///
    /// Without an option, shows the configuration of the daemon that answers. With `--user` or `--system`, or if no daemon
    /// answers, shows the configuration that such a daemon would read now.
    Show {
        /// Show the origin of each value.
        #[arg(long)]
        origin: bool,
        #[command(flatten)]
        role_args: RoleArgs,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct AllowArgs {
    /// The guest, by name or number as in `xl list`.
    pub(crate) domain: String,

    /// The domains with the daemons that it may attach to, each by name or number.
    #[arg(long, value_name = "DOMAIN", default_value = "0")]
    pub(crate) backend: Vec<String>,

    /// Only print the commands. Needs domain numbers instead of names, and works outside of domain 0.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct DenyArgs {
    /// The guest, by name or number as in `xl list`.
    pub(crate) domain: String,
}

/// The daemon that a command is about, if it does not query one.
#[derive(Args, Clone, Copy)]
struct RoleArgs {
    /// The daemon of this user.
    #[arg(long, conflicts_with = "system")]
    user: bool,
    /// The daemon that serves all users.
    #[arg(long)]
    system: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct TryArgs {
    /// The folder for the results `try.json` and `try.svg`.
    #[arg(long, value_name = "DIR", default_value = "out")]
    pub(crate) out: PathBuf,

    /// Measure two sizes for a few seconds: a first impression, not figures to quote.
    #[arg(long)]
    pub(crate) quick: bool,
}

impl RoleArgs {
    fn role(self) -> Option<Role> {
        match (self.user, self.system) {
            (true, _) => Some(Role::User),
            (_, true) => Some(Role::System),
            _ => None,
        }
    }
}

pub(crate) fn main() -> ExitCode {
    let Cli { json, socket, noun } = Cli::parse();
    let output = Output { json };
    match dispatch(noun, output, socket) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Ok(Outcome::Status(status)) => ExitCode::from(status),
        Err(error) => match error.downcast_ref::<UsageError>() {
            Some(UsageError(how)) => Cli::command().error(ErrorKind::InvalidValue, how).exit(),
            None => {
                output.report_error(&error);
                ExitCode::from(1)
            }
        },
    }
}

fn dispatch(noun: Command, output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    match noun {
        Command::Status => daemon::status(output, socket),
        Command::Domain(DomainVerb::List) => daemon::domains(output, socket),
        Command::Channel(ChannelVerb::List) => daemon::channels(output, socket),
        Command::Guest(GuestVerb::List) => guest::list(output, socket),
        Command::Guest(GuestVerb::Xml { name, qemu, ports, index }) => {
            guest::xml(output, socket, &name, qemu, guest::PciPorts { count: ports, index })
        }
        Command::Loop(LoopVerb::List) => guest::loops(output, socket),
        Command::Endpoint(EndpointVerb::List) => daemon::endpoints(output, socket),
        Command::Why { target } => daemon::why(output, socket, &daemon::WhyTarget::parse(&target)?),
        Command::Reason(ReasonVerb::List) => reason::list(output),
        Command::Reason(ReasonVerb::Show { reason }) => reason::show(output, &reason),
        Command::Environment(EnvironmentVerb::List { role_args }) => {
            environment::list(output, role_args.role().unwrap_or(Role::User))
        }
        Command::Run(args) => run::run(output, socket, &args),
        Command::Cdi(args) => cdi::run(output, socket, &args),
        Command::Capability(command) => command.run(output, socket),
        Command::Guest(GuestVerb::Allow(args)) => admission::allow(output, &args),
        Command::Guest(GuestVerb::Deny(args)) => admission::deny(output, &args),
        Command::Config(ConfigVerb::Show { origin, role_args }) => {
            config::show(output, socket, role_args.role(), origin)
        }
        Command::Doctor => doctor::run(output, socket),
        Command::Try(args) => demo::run(output, &args),
        Command::Worker => demo::worker(),
        Command::RunBound { command } => demo::run_bound(&command),
        Command::RemoveOnExit { folder } => demo::sweep(&folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
