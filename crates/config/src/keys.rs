//! Every key of the configuration, once.
//!
//! From this table come the [`Config`] and its parser, the names of the environment variables, what `isthmusd --check`
//! and `isthmus config show` print, and docs/operate/configuration.md. To add a key, add it here and run
//! `UPDATE=1 cargo test -p isthmus-config --test config`.

use isthmus_layout::limits;

use super::fields::FieldTable;
use super::guests::Guests;
use super::kvm::KvmGuest;
use super::mx::MxBoardList;
use super::overlay::{ListenAddress, Networks};
use super::parse::ConfigReader;
use super::paths::{Dir, LogFilter, MetricsListen, SocketPath};
use super::policy::{AttachPolicy, NameBindings, Rules};
use super::setting::{
    Cpus, Grants, Integer, Micros, Millis, PowerOfTwoKib, PowerOfTwoMib, Seconds, Setting, Talk, WorkerWaitMode,
};
use super::sockets::AddressPatterns;
use super::xen::XenGuest;

// table: Type { key: Type = "default, as a variable would give it", when a change counts; }
// {runtime} and {grants} stand for what depends on the daemon's role (`RoleDefaults`).
table! {
    /// The daemon itself: its socket, its threads, its folders.
    daemon: DaemonConfig {
        /// The socket that programs attach to. Programs look for it at the default places only, unless `ISTHMUS_SOCKET`
        /// names it. To let a container in, mount the folder of this socket into it.
        socket: SocketPath = "{runtime}/isthmus.sock", Restart;
        /// The number of threads which move messages between the daemon and the domains. Messages in channels need
        /// none.
        workers: Integer<1, 64> = "1", Restart;
        /// The CPUs that workers are pinned to: one for each worker. If the list is empty, the kernel chooses.
        worker_cpus: Cpus = "[]", Restart;
        /// The time without an attached domain after which the daemon exits; 0 means never.
        idle_exit_s: Seconds<0, 604800> = "0", Restart;
        /// The level of the log on standard error: one level, or levels for parts of the program.
        log: LogFilter = "info", Reload;
        /// The folder for files that a restarted daemon needs to find its domains again. Only the daemon may use it. It
        /// need not survive a boot. The daemon makes it if it is missing.
        runtime_dir: Dir = "{runtime}", Restart;
    }
    /// How the daemon's workers wait for work. Programs choose for themselves, by `ISTHMUS_WAIT`.
    wait: WaitConfig {
        /// How a worker waits. `adaptive` spins for a while, then sleeps until a doorbell rings; `sleep` sleeps at
        /// once; `spin` never sleeps, which gives the least latency and takes a whole CPU for each worker, also when
        /// idle.
        mode: WorkerWaitMode = "adaptive", Restart;
        /// How long `adaptive` spins before it sleeps. It spins only while spinning has recently paid off, and yields
        /// the CPU meanwhile.
        spin_us: Micros<0, 1000> = "200", Restart;
    }
    /// The users that may attach, the domains that may exchange messages, and the paths that they may use.
    policy: PolicyConfig {
        /// The users that may attach: the user the daemon runs as, every user that reaches the socket, or a list of
        /// users by name or number. A change from `same-user` to another value takes a restart, because others cannot
        /// open the socket.
        attach: AttachPolicy = "same-user", Reload;
        /// The pairs of domains that may exchange messages where no rule says otherwise: domains of one user, or all.
        talk: Talk = "same-user", Reload;
        /// Whether domains may have channels where no rule says otherwise. Without a channel, messages go through the
        /// daemon.
        channels: bool = "true", Reload;
        /// The pairs of domains between which a region may stay mapped by its reader after its message. Such a reader
        /// sees what the owner writes into the buffer later, and can write to memory that is registered for RDMA.
        /// Between different users nothing ever stays granted. All containers that root runs are of one user, so the
        /// system's daemon has `same-container`: the cgroup of a program names its container, and programs outside of
        /// containers need the same cgroup. The cgroup is known with Linux 6.5 and later; without it nothing stays
        /// granted. A user's own daemon has `same-user`.
        grants: Grants = "{grants}", Reload;
        /// Names that only some domains may have. The first entry with a pattern that matches a name decides: the domain
        /// needs all properties of the entry, or it is refused with `name-forbidden`. Every domain may have a name that
        /// no entry matches. In patterns, `*` stands for any run of characters and `?` for one.
        names: NameBindings = "[]", Reload;
        /// Exceptions. The first rule with a `from` that matches the sender and a `to` that matches the receiver
        /// decides: `allow` about messages, `channel` about channels. A channel needs the permission both ways. Programs
        /// choose their names, so a rule that allows needs more: a user, group, cgroup or guest, or a name that
        /// `policy.names` binds, on each side that is not left out. Other rules are refused, unless `policy.attach` is
        /// `same-user`. A rule that forbids by a name holds only for programs that choose this name. If a rule or a
        /// bound name has a `cgroup`, a program with an unknown cgroup may not attach.
        rules: Rules = "[]", Reload;
    }
    /// Limits. A request beyond a limit is refused with a reason which names it. Where several users may attach, one user
    /// has at most half of the places that the other users leave, and the last eighth is for users that have none. Users
    /// that `/etc/subuid` lists as subordinate count as their user.
    limits: LimitsConfig {
        /// The largest number of domains attached at once. The daemon lowers it to what its descriptors allow, and logs that.
        domains_max: Integer<1, { limits::DOMAINS_MAX as u32 }> = "4096", Restart;
        /// The largest number of domains of one user.
        domains_per_user_max: Integer<1, { limits::DOMAINS_MAX as u32 }> = "512", Restart;
        /// The largest number of endpoints of one domain.
        endpoints_per_domain_max: Integer<1, { limits::ENDPOINTS_MAX as u32 }> = "32", Restart;
        /// The largest number of MX endpoint numbers of one user, on all boards together.
        mx_endpoints_per_user_max: Integer<1, { isthmus_layout::mx::BOARDS_MAX as u32 * isthmus_layout::mx::ENDPOINTS_MAX }> = "8160", Restart;
        /// The largest number of channels of one domain. Messages to further peers go through the daemon.
        channels_per_domain_max: Integer<0, { limits::READY_MAP_BITS }> = "1024", Restart;
        /// Room for medium messages in each direction of a channel. Memory is taken as it is used and given back when
        /// idle. Where the memory cannot be allocated or mapped, a channel has less, 64 at least.
        slab_kib: PowerOfTwoKib<{ limits::SLAB_BYTES_MIN >> 10 }, { limits::SLAB_BYTES_MAX >> 10 }> = "256", Restart;
        /// How long a program may take to attach before its connection is closed.
        handshake_timeout_ms: Millis<10, 60000> = "1000", Restart;
    }
    /// MX boards, as programs that use MX see them.
    mx: MxConfig {
        /// MX boards: the virtual network cards of MX, which all programs of this host share. The daemon generates what
        /// a board leaves open: an address that no network card has, and `<host>:<number>` as its name. The address is
        /// derived from the host's machine-id and name, and from the first `udp` of its links; it changes only with
        /// them. The default is one board without settings, which serves this host only. A board with `links` reaches
        /// boards of other hosts; frames then leave from the address of its first interface, unless it has a `mac`. Two
        /// boards cannot have one address. All boards of a network need the same `dialect` and the same
        /// `frame_bytes_max`. In a variable: `ISTHMUS_DAEMON_MX_BOARD='[{ links = [{ interface = "eth0" }] }]'`.
        board: MxBoardList = "[{}]", Restart;
    }
    /// Streams: TCP connections between programs of this host, the bytes of which go through shared memory.
    sockets: SocketsConfig {
        /// Whether programs that were started for it (`isthmus run --with sockets`) get streams. Without streams, connections stay TCP.
        enabled: bool = "true", Restart;
        /// Whether the kernel records connections for the daemon: a BPF program stores the initial sequence numbers of both
        /// directions on each TCP socket of the host, and a second one marks sockets on which `TCP_REPAIR` was set. By the
        /// numbers the daemon recognises the two ends of a connection in any network namespaces, also behind translated
        /// addresses. `isthmus-helper` loads the program, or a daemon that root starts by hand. Without records, streams exist
        /// within one network namespace only.
        connection_records: bool = "true", Restart;
        /// Whether connections between two network namespaces become streams where the kernel records none. There is no proof then which
        /// sockets are one connection: any program of the user, in any namespace, can take over connections of programs of that user, also
        /// those with clients on other hosts. Only a daemon that was started with `--user` accepts `true`, and it is safe only if all
        /// programs of that user trust each other.
        across: bool = "false", Restart;
        /// The largest number of streams of one user. Further connections stay TCP.
        streams_max: Integer<0, 262144> = "16384", Restart;
        /// The bytes in both directions after which a connection becomes a stream. A connection with eight requests becomes one in any case,
        /// because an upgrade pays off then. 0: with its first byte. `ISTHMUS_SOCKETS_AFTER` overrides it for a program.
        after_bytes: Integer<0, 1073741824> = "32768", Restart;
        /// Addresses of connections that may become streams, if the list is not empty: the address of either end must match an
        /// entry, written as in `sockets.deny`. What `sockets.deny` names stays TCP all the same. A listening socket needs no
        /// entry, because the client's address may be the one that matches: the daemon checks each connection.
        allow: AddressPatterns = "[]", Restart;
        /// Addresses of connections that stay TCP. A connection stays TCP if the address of either end matches an entry:
        /// `ADDRESS[/PREFIX][:PORT]`, with an IPv6 address before a port in brackets.
        deny: AddressPatterns = "[]", Restart;
    }
    /// Verbs: the virtual RDMA adapter, for programs that use libibverbs.
    verbs: VerbsConfig {
        /// Whether programs may use the adapter. Without it, they find no RDMA device of Isthmus.
        enabled: bool = "true", Restart;
    }
    /// The overlay: Ethernet networks for containers and VMs of several hosts.
    overlay: OverlayConfig {
        /// The address of this host at which edges receive. An unspecified IPv6 address includes IPv4.
        listen: ListenAddress = "::", Restart;
        /// The socket of `isthmus-helper`, which creates the interfaces. A daemon that root starts by hand starts its own helper if
        /// the socket does not exist.
        helper: SocketPath = "/run/isthmus-helper.sock", Restart;
        /// The networks of this host. Each is an Ethernet of its own. In a variable:
        /// `ISTHMUS_DAEMON_OVERLAY_NETWORK='[{ name = "lan", interfaces = [{ name = "lan0" }] }]'`.
        network: Networks = "[]", Reload;
    }
    /// Guests under QEMU, with or without KVM.
    kvm: KvmConfig {
        /// Guests with programs that attach to this daemon. Each needs a device, which `isthmus guest xml <name>`
        /// prints, and in it the driver and `isthmusd --guest`. In a variable:
        /// `ISTHMUS_DAEMON_KVM_GUEST='[{ name = "web", user = "ann" }]'`.
        guest: Guests<KvmGuest> = "[]", Restart;
        /// The size of the window that two guests share if the daemon has the `monitor` of both. Channels between their
        /// programs are in it.
        pair_window_mib: PowerOfTwoMib<1, 4096> = "32", Restart;
        /// How long such a window stays when no channel is in it.
        pair_window_idle_s: Seconds<1, 604800> = "60", Restart;
        /// How long monitors, and after them the guests, may take until both guests have such a window.
        pair_window_timeout_s: Seconds<1, 3600> = "60", Restart;
    }
    /// Guests of Xen, where this daemon is in domain 0 or in a driver domain.
    xen: XenConfig {
        /// Guests with programs that attach to this daemon, if domain 0 lets them (`isthmus guest allow <name>`), and
        /// with `isthmusd --guest`. In a variable: `ISTHMUS_DAEMON_XEN_GUEST='[{ name = "web", user = "ann" }]'`.
        guest: Guests<XenGuest> = "[]", Restart;
        /// The memory that one guest may grant to another. Channels between their programs are in it. It is granted as
        /// needed, and comes on top of the guest's `window_mib`.
        pair_window_mib: PowerOfTwoMib<1, 4096> = "32", Restart;
        /// How long two guests share pages when no channel is in them.
        pair_window_idle_s: Seconds<1, 604800> = "60", Restart;
        /// How long the guests may take until they share pages.
        pair_window_timeout_s: Seconds<1, 3600> = "60", Restart;
    }
    /// Counters for Prometheus.
    metrics: MetricsConfig {
        /// The address at which counters are served: none, a Unix socket, or a port of the loopback interface.
        listen: MetricsListen = "", Reload;
    }
}

/// A key of the configuration.
#[derive(Debug)]
pub struct Key {
    /// `table.name`, as `--set` accepts it.
    pub path: &'static str,
    /// The table of the key.
    pub table: &'static str,
    /// The name of the key in the table.
    pub name: &'static str,
    /// The kind of TOML value.
    pub type_: &'static str,
    /// The unit of a number; empty if there is none.
    pub unit: &'static str,
    /// The default, as a variable would give it; `{runtime}` and `{grants}` stand for what [`RoleDefaults`](crate::RoleDefaults) has.
    pub default: &'static str,
    /// The time at which a change counts.
    pub effect: Effect,
    /// The purpose of the key, in lines.
    pub doc: &'static [&'static str],
    pub(super) expected: fn() -> String,
    pub(super) tables: &'static [FieldTable],
    pub(super) bare: bool,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for Key {}

/// The time at which a change of a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// After the daemon was started again.
    Restart,
    /// When the daemon reads its configuration again (SIGHUP), or was started again.
    Reload,
}

impl Key {
    /// Returns the values that are allowed: type, range, unit.
    #[must_use]
    pub fn expected(&self) -> String {
        (self.expected)()
    }

    /// Returns the default as the file would have it.
    #[must_use]
    pub fn default_toml(&self) -> String {
        if self.bare { format!("\"{}\"", self.default) } else { self.default.to_owned() }
    }

    /// The variable which overrides the file. Its prefix names the daemon: variables of the library have no `DAEMON`.
    #[must_use]
    pub fn environment(&self) -> String {
        let path = self.path.trim_start_matches("daemon.").replace('.', "_");
        format!("ISTHMUS_DAEMON_{}", path.to_ascii_uppercase())
    }

    /// Returns the purpose of the key, as one line.
    #[must_use]
    pub fn text(&self) -> String {
        joined(self.doc)
    }
}

/// One table of keys.
#[derive(Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// The purpose of its keys, in lines.
    pub doc: &'static [&'static str],
}

impl Table {
    /// Returns the purpose of its keys, as one line.
    #[must_use]
    pub fn text(&self) -> String {
        joined(self.doc)
    }
}

fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// The key of this path.
#[must_use]
pub fn key(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// Makes the structs, [`KEYS`], [`TABLES`] and both directions between a [`Config`] and its values.
macro_rules! table {
    ($($(#[doc = $table_doc:literal])* $table:ident: $Table:ident {
        $($(#[doc = $doc:literal])* $name:ident: $type:ty = $default:literal, $effect:ident;)*
    })*) => {
        /// The configuration of a daemon. All values are checked.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Config {
            $($(#[doc = $table_doc])* pub $table: $Table,)*
        }

        $($(#[doc = $table_doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $Table {
            $($(#[doc = $doc])* pub $name: $type,)*
        })*

        /// All tables, in the order they are shown.
        pub static TABLES: &[Table] = &[$(Table { name: stringify!($table), doc: &[$($table_doc),*] }),*];

        /// All keys, in the order they are shown.
        pub static KEYS: &[Key] = &[$($(Key {
            path: concat!(stringify!($table), ".", stringify!($name)),
            table: stringify!($table),
            name: stringify!($name),
            type_: <$type as Setting>::TYPE,
            unit: <$type as Setting>::UNIT,
            default: $default,
            effect: Effect::$effect,
            doc: &[$($doc),*],
            expected: <$type as Setting>::expected,
            tables: <$type as Setting>::TABLES,
            bare: <$type as Setting>::BARE,
        },)*)*];

        impl Config {
            /// Takes every key from `reader`, which notes what is wrong; none if a key has no right value at all.
            pub(super) fn read(reader: &mut ConfigReader<'_>) -> Option<Self> {
                $(let $table = {
                    $(let $name = reader.read_key::<$type>(concat!(stringify!($table), ".", stringify!($name)));)*
                    (|| Some($Table { $($name: $name?),* }))()
                };)*
                Some(Self { $($table: $table?),* })
            }

            /// Each key with its value, in the order of [`KEYS`].
            #[must_use]
            pub fn values(&self) -> Vec<(&'static Key, toml::Value)> {
                let values = [$($(self.$table.$name.to_toml(),)*)*];
                KEYS.iter().zip(values).collect()
            }
        }
    };
}
use table;

impl Config {
    /// The keys that have different values.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<&'static Key> {
        let pairs = self.values().into_iter().zip(other.values());
        pairs.filter(|((_, ours), (_, theirs))| ours != theirs).map(|((key, _), _)| key).collect()
    }
}
