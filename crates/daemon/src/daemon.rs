//! The daemon: opens the socket and everything else that needs a privilege, and serves until it is stopped.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use isthmus_channel::WaitMode;
use isthmus_layout::channel::SlabSize;
use isthmus_layout::control::{Name, VersionRange};
use isthmus_layout::reason::Reason;
use isthmus_platform::activation::Watchdog;
use isthmus_platform_kvm::{Device, DeviceError, MemoryType};
use isthmus_platform_xen::Devices;
use isthmus_service::{Event, SendPolicy, Service, ServiceOptions, StartError};
use rustix::fs::{FlockOperation, Mode, OFlags, inotify};
use rustix::io::Errno;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::metrics_server::MetricsServer;
use crate::{heartbeat, privileges};
use isthmus_config::{self as config, AttachPolicy, Config, Grants, KvmGuest, Loaded, MetricsListen, WorkerWaitMode};
use isthmus_control::async_fd;
use isthmus_control::broker::{Broker, DataPlane, ReportFacts, Settings, StoredFds};
use isthmus_control::capabilities::Capabilities;
use isthmus_control::credentials;
use isthmus_control::directory::{Directory, Limits};
use isthmus_control::policy::Policy;
use isthmus_control::server::{Ended, Server, Stop};
use isthmus_control::socket::{Listener, SocketAccess, SocketError};
use isthmus_control::tickets::Tickets;
use isthmus_guests::kvm::KvmGuests;
use isthmus_guests::kvm::fd_store::{self, FdStore};
use isthmus_guests::proxy::guest::{self, GuestDaemon};
use isthmus_guests::xen;
use isthmus_guests::xen::backend::Backend;
use isthmus_report::SCHEMA;

/// The options of a daemon.
pub struct DaemonOptions {
    /// The configuration, checked.
    pub loaded: Loaded,
    /// A socket that is already open. Without it, the daemon opens the configuration's socket.
    pub socket: Option<OwnedFd>,
    /// The versions that the daemon claims to speak. Tests claim others.
    pub versions: VersionRange,
    /// Reads the configuration again on SIGHUP.
    pub reload: Option<Reload>,
    /// Whether the daemon listens to SIGTERM, SIGINT and SIGHUP.
    pub signals: bool,
    /// The access to the host, if this is the daemon of a guest.
    pub guest: Option<HostAccess>,
    /// Descriptors that a previous daemon has left, with the names under which they were kept.
    pub restored_fds: Vec<(String, OwnedFd)>,
    /// A datagram socket on which descriptors can be left for the next daemon, in the form that systemd accepts. Without it none are left.
    pub fd_store: Option<OwnedFd>,
    /// The service manager that expects heartbeats.
    pub watchdog: Option<Watchdog>,
}

/// The way in which the daemon of a guest reaches its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostAccess {
    /// A device of QEMU's, by the path of its node.
    Device(PathBuf),
    /// Grants to a backend that is announced in XenStore.
    Xen,
}

/// Reads the configuration again. The error says why that is not possible.
pub type Reload = Box<dyn Fn() -> Result<Loaded, String>>;

impl DaemonOptions {
    /// Returns the usual options.
    pub fn new(loaded: Loaded) -> Self {
        Self {
            loaded,
            socket: None,
            versions: VersionRange::CURRENT,
            reload: None,
            signals: true,
            guest: None,
            restored_fds: Vec::new(),
            fd_store: None,
            watchdog: None,
        }
    }
}

/// The slab size of domains' rings if there are links to other hosts.
const RING_SLAB: SlabSize = SlabSize::new(1 << 20).expect("a slab may be as large");

/// The interval at which a guest's daemon that lost its device looks for another one.
const DEVICE_RETRY: Duration = Duration::from_millis(200);

/// The reason why a daemon did not start, or ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The socket could not be opened.
    #[error("daemon.socket: {0}")]
    Socket(#[from] SocketError),
    /// The files for the next daemon cannot be kept, so that no domain would resume.
    #[error("daemon.runtime_dir: {}: {source}", path.display())]
    RuntimeDir {
        /// The folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The metrics cannot be served at the configured address.
    #[error("metrics.listen: {address}: {source}")]
    Metrics {
        /// The address.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The workers could not be started.
    #[error(transparent)]
    Workers(#[from] StartError),
    /// A capability cannot be opened.
    #[error("{0}")]
    Capability(String),
    /// A guest's device cannot be served.
    #[error("{0}")]
    Guests(String),
    /// A guest's daemon has no device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The system refused something else.
    #[error("{operation}: {source}")]
    System {
        /// The operation that failed.
        operation: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl DaemonError {
    /// Returns a remedy that the text of the error does not contain.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Socket(SocketError::Refused { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("Start the daemon as root, or with `--user` for this user alone.")
            }
            Self::Socket(error) => error.reason().map(Reason::remedy),
            Self::RuntimeDir { .. } => {
                Some("Create the folder, give it to the user of the daemon, or choose another one.")
            }
            Self::Metrics { source, .. } => match source.kind() {
                io::ErrorKind::AddrInUse => {
                    Some("Stop the other program (`ss -lxtp` shows it), or choose another address.")
                }
                io::ErrorKind::NotFound => Some("Create the folder of the socket."),
                io::ErrorKind::PermissionDenied => Some("Choose an address that the user of the daemon may listen at."),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Returns what in this configuration cannot work on this host.
pub fn host_warnings(config: &Config) -> Vec<String> {
    let cgroups = host_warning(config, credentials::missing_for_cgroups());
    let containers = container_warning(config, credentials::kernel_tells_processes());
    cgroups.into_iter().chain(containers).collect()
}

fn container_warning(config: &Config, has_processes: bool) -> Option<String> {
    let is_unknown = config.policy.grants == Grants::SameContainer && !has_processes;
    is_unknown.then(|| {
        "policy.grants is \"same-container\", and the container of no program of this host is known, so large messages and RDMA are \
         copied: start Linux 6.5 or later, or set policy.grants = \"same-user\" if the containers of a user may see each other's memory"
            .to_owned()
    })
}

fn host_warning(config: &Config, missing: Option<&str>) -> Option<String> {
    let missing = missing.filter(|_| config.policy.uses_cgroups())?;
    Some(format!(
        "policy.rules or policy.names has a `cgroup`, so no program of this host may attach: {missing}, or take each `cgroup` out \
         (a user or a group works with every Linux)"
    ))
}

fn log_host_warnings(config: &Config) {
    host_warnings(config).iter().for_each(|warning| tracing::warn!("{warning}"));
}

fn metrics_error(listen: &MetricsListen) -> impl FnOnce(io::Error) -> DaemonError {
    let address = match listen {
        MetricsListen::Off => String::new(),
        MetricsListen::Unix(path) => path.path().display().to_string(),
        MetricsListen::Tcp(address) => address.to_string(),
    };
    |source| DaemonError::Metrics { address, source }
}

fn system_error(operation: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |source| DaemonError::System { operation, source }
}

/// A daemon that has its socket but does not serve yet.
pub struct Daemon {
    options: DaemonOptions,
    listener: Listener,
    stop: Stop,
}

impl Daemon {
    /// Opens the socket. Programs that connect after this wait until [`Daemon::run`].
    pub fn open(mut options: DaemonOptions) -> Result<Self, DaemonError> {
        let config = &options.loaded.config;
        let access =
            if config.policy.attach == AttachPolicy::SameUser { SocketAccess::OwnUser } else { SocketAccess::AllUsers };
        let listener = match options.socket.take() {
            Some(socket) => Listener::inherited(socket),
            None => Listener::open(config.daemon.socket.path(), access)?,
        };
        Ok(Self { options, listener, stop: Stop::default() })
    }

    /// Returns a handle that ends the daemon from any thread.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves until it is stopped. `ready` is called when the daemon begins to serve. Once its sockets are open, this thread and those that
    /// it starts have no capability left except for AF_XDP links, and cannot get any.
    pub fn run(self, ready: impl FnOnce()) -> Result<Ended, DaemonError> {
        self.run_with_kernel(Devices, ready)
    }

    /// Serves like [`Daemon::run`], with `kernel` in place of the Xen devices of this host. Tests pass a fake one.
    pub fn run_with_kernel(self, kernel: impl xen::XenKernel, ready: impl FnOnce()) -> Result<Ended, DaemonError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(system_error("starting the control plane"))?;
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(self.serve(kernel, ready)))
    }

    async fn serve(self, kernel: impl xen::XenKernel, ready: impl FnOnce()) -> Result<Ended, DaemonError> {
        match self.options.guest.clone() {
            Some(host_access) => self.serve_guest(&host_access, kernel, ready).await,
            None => self.serve_host(kernel, ready).await,
        }
    }

    /// Serves the programs of a guest. The host decides about their requests.
    async fn serve_guest(
        self,
        host_access: &HostAccess,
        kernel: impl xen::XenKernel,
        ready: impl FnOnce(),
    ) -> Result<Ended, DaemonError> {
        let Self { options, listener, stop } = self;
        let uid = rustix::process::geteuid().as_raw();
        let policy = Policy::new(options.loaded.config.policy.clone(), uid);
        if options.signals {
            handle_stop_signals(&stop).map_err(system_error("listening to signals"))?;
        }
        if let Some(watchdog) = options.watchdog {
            tokio::task::spawn_local(heartbeat::send(watchdog, || true)); // There are no workers.
        }
        match host_access {
            HostAccess::Device(path) => {
                let device = Device::open(path)?;
                ready();
                serve_devices(device, &listener, &policy, &stop).await
            }
            HostAccess::Xen => {
                ready();
                xen::frontend::serve(kernel, &listener, &policy, &stop).await
            }
        }
        .map_err(system_error("serving"))?;
        Ok(Ended::Stopped)
    }

    async fn serve_host(self, kernel: impl xen::XenKernel, ready: impl FnOnce()) -> Result<Ended, DaemonError> {
        let Self { mut options, listener, stop } = self;
        let config = options.loaded.config.clone();
        let socket = config.daemon.socket.path();
        let (restored_fds, other_fds) = fd_store::guests_of(std::mem::take(&mut options.restored_fds));
        let guests =
            KvmGuests::open(config.kvm.guest.as_slice(), socket, config.daemon.workers.get() as u16, restored_fds);
        let guests = guests.map_err(DaemonError::Guests)?;
        let manager = options.fd_store.as_ref().map(OwnedFd::try_clone).transpose();
        let manager = manager.map_err(system_error("reaching the service manager"))?;
        let fd_store = FdStore::new(options.fd_store.take()).map_err(system_error("reaching the service manager"))?;
        let xen_backend = match config.xen.guest.as_slice() {
            [] => None,
            _ => Some(backend(kernel, &config.xen, config.kvm.guest.as_slice())?),
        };
        let mut tickets = tickets(&config)?;
        let (events_sender, events) = mpsc::unbounded_channel::<Event>();
        let (capabilities, service, metrics_server) =
            match service(&config, &tickets, StoredFds { manager, restored: other_fds }, events_sender) {
                Ok(started) => started,
                Err(error) => {
                    if tickets.resumable().is_empty() {
                        tickets.delete_file();
                    }
                    return Err(error);
                }
            };
        log_start(&config, &tickets);
        log_host_warnings(&config);
        let broker = broker(&options, capabilities, tickets, Box::new(service))?;
        let sizes = broker.sizes();
        let server =
            Server::new(broker, config.limits.handshake_timeout_ms.duration(), config.daemon.idle_exit_s.duration());
        let metrics = MetricsTask::start(metrics_server, &server);
        if options.signals {
            let running = Running { loaded: options.loaded, metrics };
            handle_signals(&server, &stop, running, options.reload).map_err(system_error("listening to signals"))?;
        }
        if let Some(watchdog) = options.watchdog.take() {
            heartbeat::serve(&server, watchdog);
        }
        tokio::task::spawn_local(keep_resume_file(server.clone(), config.daemon.runtime_dir.path().to_owned()));
        guests.serve(&server, socket, &config.kvm, fd_store);
        if let Some(backend) = xen_backend {
            backend.serve(&server, config.daemon.workers.get() as u16, sizes).map_err(DaemonError::Guests)?;
        }
        ready();
        server.run(listener, events, stop).await.map_err(system_error("serving"))
    }
}

/// The shortest time between two looks at the file of resumable domains. Two daemons with one runtime folder would write it all the time.
const FILE_INTERVAL: Duration = Duration::from_secs(1);

/// Has the file of resumable domains written again when another program removes or changes it. An idle daemon does nothing.
async fn keep_resume_file(server: Server, folder: PathBuf) {
    if let Err(error) = watch_folder(&server, &folder).await {
        let text = "cannot watch the runtime folder: a file of resumable domains that is removed is written at the next change";
        tracing::warn!(folder = %folder.display(), %error, "{text}");
    }
}

/// Locks the runtime folder for this daemon. Where another one has it, each overwrites the other's file of resumable domains.
fn lock_folder(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty())?;
    if rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        let text = "another daemon has this runtime folder: after a restart, domains of one of the two do not resume. \
                    Set daemon.runtime_dir of one to a folder of its own";
        tracing::warn!(folder = %folder.display(), "{text}");
    }
    Ok(opened)
}

async fn watch_folder(server: &Server, folder: &Path) -> io::Result<()> {
    let inotify = async_fd::register(inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?)?;
    let changes = inotify::WatchFlags::CLOSE_WRITE
        | inotify::WatchFlags::MOVED_FROM
        | inotify::WatchFlags::MOVED_TO
        | inotify::WatchFlags::DELETE
        | inotify::WatchFlags::DELETE_SELF
        | inotify::WatchFlags::MOVE_SELF;
    let mut lock = None;
    loop {
        server.with(Broker::keep_resume_file); // This makes the folder if it is gone.
        if lock.is_none() {
            lock = Some(lock_folder(folder)?);
        }
        inotify::add_watch(inotify.get_ref(), folder, changes)?; // Again each time, because the folder may be another one.
        server.with(Broker::keep_resume_file); // It may have changed before it was watched.
        let mut ready = inotify.readable().await?;
        tokio::time::sleep(FILE_INTERVAL).await;
        let mut buffer = [0_u8; 4096];
        while rustix::io::read(inotify.get_ref(), &mut buffer).is_ok() {}
        ready.clear_ready();
    }
}

/// Serves one device after the other until it is stopped.
async fn serve_devices(mut device: Device, listener: &Listener, policy: &Policy, stop: &Stop) -> io::Result<()> {
    loop {
        log_device(&device);
        let ended = GuestDaemon::new(device, policy.clone()).run(listener, stop).await?;
        if ended == guest::GuestEnded::Stopped {
            return Ok(());
        }
        tracing::warn!("the device is gone; programs attach again when there is another one");
        let next = async {
            tokio::select! {
                plugged = wait_for_device() => Some(plugged),
                () = stop.stopped() => None,
            }
        };
        match guest::refuse_connections(listener, next).await? {
            Some(plugged) => device = plugged,
            None => return Ok(()),
        }
    }
}

/// Waits for a device.
async fn wait_for_device() -> Device {
    loop {
        tokio::time::sleep(DEVICE_RETRY).await;
        if let Some(device) = Device::of_host().and_then(|node| Device::open(&node).ok()) {
            return device;
        }
    }
}

/// Opens the backend for the guests of Xen. A name may not be used twice, because reports identify guests by their names.
fn backend<K: xen::XenKernel>(
    kernel: K,
    xen: &config::XenConfig,
    others: &[KvmGuest],
) -> Result<Backend<K>, DaemonError> {
    match xen.guest.as_slice().iter().find(|plan| others.iter().any(|other| other.name == plan.name)) {
        Some(twice) => Err(DaemonError::Guests(format!("two guests are called {}", twice.name.name()))),
        None => Backend::open(kernel, xen).map_err(DaemonError::Guests),
    }
}

/// Opens the tickets that a previous daemon has left and the next one will find.
fn tickets(config: &Config) -> Result<Tickets, DaemonError> {
    let path = config.daemon.runtime_dir.path();
    Tickets::open(path).map_err(|source| DaemonError::RuntimeDir { path: path.to_owned(), source })
}

/// Opens the capabilities and the listener for metrics, and starts the workers. Everything that needs a privilege is open before
/// the privileges are dropped.
fn service(
    config: &Config,
    tickets: &Tickets,
    stored: StoredFds,
    events_sender: mpsc::UnboundedSender<Event>,
) -> Result<(Capabilities, Service, Option<MetricsServer>), DaemonError> {
    let mut capabilities = Capabilities::open(config, tickets, stored).map_err(DaemonError::Capability)?;
    let metrics_server = MetricsServer::open(&config.metrics.listen).map_err(metrics_error(&config.metrics.listen))?;
    privileges::drop_unneeded(capabilities.has_xdp_links());
    let service = Service::start(service_options(config), move |event| drop(events_sender.send(event)))?;
    capabilities.first_commands().for_each(|command| service.send(command));
    Ok((capabilities, service, metrics_server))
}

/// Logs the properties of the device, and warns if its window is not cached as memory is.
fn log_device(device: &Device) {
    match device.info() {
        Ok(info) => {
            let (bytes, cached, path) = (info.window.0, info.memory_type, device.path().display());
            tracing::info!("{path}: a window of {bytes} bytes, {cached}, {} vectors", info.vectors);
            if !matches!(cached, MemoryType::WriteBack | MemoryType::Unknown) {
                tracing::warn!("the window is not cached as memory is: see docs/operate/guests.md");
            }
        }
        Err(error) => tracing::warn!("{error}"),
    }
}

/// Logs what the daemon serves beside its capabilities: guests, and the number of domains of the previous daemon that may resume.
fn log_start(config: &Config, tickets: &Tickets) {
    let socket = config.daemon.socket.path();
    for guest in config.kvm.guest.as_slice() {
        tracing::info!(guest = %guest.name.name(), platform = "kvm", device = %guest.socket(socket).display(), "guest");
    }
    for guest in config.xen.guest.as_slice() {
        tracing::info!(guest = %guest.name.name(), platform = "xen", "guest");
    }
    tracing::info!(count = tickets.resumable().len(), "resumable domains");
}

fn service_options(config: &Config) -> ServiceOptions {
    let wait = match config.wait.mode {
        WorkerWaitMode::Adaptive => WaitMode::Adaptive(config.wait.spin_us.duration()),
        WorkerWaitMode::Spin => WaitMode::Spin,
        WorkerWaitMode::Sleep => WaitMode::Sleep,
    };
    ServiceOptions {
        workers: config.daemon.workers.get() as u8, // The configuration allows at most 64.
        wait,
        cpus: config.daemon.worker_cpus.numbers().iter().map(|&cpu| cpu as usize).collect(),
        send_policy: SendPolicy::allow_all(), // The broker sends the true policy before any domain is attached.
    }
}

/// The descriptors that a domain needs: its connection twice, its process, its ring, its ready map and its doorbell, and those that it
/// has in flight.
const FDS_PER_DOMAIN: usize = 8;

fn broker(
    options: &DaemonOptions,
    capabilities: Capabilities,
    tickets: Tickets,
    plane: Box<dyn DataPlane>,
) -> Result<Broker, DaemonError> {
    let config = &options.loaded.config;
    let (uid, fds_max) = (rustix::process::geteuid().as_raw(), raise_descriptor_limit());
    let limits = limits(config, fds_max);
    let slab = SlabSize::new(config.limits.slab_kib.bytes()).expect("checked with the configuration");
    let settings = Settings {
        versions: options.versions,
        name: Name::new(concat!("isthmusd ", env!("CARGO_PKG_VERSION"))).expect("a valid name"),
        uid,
        overflow_uid: overflow_uid(),
        slab,
        // Data from other hosts arrives through this ring. A larger ring wakes its reader less often.
        ring_slab: if capabilities.has_links() { slab.max(RING_SLAB) } else { slab },
        epoch: epoch().map_err(system_error("drawing a random number"))?,
        fds_max,
        sessions_max: limits.domains + 64,
        sessions_per_owner_max: limits.domains_per_owner + 32,
        offer_timeout: 1_000_000_000,
        report_facts: report_facts(&options.loaded),
    };
    let directory = Directory::new(limits, tickets.first());
    let policy = Policy::new(config.policy.clone(), uid);
    Ok(Broker::new(settings, policy, directory, tickets, plane, capabilities))
}

/// Returns the limits: those of the configuration, and no more domains than the descriptors of this process allow.
fn limits(config: &Config, fds_max: usize) -> Limits {
    let limits = &config.limits;
    let (wanted, possible) = (limits.domains_max.get() as usize, (fds_max / FDS_PER_DOMAIN).max(1));
    if possible < wanted {
        let text = "the limit of domains is lower than limits.domains_max, because this process may open few descriptors: \
                    raise LimitNOFILE of its unit, or `ulimit -Hn`";
        tracing::warn!(domains_max = possible, wanted, descriptors = fds_max, "{text}");
    }
    Limits {
        domains: wanted.min(possible),
        domains_per_owner: limits.domains_per_user_max.get() as usize,
        endpoints: limits.endpoints_per_domain_max.get() as usize,
        channels: limits.channels_per_domain_max.get() as usize,
    }
}

fn report_facts(loaded: &Loaded) -> ReportFacts {
    let config = json!({
        "schema": SCHEMA,
        "file": loaded.file.as_deref().map(Path::to_string_lossy),
        "entries": loaded.show_json(),
    });
    let wait = loaded.config.wait.mode.as_str().to_owned();
    ReportFacts { socket: loaded.config.daemon.socket.path().display().to_string(), wait, config }
}

/// Raises the limit of descriptors as far as allowed and returns it. A channel takes a descriptor if its counters are reported.
fn raise_descriptor_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let current = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    usize::try_from(current).unwrap_or(usize::MAX)
}

/// Returns the UID that stands for all users without a UID in this user namespace. None if the namespace maps every UID.
fn overflow_uid() -> Option<u32> {
    let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    let words: Vec<&str> = map.split_whitespace().collect();
    if words == ["0", "0", "4294967295"] {
        return None;
    }
    std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?.trim().parse().ok()
}

fn epoch() -> io::Result<u64> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from(u32::from_le_bytes(bytes)))
}

fn handle_stop_signals(stop: &Stop) -> io::Result<()> {
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let (mut signal, stop) = (signal(kind)?, stop.clone());
        tokio::task::spawn_local(async move {
            while signal.recv().await.is_some() {
                stop.stop();
            }
        });
    }
    Ok(())
}

/// The configuration that is in force, and what was made of it and may be replaced.
struct Running {
    loaded: Loaded,
    metrics: MetricsTask,
}

/// The task that serves the metrics, if one does.
struct MetricsTask(Option<AbortHandle>);

impl MetricsTask {
    fn start(metrics_server: Option<MetricsServer>, server: &Server) -> Self {
        let run = |metrics_server: MetricsServer| tokio::task::spawn_local(metrics_server.run(server.clone()));
        Self(metrics_server.map(|metrics_server| run(metrics_server).abort_handle()))
    }
}

fn handle_signals(server: &Server, stop: &Stop, mut running: Running, reload: Option<Reload>) -> io::Result<()> {
    handle_stop_signals(stop)?;
    let (mut hangup, server) = (signal(SignalKind::hangup())?, server.clone());
    tokio::task::spawn_local(async move {
        while hangup.recv().await.is_some() {
            match reload.as_ref().map(|reload| reload()) {
                Some(Ok(loaded)) => running.apply(&server, loaded),
                Some(Err(error)) => tracing::error!("the configuration stays as it is: {error}"),
                None => tracing::info!("there is no configuration to read again"),
            }
        }
    });
    Ok(())
}

impl Running {
    /// Applies the parts of a configuration that may change while the daemon runs: the policy, the overlay networks, and the address of the
    /// metrics.
    fn apply(&mut self, server: &Server, new: Loaded) {
        let uid = rustix::process::geteuid().as_raw();
        let policy = Policy::new(new.config.policy.clone(), uid);
        let mut failed: Vec<&str> = server
            .with(|broker| {
                broker.set_policy(policy);
                broker.reload(&new.config)
            })
            .into_iter()
            .collect();
        if let Err(error) = self.listen_for_metrics(server, &new.config.metrics.listen) {
            tracing::error!("the metrics stay where they are: {error}");
            failed.push("metrics.listen");
        }
        log_host_warnings(&new.config);
        // The socket of a daemon for one user keeps its mode, so other users do not reach it.
        let alone = |policy: &config::PolicyConfig| policy.attach == AttachPolicy::SameUser;
        let keeps_mode = alone(&self.loaded.config.policy) && !alone(&new.config.policy);
        failed.extend(keeps_mode.then_some("policy.attach"));
        let mut need_restart = self.loaded.note_reload(new, &failed);
        need_restart.extend(keeps_mode.then_some("policy.attach"));
        server.with(|broker| broker.set_report_facts(report_facts(&self.loaded)));
        tracing::info!("the configuration was read again");
        if !need_restart.is_empty() {
            tracing::warn!("needs a restart: {}", need_restart.join(", "));
        }
    }

    fn listen_for_metrics(&mut self, server: &Server, listen: &MetricsListen) -> Result<(), DaemonError> {
        if self.loaded.config.metrics.listen != *listen {
            let metrics_server = MetricsServer::open(listen).map_err(metrics_error(listen))?;
            let before = std::mem::replace(&mut self.metrics, MetricsTask::start(metrics_server, server));
            if let Some(task) = before.0 {
                task.abort();
            }
            self.loaded.config.metrics.listen = listen.clone();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use isthmus_config::{Inputs, Role, load};

    use super::*;

    #[test]
    fn rules_with_cgroups_are_warned_of_where_no_program_has_one() {
        let config = |toml: &str| {
            let file = isthmus_config::ConfigFile::Given { path: "test.toml".into(), bytes: toml.as_bytes().to_vec() };
            load(&Inputs { file, ..Inputs::bare(Role::User) }).unwrap().config
        };
        let with = config("[[policy.rules]]\nto = { cgroup = \"/a\" }\nallow = false\n");
        assert!(
            host_warning(&with, Some("x")).is_some_and(|text| text.contains("no program") && text.contains(": x, or"))
        );
        assert_eq!((host_warning(&with, None), host_warning(&config(""), Some("x"))), (None, None));
    }

    #[test]
    fn warns_where_no_container_is_known() {
        let of_role = |role| load(&Inputs::bare(role)).unwrap().config;
        let (system, user) = (of_role(Role::System), of_role(Role::User));
        assert!(container_warning(&system, false).is_some_and(|text| text.contains("same-user")));
        assert_eq!(
            [(&system, true), (&user, false)].map(|(config, known)| container_warning(config, known)),
            [None, None]
        );
    }

    #[test]
    fn limit_of_domains_is_what_descriptors_allow() {
        let config = load(&Inputs::bare(Role::User)).unwrap().config;
        let domains = [1 << 20, 65_536, 1024, 16, 0].map(|fds_max| limits(&config, fds_max).domains);
        assert_eq!(domains, [4096, 4096, 128, 2, 1]);
    }
}
