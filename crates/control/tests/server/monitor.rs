//! A monitor of QEMU's, by hand: it plugs windows into a machine that is none, or does not.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isthmus_platform::seqpacket;
use serde_json::{Value, json};

/// How it behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// As QEMU does.
    Honest,
    /// As QEMU does where a device needs a free port.
    Ports,
    /// It says no to this command.
    Refuses(&'static str),
    /// It takes commands and never answers.
    Hangs,
    /// It says that all is done, and does nothing.
    Lies,
}

/// What was plugged in: a device of this number, which shows this memory.
pub(crate) struct Shown {
    pub(crate) peer: i64,
    pub(crate) memory: OwnedFd,
}

/// See the module.
pub(crate) struct Monitor {
    plugged: Receiver<Shown>,
    /// Where devices are, by their names.
    devices: Arc<Mutex<BTreeMap<String, OwnedFd>>>,
}

impl Monitor {
    pub(crate) fn listen(path: &Path, manner: Manner) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let (tells, plugged) = channel();
        let devices = Arc::<Mutex<BTreeMap<String, OwnedFd>>>::default();
        let known = Arc::clone(&devices);
        std::thread::spawn(move || {
            // One at a time, as QEMU; until the test ends.
            for socket in listener.incoming().flatten() {
                Talk { socket, manner, tells: tells.clone(), devices: Arc::clone(&known), handed: None }.serve();
            }
        });
        Self { plugged, devices }
    }

    /// What is plugged in next.
    pub(crate) fn plugged(&self) -> Shown {
        self.plugged.recv_timeout(Duration::from_secs(20)).expect("a window is plugged in")
    }

    /// How many devices there are.
    pub(crate) fn devices(&self) -> usize {
        self.devices.lock().unwrap().len()
    }
}

struct Talk {
    socket: UnixStream,
    manner: Manner,
    tells: Sender<Shown>,
    devices: Arc<Mutex<BTreeMap<String, OwnedFd>>>,
    handed: Option<OwnedFd>,
}

impl Talk {
    fn serve(mut self) {
        self.say(&json!({ "QMP": { "version": {}, "capabilities": [] } }));
        let mut came = Vec::new();
        while let Some(command) = self.command(&mut came) {
            if self.manner == Manner::Hangs {
                continue;
            }
            let name = command["execute"].as_str().unwrap().to_owned();
            self.say(&json!({ "event": "SOMETHING", "data": {} }));
            let answer = match self.manner {
                Manner::Refuses(what) if what == name => Err("not today".to_owned()),
                Manner::Lies => Ok(json!({})),
                _ => self.obey(&name, &command["arguments"]),
            };
            match answer {
                Ok(answer) => self.say(&json!({ "return": answer, "id": command["id"] })),
                Err(text) => {
                    let error = json!({ "class": "GenericError", "desc": text });
                    self.say(&json!({ "error": error, "id": command["id"] }));
                }
            }
        }
    }

    fn obey(&mut self, name: &str, arguments: &Value) -> Result<Value, String> {
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
                if self.manner == Manner::Ports && arguments["bus"] != "port1" {
                    return Err("Bus 'pcie.0' does not support hotplugging".to_owned());
                }
                let devices = self.devices.lock().unwrap();
                let shown = plug(devices.get(arguments["chardev"].as_str().unwrap()).ok_or("no such chardev")?);
                let _ = self.tells.send(shown); // A test may not care.
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

    fn say(&self, value: &Value) {
        let _ = rustix::io::write(&self.socket, format!("{value}\n").as_bytes()); // Who has hung up does not hear it.
    }

    fn command(&mut self, came: &mut Vec<u8>) -> Option<Value> {
        loop {
            if let Some(end) = came.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = came.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let (mut bytes, mut fds) = ([0; 4096], Vec::new());
            let taken = seqpacket::receive(&self.socket, &mut bytes, &mut fds, true).ok()?;
            came.extend(&bytes[..taken]);
            if self.manner != Manner::Lies {
                self.handed = fds.pop().or(self.handed.take());
            }
        }
    }
}

/// What QEMU does when it makes a device.
fn plug(socket: &OwnedFd) -> Shown {
    let next = || {
        let (mut number, mut fds) = ([0; 8], Vec::new());
        assert_eq!(seqpacket::receive(socket, &mut number, &mut fds, false).unwrap(), 8);
        (i64::from_le_bytes(number), fds.pop())
    };
    assert_eq!(next().0, 0);
    let (peer, None) = next() else { panic!("a number") };
    let (-1, Some(memory)) = next() else { panic!("the window") };
    Shown { peer, memory }
}
