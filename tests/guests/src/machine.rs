//! The kind of machine that a guest is, and the place of its window there.

use serde_json::{Value, json};

/// As QEMU calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// Everywhere is a place to plug into.
    Pc,
    /// Only behind root ports, as `isthmus guest xml` prints them.
    Q35,
}

impl Machine {
    /// What the character device of a guest's window is called.
    pub(crate) fn chardev(self) -> &'static str {
        match self {
            Self::Pc => "window",
            Self::Q35 => "isthmus",
        }
    }

    /// What the window's device is called.
    pub(crate) fn device(self) -> &'static str {
        match self {
            Self::Pc => "device",
            Self::Q35 => "isthmus-device",
        }
    }

    /// For QEMU's monitor: that device.
    pub(crate) fn plugged(self, vectors: u32) -> Value {
        let mut device = json!({
            "driver": "ivshmem-doorbell", "id": self.device(), "chardev": self.chardev(), "vectors": vectors
        });
        if self == Self::Q35 {
            device["bus"] = "isthmus0".into();
        }
        device
    }

    /// For QEMU: the machine itself.
    pub(crate) fn kind(self) -> Vec<String> {
        match self {
            Self::Pc => Vec::new(),
            Self::Q35 => vec!["-machine".to_owned(), "q35".to_owned()],
        }
    }

    /// Of what `isthmus guest xml` has printed for QEMU the root ports alone.
    pub(crate) fn ports(printed: &[String]) -> Vec<String> {
        printed.chunks(2).filter(|pair| pair[1].starts_with("pcie-root-port,")).flatten().cloned().collect()
    }
}
