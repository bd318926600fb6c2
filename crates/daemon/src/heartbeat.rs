//! Heartbeats for the watchdog of a service manager. A heartbeat goes through the control plane and every worker.
//!
//! ```text
//!   control ── Heartbeat ──► every worker
//!           ◄── counters ───┘   all have counted it: WATCHDOG=1, and the next one
//! ```
//!
//! If a worker does not count a heartbeat, or the control plane hangs, no message follows. The service manager then starts the daemon
//! again, and its domains resume.

use isthmus_platform::activation::{WATCHDOG, Watchdog};
use isthmus_service::Command;
use rustix::net::{SendFlags, send as send_datagram};
use std::sync::atomic::Ordering::Relaxed;

use isthmus_control::broker::WorkerReadyMaps;
use isthmus_control::server::Server;

/// The number of checks within the time limit of the service manager.
const CHECKS: u32 = 4;

/// The heartbeats of the workers.
#[derive(Debug, Default)]
struct Heartbeat {
    /// The number of heartbeats that the workers were sent.
    sent: u64,
}

impl Heartbeat {
    /// Sends the workers a heartbeat if all have answered the previous one. Returns whether they have.
    fn check(&mut self, workers: &WorkerReadyMaps) -> bool {
        let answered = workers.counters().iter().all(|counters| counters.heartbeats.load(Relaxed) == self.sent);
        if answered {
            self.sent += 1;
            workers.send(Command::Heartbeat);
        }
        answered
    }
}

/// Sends heartbeats from a task of their own, as long as the control plane and all workers answer.
pub(crate) fn serve(server: &Server, watchdog: Watchdog) {
    let (server, mut heartbeat) = (server.clone(), Heartbeat::default());
    tokio::task::spawn_local(send(watchdog, move || server.with(|broker| heartbeat.check(broker.workers()))));
}

/// Sends heartbeats as long as `check` returns true.
pub(crate) async fn send(watchdog: Watchdog, mut check: impl FnMut() -> bool) {
    loop {
        if check() {
            // A service manager that does not read its messages gets the next one.
            let _ = send_datagram(&watchdog.socket, WATCHDOG, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
        tokio::time::sleep(watchdog.timeout / CHECKS).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_control::broker::DataPlane;
    use isthmus_layout::ids::DomainId;
    use isthmus_service::{Service, ServiceOptions, WorkerCounters, WorkerIndex};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// A data plane with workers that answer, and one more that does not.
    #[derive(Debug)]
    struct WithDeadWorker {
        living: Service,
        counters: Vec<Arc<WorkerCounters>>,
    }

    impl DataPlane for WithDeadWorker {
        fn worker_of(&self, domain: DomainId) -> WorkerIndex {
            self.living.worker_of(domain)
        }

        fn send(&self, command: Command) {
            self.living.send(command);
        }

        fn counters(&self) -> &[Arc<WorkerCounters>] {
            &self.counters
        }
    }

    /// Waits until the first worker has counted this number of heartbeats.
    fn wait_for(workers: &WorkerReadyMaps, count: u64) {
        let begun = Instant::now();
        while workers.counters()[0].heartbeats.load(Relaxed) < count {
            assert!(begun.elapsed() < Duration::from_secs(60), "no heartbeat {count}");
            std::thread::yield_now();
        }
    }

    fn living() -> Service {
        Service::start(ServiceOptions::default(), |_| ()).unwrap()
    }

    #[test]
    fn goes_on_while_the_worker_answers() {
        let (workers, mut heartbeat) = (WorkerReadyMaps::new(Box::new(living())), Heartbeat::default());
        for count in 1..=3 {
            assert!(heartbeat.check(&workers));
            wait_for(&workers, count);
        }
    }

    #[test]
    fn stops_when_a_worker_does_not_answer() {
        let living = living();
        let dead = Arc::<WorkerCounters>::default();
        let counters = vec![Arc::clone(&living.counters()[0]), Arc::clone(&dead)];
        let (workers, mut heartbeat) =
            (WorkerReadyMaps::new(Box::new(WithDeadWorker { living, counters })), Heartbeat::default());
        assert!(heartbeat.check(&workers), "the first one asks");
        wait_for(&workers, 1);
        for _ in 0..3 {
            assert!(!heartbeat.check(&workers));
        }
        // No further heartbeat was sent, so that none pile up in the worker's queue.
        assert_eq!(heartbeat.sent, 1);
        dead.heartbeats.store(1, Relaxed);
        assert!(heartbeat.check(&workers));
    }
}
