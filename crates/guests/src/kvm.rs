//! Guests under QEMU: their devices, and a control proxy for each attached guest.
//!
//! ```text
//!   [[kvm.guest]] ──► IvshmemServer ── QEMU connects ──► GuestWindow, GuestProxy ── QEMU or its device is gone ──► all its domains end
//!                          ▲                        └──► FdStore
//!                          └── descriptors that a previous daemon has stored there
//! ```
//!
//! Guests with a monitor can have pair windows.

pub mod fd_store;
mod pairs;
mod qmp;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use isthmus_layout::RegionSize;
use isthmus_platform::PlatformError;
use isthmus_platform_kvm::{DeviceLayout, IvshmemServer, ServerEvent, ServerGuest, VECTORS_MIN};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::pairs::PairTimeouts;
use crate::proxy::host::GuestProxy;
use fd_store::{FdStore, StoredGuests};
use isthmus_config::{self as config, KvmGuest};
use isthmus_control::async_fd::register;
use isthmus_control::broker::GuestView;
use isthmus_control::fd_reaper::ReceivedFd;
use isthmus_control::server::Server;
use isthmus_window::{FileBacking, GuestId, GuestWindow};
use pairs::{PairPlan, PeerChange};

/// A configured guest with the server of its device.
struct ServedGuest {
    plan: KvmGuest,
    device_server: IvshmemServer,
    /// The guest that was taken over from a previous daemon, with its connection.
    resumed: Option<ServerGuest>,
}

/// The interval at which the daemon checks whether QEMU has read the messages of the device server, because no event reports this.
const ACK_POLL: Duration = Duration::from_millis(2);

/// The device servers of all guests, before they are served.
pub struct KvmGuests {
    guests: Vec<ServedGuest>,
    /// Names of guests that cannot be resumed. Their stored descriptors are removed.
    stale_names: Vec<String>,
}

impl KvmGuests {
    /// Opens all sockets, and resumes guests with a stored connection. `daemon` is the daemon's own socket, `workers` its number of workers.
    /// An error names the socket that could not be opened.
    pub fn open(plans: &[KvmGuest], daemon: &Path, workers: u16, mut stored: StoredGuests) -> Result<Self, String> {
        let mut stale_names = Vec::new();
        let open = |plan: &KvmGuest| {
            // One vector for the proxy, and one for each worker up to the number of vectors.
            let toward_host = (1 + workers).clamp(VECTORS_MIN, plan.vectors());
            let device_layout = DeviceLayout::new(RegionSize(plan.window_bytes()), toward_host, plan.vectors());
            let device_layout = device_layout.map_err(|error| error.to_string())?;
            let server = IvshmemServer::listen(&plan.socket(daemon), plan.qemu_user(), device_layout);
            let mut device_server = server.map_err(|error| error.to_string())?;
            let name = plan.name.name().as_str();
            let fds = stored.remove(name);
            let resumed = fds.as_ref().and_then(|fds| resume(name, &mut device_server, fds));
            stale_names.extend(fds.filter(|_| resumed.is_none()).map(|_| name.to_owned()));
            Ok(ServedGuest { plan: plan.clone(), device_server, resumed })
        };
        let guests = plans.iter().map(open).collect::<Result<_, String>>()?;
        stale_names.extend(stored.into_keys());
        Ok(Self { guests, stale_names })
    }

    /// Serves all guests, each on a task of the server's thread.
    pub fn serve(self, server: &Server, daemon: &Path, kvm: &config::KvmConfig, fd_store: FdStore) {
        if !self.guests.is_empty() && !fd_store.is_available() {
            tracing::warn!(
                "no service manager keeps the guests' connections when this daemon ends (docs/operate/guests.md): each guest needs a new device then"
            );
        }
        // Virtual machines may still know guests of a previous daemon by their numbers.
        let epoch = server.with(|broker| broker.epoch());
        let next_number = Rc::new(std::cell::Cell::new(1 + u32::from(epoch as u16 / 4)));
        let (fd_store, size) = (Rc::new(fd_store), RegionSize(u64::from(kvm.pair_window_mib.get()) << 20));
        let mut monitored = std::collections::BTreeMap::new();
        for name in self.stale_names {
            let fd_store = Rc::clone(&fd_store);
            spawn_local(async move { fd_store.remove(&name).await });
        }
        for served_guest in self.guests {
            let plan = &served_guest.plan;
            let view = GuestView {
                socket: plan.socket(daemon).display().to_string(),
                monitor: plan.monitor().map(|monitor| monitor.display().to_string()),
                pair_window_bytes: size.0,
                loops: plan.loops().iter().map(|interface| (interface.network.clone(), interface.mac())).collect(),
                ..GuestView::absent("kvm", plan.user.uid, plan.window_bytes(), plan.vectors())
            };
            server.with(|broker| broker.add_guest(plan.name.name().clone(), view));
            let (device, peer_changes) = unbounded_channel();
            if let Some(monitor) = plan.monitor() {
                let monitor = monitor.to_owned();
                monitored.insert(plan.name.name().clone(), pairs::MonitoredGuest { monitor, device });
            }
            let (server, next_number, fd_store) = (server.clone(), Rc::clone(&next_number), Rc::clone(&fd_store));
            spawn_local(async move {
                let name = served_guest.plan.name.name().clone();
                if let Err(error) = serve(served_guest, peer_changes, &server, &next_number, &fd_store).await {
                    tracing::error!(guest = %name, "the guest is no longer served: {error}");
                }
            });
        }
        if !monitored.is_empty() {
            let (sender, requests) = unbounded_channel();
            server.with(|broker| broker.set_pair_maker("kvm", sender));
            let daemon_tag = format!("{epoch:x}");
            let seconds = |seconds| Duration::from_secs(u64::from(seconds));
            let (idle, limit) = (seconds(kvm.pair_window_idle_s.get()), seconds(kvm.pair_window_timeout_s.get()));
            let limits = PairTimeouts { idle, limit, absence: limit };
            spawn_local(pairs::serve(server.clone(), PairPlan { size, limits, monitored, daemon_tag }, requests));
        }
    }
}

/// Resumes the guest that has its connection stored as these descriptors.
fn resume(name: &str, device_server: &mut IvshmemServer, fds: &[OwnedFd]) -> Option<ServerGuest> {
    for fd in fds {
        match device_server.resume(fd) {
            Ok(Some(guest)) => return Some(guest),
            Ok(None) => {}
            Err(error) => tracing::warn!(guest = name, "the kept device of the guest cannot be resumed: {error}"),
        }
    }
    None
}

/// Serves the guests that connect at one socket, one after the other.
async fn serve(
    served_guest: ServedGuest,
    mut peer_changes: UnboundedReceiver<PeerChange>,
    server: &Server,
    next_number: &std::cell::Cell<u32>,
    fd_store: &FdStore,
) -> io::Result<()> {
    let ServedGuest { plan, mut device_server, resumed } = served_guest;
    let name = plan.name.name();
    let ready = register(device_server.as_fd().try_clone_to_owned()?)?;
    let mut gone: Option<Rc<Notify>> = None;
    let begin = |guest: ServerGuest| {
        let number = GuestId(next_number.replace(next_number.get() + 1));
        let guest_window = guest_window(&plan, guest, number);
        report_device(server, &plan, Some(Arc::clone(&guest_window)));
        spawn(GuestProxy::new(server.clone(), guest_window, plan.user.uid), name.to_string())
    };
    if let Some(guest) = resumed {
        tracing::info!(guest = %name, qemu = guest.process, "resumed the device of the guest");
        gone = Some(begin(guest));
        update_view(server, &plan, |guest| guest.is_stored = true);
    }
    // Senders to notify once QEMU has read all messages of the device server.
    let mut awaiting_drain: Vec<oneshot::Sender<()>> = Vec::new();
    loop {
        if device_server.is_drained() {
            for drained in awaiting_drain.drain(..) {
                let _ = drained.send(()); // The receiver may have given up.
            }
        }
        match device_server.poll() {
            None => tokio::select! {
                ready = ready.readable() => ready?.clear_ready(),
                Some(change) = peer_changes.recv() => match change {
                    PeerChange::Added { peer, doorbells, drained } => {
                        device_server.add_peer(peer, doorbells);
                        awaiting_drain.push(drained);
                    }
                    PeerChange::Removed { peer } => device_server.remove_peer(peer),
                },
                () = sleep(ACK_POLL), if !awaiting_drain.is_empty() => {}
            },
            Some(ServerEvent::Connected(guest)) => {
                tracing::info!(guest = %name, qemu = guest.process, "the device of the guest is connected");
                let stored_fds = device_server.pack(&guest);
                gone = Some(begin(guest));
                store_connection(server, &plan, fd_store, stored_fds).await;
            }
            Some(ServerEvent::Disconnected { reason, socket }) => {
                tracing::info!(guest = %name, "{reason}");
                awaiting_drain.clear(); // QEMU will not read them.
                gone.take().inspect(|gone| gone.notify_one());
                report_device(server, &plan, None);
                drop(ReceivedFd::new(plan.user.uid, socket));
                fd_store.remove(name.as_str()).await;
            }
            Some(ServerEvent::Failed { error, socket }) => {
                tracing::warn!(guest = %name, "a connection for its device came to nothing: {error}");
                update_view(server, &plan, |guest| guest.last_error = Some(error.to_string()));
                drop(socket.map(|socket| ReceivedFd::new(plan.user.uid, socket)));
            }
        }
    }
}

/// Stores a guest's connection with the service manager, if that is available.
async fn store_connection(
    server: &Server,
    plan: &KvmGuest,
    fd_store: &FdStore,
    stored_fds: Result<Option<[OwnedFd; 2]>, PlatformError>,
) {
    let name = plan.name.name();
    if !fd_store.is_available() {
        return;
    }
    match stored_fds {
        Ok(Some(stored_fds)) => match fd_store.store(name, stored_fds).await {
            true => update_view(server, plan, |guest| guest.is_stored = true),
            false => tracing::warn!(guest = %name, "the service manager does not keep the device of the guest"),
        },
        Ok(None) => {} // The guest is already gone.
        Err(error) => tracing::warn!(guest = %name, "the device of the guest cannot be kept over a restart: {error}"),
    }
}

fn guest_window(plan: &KvmGuest, guest: ServerGuest, number: GuestId) -> Arc<GuestWindow> {
    let ServerGuest { window, size, to_guest, from_guest, .. } = guest;
    GuestWindow::new(number, plan.name.name().clone(), FileBacking::own(window, size.0), (to_guest, from_guest))
}

/// Records for reports whether the guest has its device.
fn report_device(server: &Server, plan: &KvmGuest, guest_window: Option<Arc<GuestWindow>>) {
    update_view(server, plan, |guest| {
        if guest_window.is_some() {
            guest.last_error = None;
        }
        guest.daemon &= guest_window.is_some();
        guest.is_stored &= guest_window.is_some();
        guest.guest_window = guest_window;
    });
    server.with(|broker| broker.guests_changed());
}

/// Changes the record of a guest for reports.
fn update_view(server: &Server, plan: &KvmGuest, change: impl FnOnce(&mut GuestView)) {
    server.with(|broker| broker.guest_mut(plan.name.name()).map(change));
}

/// Starts a control proxy. Notifying the returned object ends it.
fn spawn(proxy: GuestProxy, name: String) -> Rc<Notify> {
    let gone = Rc::new(Notify::new());
    let stop = Rc::clone(&gone);
    spawn_local(async move {
        if let Err(error) = proxy.serve(stop.notified()).await {
            tracing::error!(guest = %name, "the control proxy of the guest is not served: {error}");
        }
    });
    gone
}
