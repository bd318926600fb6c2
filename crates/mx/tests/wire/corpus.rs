//! The fuzz corpora (`fuzz/corpus/mxoe_mx`, `mxoe_open_mx`) hold each packet of their dialect at least once, and pass with any
//! compiler. `UPDATE=1 cargo test -p isthmus-mx --test wire corpus` writes the seeds; what a fuzzer adds is kept.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use isthmus_mx::wire::{Announcement, Dialect, Packet, parse};

use crate::samples::samples;
use crate::spec_packets::bodies;
use crate::{DIALECTS, frame};

fn folder(dialect: Dialect) -> PathBuf {
    let name = if dialect == Dialect::Mx { "mxoe_mx" } else { "mxoe_open_mx" };
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name)
}

#[test]
#[cfg_attr(miri, ignore = "the corpus is large, and parsers have no unsafe code")]
fn packets_are_all_in_the_corpora() {
    for dialect in DIALECTS {
        let folder = folder(dialect);
        if std::env::var_os("UPDATE").is_some() {
            for sample in samples().iter().filter(|sample| sample.dialects.contains(&dialect)) {
                std::fs::write(folder.join(format!("V{:02}", sample.number)), &sample.frame).unwrap();
            }
        }
        let mut kinds = BTreeSet::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            let Ok((header, packet)) = parse(dialect, &bytes) else { continue };
            kinds.insert(packet.kind().number());
            if let Packet::Raw(raw) = &packet {
                // A raw packet has no length, so one that is too short would return with its padding.
                _ = Announcement::parse(raw.data);
                continue;
            }
            let again = frame(dialect, &header, &packet).unwrap();
            assert_eq!(parse(dialect, &again), Ok((header, packet)));
        }
        let all: BTreeSet<u8> = bodies().iter().map(|(_, of)| of(dialect).base.kind().number()).collect();
        assert_eq!(kinds, all);
    }
}
