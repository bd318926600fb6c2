//! A simulated QEMU monitor. It plugs windows into a machine that does not exist, or refuses to.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isthmus_platform::seqpacket;
use serde_json::{Value, json};

/// The behaviour of a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MonitorBehaviour {
    /// Behaves as QEMU does.
    Honest,
    /// Behaves as QEMU does if a device needs a free port.
    Ports,
    /// Refuses this command.
    Refuses(&'static str),
    /// Accepts commands and never responds.
    Hangs,
    /// Reports success and does nothing.
    Lies,
}

/// A plugged device: its peer number, and the memory of its window.
pub(crate) struct PluggedWindow {
    pub(crate) peer: i64,
    pub(crate) memory: OwnedFd,
}

/// A simulated QEMU monitor.
pub(crate) struct Monitor {
    plugged: Receiver<PluggedWindow>,
    /// The sockets of the devices, by name.
    devices: Arc<Mutex<BTreeMap<String, OwnedFd>>>,
}

impl Monitor {
    pub(crate) fn listen(path: &Path, behaviour: MonitorBehaviour) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let (sender, plugged) = channel();
        let devices = Arc::<Mutex<BTreeMap<String, OwnedFd>>>::default();
        let known = Arc::clone(&devices);
        std::thread::spawn(move || {
            // Serves one connection at a time, as QEMU does, until the test ends.
            for socket in listener.incoming().flatten() {
                MonitorConnection {
                    socket,
                    behaviour,
                    sender: sender.clone(),
                    devices: Arc::clone(&known),
                    handed: None,
                }
                .serve();
            }
        });
        Self { plugged, devices }
    }

    /// Waits for the next plugged device.
    pub(crate) fn plugged(&self) -> PluggedWindow {
        self.plugged.recv_timeout(Duration::from_secs(20)).expect("a window is plugged in")
    }

    /// Returns the number of devices.
    pub(crate) fn devices(&self) -> usize {
        self.devices.lock().unwrap().len()
    }
}

struct MonitorConnection {
    socket: UnixStream,
    behaviour: MonitorBehaviour,
    sender: Sender<PluggedWindow>,
    devices: Arc<Mutex<BTreeMap<String, OwnedFd>>>,
    handed: Option<OwnedFd>,
}

impl MonitorConnection {
    fn serve(mut self) {
        self.send(&json!({ "QMP": { "version": {}, "capabilities": [] } }));
        let mut received = Vec::new();
        while let Some(command) = self.command(&mut received) {
            if self.behaviour == MonitorBehaviour::Hangs {
                continue;
            }
            let name = command["execute"].as_str().unwrap().to_owned();
            self.send(&json!({ "event": "SOMETHING", "data": {} }));
            let answer = match self.behaviour {
                MonitorBehaviour::Refuses(what) if what == name => Err("not today".to_owned()),
                MonitorBehaviour::Lies => Ok(json!({})),
                _ => self.execute(&name, &command["arguments"]),
            };
            match answer {
                Ok(answer) => self.send(&json!({ "return": answer, "id": command["id"] })),
                Err(text) => {
                    let error = json!({ "class": "GenericError", "desc": text });
                    self.send(&json!({ "error": error, "id": command["id"] }));
                }
            }
        }
    }

    fn execute(&mut self, name: &str, arguments: &Value) -> Result<Value, String> {
        let id = arguments["id"].as_str().unwrap_or_default().to_owned();
        match name {
            "qmp_capabilities" | "getfd" => Ok(json!({})),
            "chardev-add" => {
                assert_eq!(arguments["backend"]["data"]["addr"]["data"]["str"], id);
                self.devices.lock().unwrap().insert(id, self.handed.take().ok_or("no such descriptor")?);
                Ok(json!({}))
            }
            "query-chardev" => Ok(json!([{ "label": "isthmus" }])),
            "query-pci" => Ok(json!([{ "devices": [{ "qdev_id": "port1", "pci_bridge": { "devices": [] } }] }])),
            "device_add" => {
                if self.behaviour == MonitorBehaviour::Ports && arguments["bus"] != "port1" {
                    return Err("Bus 'pcie.0' does not support hotplugging".to_owned());
                }
                let devices = self.devices.lock().unwrap();
                let plugged = plug(devices.get(arguments["chardev"].as_str().unwrap()).ok_or("no such chardev")?);
                let _ = self.sender.send(plugged); // The test may have dropped the receiver.
                Ok(json!({}))
            }
            "device_del" => Ok(json!({})),
            "chardev-remove" => {
                self.devices.lock().unwrap().remove(&id).ok_or("no such chardev")?;
                Ok(json!({}))
            }
            other => panic!("{other}"),
        }
    }

    fn send(&self, value: &Value) {
        let _ = rustix::io::write(&self.socket, format!("{value}\n").as_bytes()); // The client may have closed the connection.
    }

    fn command(&mut self, received: &mut Vec<u8>) -> Option<Value> {
        loop {
            if let Some(end) = received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = received.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let (mut bytes, mut fds) = ([0; 4096], Vec::new());
            let taken = seqpacket::receive(&self.socket, &mut bytes, &mut fds, true).ok()?;
            received.extend(&bytes[..taken]);
            if self.behaviour != MonitorBehaviour::Lies {
                self.handed = fds.pop().or(self.handed.take());
            }
        }
    }
}

/// Reads a device's messages as QEMU does when it creates the device.
fn plug(socket: &OwnedFd) -> PluggedWindow {
    let next = || {
        let (mut number, mut fds) = ([0; 8], Vec::new());
        assert_eq!(seqpacket::receive(socket, &mut number, &mut fds, false).unwrap(), 8);
        (i64::from_le_bytes(number), fds.pop())
    };
    assert_eq!(next().0, 0);
    let (peer, None) = next() else { panic!("a number") };
    let (-1, Some(memory)) = next() else { panic!("the window") };
    PluggedWindow { peer, memory }
}
