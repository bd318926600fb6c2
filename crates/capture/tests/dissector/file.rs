//! Files of this crate's writer, as Wireshark's own programs read them.

use isthmus_capture::pcapng::Writer;
use isthmus_capture::{CaptureDirection, CapturedFrame, InterfaceIndex, InterfaceStatistics, PcapInterface};
use isthmus_layout::NicId;
use isthmus_mx::wire::Dialect;

use crate::samples::samples;
use crate::tshark::Tshark;

const TIME_NS: u64 = 1_795_312_800_123_456_789;

#[test]
fn wireshark_tools_read_the_files_without_warnings() {
    let Some(tshark) = Tshark::find() else { return };
    let path = tshark.folder().join("two.pcapng");
    let wire =
        PcapInterface::new("wire0", "the board's link").with_nic(NicId::from_octets([0, 0x1b, 0x21, 0xaa, 0, 1]));
    let mut writer = Writer::new(Vec::new(), &[wire.with_snap_bytes(9014), PcapInterface::new("d7", "")]).unwrap();
    let frame = samples().swap_remove(6).frame;
    for (number, direction) in
        (0..).zip([CaptureDirection::Received, CaptureDirection::Sent, CaptureDirection::Unknown])
    {
        let interface = InterfaceIndex(number as u16 % 2);
        let record =
            CapturedFrame { time_ns: TIME_NS + number, interface, direction, original_bytes: 100, bytes: &frame };
        writer.write_commented(&record, ["", "sent again: no answer", ""][number as usize]).unwrap();
    }
    let told = [0, 1].map(|number| InterfaceStatistics { interface: InterfaceIndex(number), seen: 7, dropped: 5 });
    std::fs::write(&path, writer.finish(&told).unwrap()).unwrap();

    let columns = [
        "frame.time_epoch",
        "frame.interface_name",
        "frame.packet_flags_direction",
        "frame.comment",
        "frame.cap_len",
        "frame.len",
        "mxoe.type",
    ];
    let rows = tshark.show_file(Dialect::OPEN_MX, &[], &path, &columns);
    let shown: Vec<Vec<&str>> = rows.iter().map(|row| columns.iter().map(|column| row.get(column)).collect()).collect();
    assert_eq!(shown[0], ["1795312800.123456789", "wire0", "0x00000001", "", "60", "100", "37"]);
    assert_eq!(shown[1], ["1795312800.123456790", "d7", "0x00000002", "sent again: no answer", "60", "100", "37"]);
    assert_eq!(shown[2], ["1795312800.123456791", "wire0", "0x00000000", "", "60", "100", "37"]);

    let summary = tshark.run("capinfos", &[path.to_str().unwrap()]);
    for line in [
        "pcapng",
        "Ethernet",
        "Number of packets:   3",
        "Number of interfaces in file: 2",
        "Name = wire0",
        "Description = the board's link",
        "Capture length = 9014",
        "Time precision = nanoseconds (9)",
        "Number of stat entries = 1",
        "isthmus",
    ] {
        assert!(summary.contains(line), "{line} in {summary}");
    }
    // Rewritten by another program, block by block: it understands all of them.
    let copy = tshark.folder().join("copy.pcapng");
    tshark.run("editcap", &[path.to_str().unwrap(), copy.to_str().unwrap()]);
    let again = tshark.show_file(Dialect::OPEN_MX, &[], &copy, &columns);
    assert_eq!(format!("{again:?}"), format!("{rows:?}"));
}

/// A capture without frames, and one of frames without bytes.
#[test]
fn empty_captures_are_captures() {
    let Some(tshark) = Tshark::find() else { return };
    let path = tshark.folder().join("empty.pcapng");
    let empty = Writer::new(Vec::new(), &[PcapInterface::new("wire0", "")]).unwrap().finish(&[]).unwrap();
    std::fs::write(&path, empty).unwrap();
    assert!(tshark.show_file(Dialect::Mx, &[], &path, &["frame.len"]).is_empty());
    let rows = tshark.show(Dialect::Mx, &[], &[Vec::new()], &["frame.len"]);
    assert_eq!(rows[0].get("frame.len"), "0");
}
