//! The tables of `docs/spec/device.md` are printed from the types, and the driver's header has the same numbers.
//! `UPDATE=1 cargo test -p isthmus-platform-kvm --test spec` writes the tables.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_platform_kvm::driver::{
    INFO, LISTEN, LOOP, PIECE, RING, RINGER, RawInfo, RawListen, RawLoop, RawPiece, RawRing, RawRinger, RawRoute,
    RawSteer, RawWithdraw, STEER, WITHDRAW,
};
use isthmus_shm::window_extent::{EXTENT, RawExtent, RawShows, SETTLE, SHOWS};
use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A field: its name, where it begins, and what it means.
type Field = (&'static str, usize, &'static str);

/// A structure of the driver's.
struct Structure {
    name: &'static str,
    bytes: usize,
    fields: Vec<Field>,
}

macro_rules! structure {
    ($name:literal, $type:ty, { $($field:ident: $meaning:literal,)* }) => {
        Structure {
            name: $name,
            bytes: size_of::<$type>(),
            fields: vec![$((stringify!($field), offset_of!($type, $field), $meaning)),*],
        }
    };
}

fn memory_structures() -> Vec<Structure> {
    vec![
        structure!("info", RawInfo, {
            abi: "",
            driver: "its version, major << 16 \\| minor",
            window_bytes: "",
            peer: "our number among the device's peers; 0xffffffff: none",
            vectors: "`LISTEN` takes 0 to one less; 0: the device has no interrupts",
            memory_type: "",
            flags: "1 if `memory_type` was read from a program's mapping",
            window_address: "where the window lies in the guest's physical memory",
            reserved: "",
        }),
        structure!("piece", RawPiece, {
            abi: "",
            access: "1 to read, 3 to read and write, 7 the same for a home",
            offset: "of the window, in whole pages",
            bytes: "whole pages, at least one",
            descriptor: "answered; of the file that maps these bytes",
            reserved: "",
        }),
        structure!("withdraw", RawWithdraw, { abi: "", descriptor: "a piece of this device", }),
        structure!("listen", RawListen, {
            abi: "",
            vector: "",
            descriptor: "an eventfd, which is signalled from now on; -1: none",
            reserved: "",
        }),
        structure!("ringer", RawRinger, {
            abi: "",
            peer: "up to 65535; 0 is the host",
            vector: "up to 65535",
            descriptor: "answered; a write to it rings, of whatever bytes",
        }),
        structure!("ring", RawRing, { abi: "", peer: "", vector: "", reserved: "", }),
        structure!("extent", RawExtent, {
            abi: "",
            access: "",
            bytes: "which can be mapped, from 0; never less",
            memory_type: "of what was mapped; 0 before",
            flags: "1 if the piece was withdrawn or settled, or its device has gone",
            reserved: "",
        }),
        structure!("shows", RawShows, {
            abi: "",
            shows: "answered: 1 or 0",
            address: "of the calling process; whole pages",
            bytes: "whole pages",
            offset: "of the piece; whole pages",
        }),
    ]
}

fn structures() -> impl Iterator<Item = Structure> {
    memory_structures().into_iter().chain(network_structures())
}

/// Returns the structures of network devices.
fn network_structures() -> Vec<Structure> {
    vec![
        structure!("loop", RawLoop, {
            abi: "",
            side: "0 or 1: the side of the extent that is ours",
            piece: "a piece to read and write, of any device: the extent",
            ringer: "of any device: rings the peer's vector",
            vector: "of this device, without a listener",
            lower: "the index of the interface on which frames arrive; 0: none",
            mtu: "0: that of the lower interface, or 1500",
            reserved: "",
            index: "answered: of the network device",
            descriptor: "answered; the device ends when it is closed",
        }),
        structure!("steer", RawSteer, {
            abi: "",
            interface: "the index of an Ethernet interface",
            reserved: "",
            descriptor: "answered; the steering ends when it is closed",
        }),
        structure!("route", RawRoute, {
            mac: "a unicast address",
            reserved: "",
            device: "the index of a loop device; 0: none yet",
        }),
    ]
}

impl Structure {
    fn ends(&self) -> impl Iterator<Item = usize> {
        self.fields[1..].iter().map(|(_, at, _)| *at).chain([self.bytes])
    }

    fn table(&self) -> String {
        let mut table = String::from("| offset | bytes | meaning |\n| --- | --- | --- |\n");
        for ((name, at, meaning), end) in self.fields.iter().zip(self.ends()) {
            let text = match (*name, *meaning) {
                ("reserved", _) => "reserved, zero".to_owned(),
                (name, "") => format!("`{name}`"),
                (name, meaning) => format!("`{name}`: {meaning}"),
            };
            writeln!(table, "| {at} | {} | {text} |", end - at).unwrap();
        }
        table
    }
}

/// Returns the requests: name, number, and the kind of file that accepts it.
fn requests() -> [(&'static str, u32, &'static str); 11] {
    [
        ("INFO", INFO, "node"),
        ("PIECE", PIECE, "node"),
        ("WITHDRAW", WITHDRAW, "node"),
        ("LISTEN", LISTEN, "node"),
        ("RINGER", RINGER, "node"),
        ("RING", RING, "node"),
        ("LOOP", LOOP, "node"),
        ("STEER", STEER, "node"),
        ("EXTENT", EXTENT, "piece"),
        ("SHOWS", SHOWS, "piece"),
        ("SETTLE", SETTLE, "piece"),
    ]
}

fn numbers() -> String {
    let mut table = String::from("| number | name | to | how | bytes |\n| --- | --- | --- | --- | --- |\n");
    for (name, number, to) in requests() {
        let how = match number >> 30 {
            0 => "tells",
            1 => "asks",
            2 => "answers",
            _ => "asks and answers",
        };
        writeln!(table, "| {number:#x} | `{name}` | {to} | {how} | {} |", number >> 16 & 0x3fff).unwrap();
    }
    table
}

#[test]
fn the_device_stands_as_documented() {
    let path = format!("{ROOT}/docs/spec/device.md");
    let stands = std::fs::read_to_string(&path).unwrap();
    let mut printed = stands.clone();
    let tables = structures().map(|structure| (structure.name, structure.table()));
    for (name, table) in tables.chain([("numbers", numbers())]) {
        let begin = format!("<!-- table {name} -->\n");
        let start = printed.find(&begin).unwrap_or_else(|| panic!("no table {name}")) + begin.len();
        let end = start + printed[start..].find("<!-- end -->").unwrap();
        printed.replace_range(start..end, &format!("\n{table}\n"));
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &printed).unwrap();
    } else {
        assert!(stands == printed, "docs/spec/device.md is not what the types say: run with UPDATE=1");
    }
}

#[test]
fn the_drivers_header_says_the_same() {
    let mut source = String::from("#include <stddef.h>\n#include \"isthmus.h\"\n");
    let mut check = |left: String, right: u64| {
        writeln!(source, "_Static_assert({left} == {right}, \"{}\");", left.replace('"', "'")).unwrap();
    };
    for (name, number, _) in requests() {
        check(format!("ISTHMUS_{name}"), number.into());
    }
    for structure in structures() {
        let name = format!("struct isthmus_{}", structure.name);
        check(format!("sizeof({name})"), structure.bytes as u64);
        for ((field, at, _), end) in structure.fields.iter().zip(structure.ends()) {
            check(format!("offsetof({name}, {field})"), *at as u64);
            check(format!("sizeof((({name} *)0)->{field})"), (end - at) as u64);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("check.c");
    std::fs::write(&file, source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-I"]).arg(format!("{ROOT}/kmod")).arg(&file);
    let built = compiler.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}
