//! Guests under QEMU: their devices, and a border for each that is there.
//!
//! ```text
//!   [[kvm.guest]] ──► IvshmemServer ── QEMU connects ──► Estate, Border ── QEMU or its device is gone ──► all its domains end
//! ```

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use isthmus_layout::RegionSize;
use isthmus_platform_kvm::{Event, Guest, IvshmemServer, Shape, VECTORS_MIN};
use tokio::sync::Notify;
use tokio::task::spawn_local;

use crate::border::host::Border;
use crate::broker::GuestView;
use crate::config::KvmGuest;
use crate::disposal::Given;
use crate::ground::{Estate, GroundNumber};
use crate::server::Server;
use crate::watched::watched;

/// QEMU opens it; the guest of whoever else does would be taken for this one.
const SOCKET_MODE: u32 = 0o600;

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
    pub(crate) fn serve(self, server: &Server, daemon: &Path) {
        let numbers = Rc::new(std::cell::Cell::new(1));
        for (plan, devices) in self.0 {
            let view = GuestView {
                uid: plan.user.uid,
                socket: plan.socket(daemon).display().to_string(),
                window_bytes: plan.window_bytes(),
                vectors: plan.vectors(),
                estate: None,
                daemon: false,
            };
            server.with(|broker| broker.add_guest(plan.name.name().clone(), view));
            let (server, numbers) = (server.clone(), Rc::clone(&numbers));
            spawn_local(async move {
                let name = plan.name.name().clone();
                if let Err(error) = serve(&plan, devices, &server, &numbers).await {
                    tracing::error!(guest = %name, "it is not served any more: {error}");
                }
            });
        }
    }
}

/// One guest after the other, at one socket.
async fn serve(
    plan: &KvmGuest,
    mut devices: IvshmemServer,
    server: &Server,
    numbers: &std::cell::Cell<u32>,
) -> io::Result<()> {
    let name = plan.name.name();
    let ready = watched(devices.as_fd().try_clone_to_owned()?)?;
    let mut gone: Option<Rc<Notify>> = None;
    loop {
        match devices.poll() {
            None => ready.readable().await?.clear_ready(),
            Some(Event::Connected(guest)) => {
                tracing::info!(guest = %name, qemu = guest.process, "its device is there");
                let number = GroundNumber(numbers.replace(numbers.get() + 1));
                let estate = estate(plan, guest, number);
                show(server, plan, Some(Arc::clone(&estate)));
                gone = Some(spawn(Border::new(server.clone(), estate, plan.user.uid), name.to_string()));
            }
            Some(Event::Gone { how, socket }) => {
                tracing::info!(guest = %name, "{how}");
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
