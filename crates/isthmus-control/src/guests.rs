//! Guests under QEMU: their devices, and a border for each that is there.
//!
//! ```text
//!   [[kvm.guest]] ──► IvshmemServer ── QEMU connects ──► Estate, Border ── QEMU or its device is gone ──► all its domains end
//! ```
//!
//! Guests with a monitor can have windows in common ([`pairs`](crate::pairs)).

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use isthmus_layout::RegionSize;
use isthmus_platform_kvm::{Event, Guest, IvshmemServer, Shape, VECTORS_MIN};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::border::host::Border;
use crate::broker::GuestView;
use crate::config::{self, KvmGuest};
use crate::disposal::Given;
use crate::ground::{Estate, GroundNumber};
use crate::pairs::{self, Neighbour, Place, Plan};
use crate::server::Server;
use crate::watched::watched;

/// QEMU opens it; the guest of whoever else does would be taken for this one.
const SOCKET_MODE: u32 = 0o600;

/// How often it is looked whether a guest's machine has taken what it was told: nothing else says so.
const HEARD: Duration = Duration::from_millis(2);

/// Where guests' devices are served, before anybody is.
pub(crate) struct Guests(Vec<(KvmGuest, IvshmemServer)>);

impl Guests {
    /// Opens all sockets. `daemon` is the daemon's own, `workers` its number of workers. An error says which socket could not be opened.
    pub(crate) fn open(plans: &[KvmGuest], daemon: &Path, workers: u16) -> Result<Self, String> {
        let open = |plan: &KvmGuest| {
            // The crossing's vector, and one for each worker as far as there are.
            let toward_host = (1 + workers).clamp(VECTORS_MIN, plan.vectors());
            let shape = Shape::new(RegionSize(plan.window_bytes()), toward_host, plan.vectors());
            let shape = shape.map_err(|error| error.to_string())?;
            let server = IvshmemServer::listen(&plan.socket(daemon), SOCKET_MODE, shape);
            Ok((plan.clone(), server.map_err(|error| error.to_string())?))
        };
        plans.iter().map(open).collect::<Result<_, String>>().map(Self)
    }

    /// Serves them, each on a task of the server's thread.
    pub(crate) fn serve(self, server: &Server, daemon: &Path, kvm: &config::Kvm) {
        // Machines may still know guests of a daemon before by their numbers.
        let epoch = server.with(|broker| broker.settings.epoch);
        let numbers = Rc::new(std::cell::Cell::new(1 + u32::from(epoch as u16 / 4)));
        let mut places = std::collections::BTreeMap::new();
        let size = RegionSize(u64::from(kvm.common_mib.get()) << 20);
        for (plan, devices) in self.0 {
            let view = GuestView {
                uid: plan.user.uid,
                socket: plan.socket(daemon).display().to_string(),
                window_bytes: plan.window_bytes(),
                vectors: plan.vectors(),
                monitor: plan.monitor().map(|monitor| monitor.display().to_string()),
                common_bytes: size.0,
                estate: None,
                daemon: false,
            };
            server.with(|broker| broker.add_guest(plan.name.name().clone(), view));
            let (device, neighbours) = unbounded_channel();
            if let Some(monitor) = plan.monitor() {
                places.insert(plan.name.name().clone(), Place { monitor: monitor.to_owned(), device });
            }
            let (server, numbers) = (server.clone(), Rc::clone(&numbers));
            spawn_local(async move {
                let name = plan.name.name().clone();
                if let Err(error) = serve(&plan, devices, neighbours, &server, &numbers).await {
                    tracing::error!(guest = %name, "it is not served any more: {error}");
                }
            });
        }
        if !places.is_empty() {
            let (sends, wanted) = unbounded_channel();
            server.with(|broker| broker.make_windows_by(sends));
            let mark = format!("{epoch:x}");
            let seconds = |seconds| Duration::from_secs(u64::from(seconds));
            let (idle, limit) = (seconds(kvm.common_idle_s.get()), seconds(kvm.plug_timeout_s.get()));
            spawn_local(pairs::serve(server.clone(), Plan { size, idle, limit, places, mark }, wanted));
        }
    }
}

/// One guest after the other, at one socket.
async fn serve(
    plan: &KvmGuest,
    mut devices: IvshmemServer,
    mut neighbours: UnboundedReceiver<Neighbour>,
    server: &Server,
    numbers: &std::cell::Cell<u32>,
) -> io::Result<()> {
    let name = plan.name.name();
    let ready = watched(devices.as_fd().try_clone_to_owned()?)?;
    let mut gone: Option<Rc<Notify>> = None;
    // Who waits until the guest's machine has taken what it was told.
    let mut waiting: Vec<oneshot::Sender<()>> = Vec::new();
    loop {
        if devices.is_heard() {
            for known in waiting.drain(..) {
                let _ = known.send(()); // Else it is given up.
            }
        }
        match devices.poll() {
            None => tokio::select! {
                ready = ready.readable() => ready?.clear_ready(),
                Some(neighbour) = neighbours.recv() => match neighbour {
                    Neighbour::Comes { peer, bells, known } => {
                        devices.introduce(peer, bells);
                        waiting.push(known);
                    }
                    Neighbour::Goes { peer } => devices.part(peer),
                },
                () = sleep(HEARD), if !waiting.is_empty() => {}
            },
            Some(Event::Connected(guest)) => {
                tracing::info!(guest = %name, qemu = guest.process, "its device is there");
                let number = GroundNumber(numbers.replace(numbers.get() + 1));
                let estate = estate(plan, guest, number);
                show(server, plan, Some(Arc::clone(&estate)));
                gone = Some(spawn(Border::new(server.clone(), estate, plan.user.uid), name.to_string()));
            }
            Some(Event::Gone { how, socket }) => {
                tracing::info!(guest = %name, "{how}");
                waiting.clear(); // Nobody hears them.
                gone.take().inspect(|gone| gone.notify_one());
                show(server, plan, None);
                drop(Given::by(plan.user.uid, socket));
            }
            Some(Event::Failed { why, socket }) => {
                tracing::warn!(guest = %name, "a connection for its device came to nothing: {why}");
                drop(socket.map(|socket| Given::by(plan.user.uid, socket)));
            }
        }
    }
}

fn estate(plan: &KvmGuest, guest: Guest, number: GroundNumber) -> Arc<Estate> {
    let Guest { window, size, outward, inward, .. } = guest;
    Estate::new(number, plan.name.name().clone(), window, size.0, (outward, inward))
}

/// For reports: whether the guest has its device.
fn show(server: &Server, plan: &KvmGuest, estate: Option<Arc<Estate>>) {
    server.with(|broker| {
        if let Some(guest) = broker.guest_mut(plan.name.name()) {
            guest.daemon &= estate.is_some();
            guest.estate = estate;
        }
        broker.guests_changed();
    });
}

/// What is returned ends it.
fn spawn(border: Border, name: String) -> Rc<Notify> {
    let gone = Rc::new(Notify::new());
    let told = Rc::clone(&gone);
    spawn_local(async move {
        if let Err(error) = border.serve(told.notified()).await {
            tracing::error!(guest = %name, "its border is not served: {error}");
        }
    });
    gone
}
