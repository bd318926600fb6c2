//! The kind of machine that a guest is, and the place of its window there.

use serde_json::{Value, json};

/// The machine type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// QEMU's `pc`, in which devices can be plugged into each slot.
    Pc,
    /// QEMU's `q35`, in which devices are plugged into root ports, as `isthmus guest xml` prints them.
    Q35,
}

impl Machine {
    /// Returns the name of the character device of a guest's window.
    pub(crate) fn chardev(self) -> &'static str {
        match self {
            Self::Pc => "window",
            Self::Q35 => "isthmus",
        }
    }

    /// Returns the name of the window's device.
    pub(crate) fn device(self) -> &'static str {
        match self {
            Self::Pc => "device",
            Self::Q35 => "isthmus-device",
        }
    }

    /// Returns that device as an argument of `device_add`.
    pub(crate) fn plugged(self, vectors: u32) -> Value {
        let mut device = json!({
            "driver": "ivshmem-doorbell", "id": self.device(), "chardev": self.chardev(), "vectors": vectors
        });
        if self == Self::Q35 {
            device["bus"] = "isthmus0".into();
        }
        device
    }

    /// Returns the options of QEMU for the machine type.
    pub(crate) fn kind(self) -> Vec<String> {
        match self {
            Self::Pc => Vec::new(),
            Self::Q35 => vec!["-machine".to_owned(), "q35".to_owned()],
        }
    }

    /// Returns the root ports among the options that `isthmus guest xml` has printed.
    pub(crate) fn ports(printed: &[String]) -> Vec<String> {
        printed.chunks(2).filter(|pair| pair[1].starts_with("pcie-root-port,")).flatten().cloned().collect()
    }
}
