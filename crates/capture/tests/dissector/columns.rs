//! The line that a list of packets shows of each.

use isthmus_mx::wire::Dialect;

use crate::samples::samples;
use crate::tshark::Tshark;

#[test]
fn summary_lines_show_all_fields_of_a_packet() {
    let Some(tshark) = Tshark::find() else { return };
    let lines = [
        (1, "RAW announcement of 00:1b:21:aa:00:01, serial 0x0a0b0c0d"),
        (2, "HOST_QUERY as peer 1"),
        (3, "HOST_REPLY \"nodeB:0\", as peer 2"),
        (4, "CONNECT ?:1→3 session 0x11223344, key 0x12345, expects 1"),
        (5, "CONNECT reply 1:3→1 success, session 0x55667788, expects 1"),
        (6, "CONNECT reply 1:3→1 bad key, session 0x55667788, expects 1"),
        (7, "TINY 2:1→3 seq 1, 5 B, match 0x222211110000"),
        (8, "SMALL 2:1→3 seq 2, 33 B, match 0x12"),
        (9, "MEDIUM 2:1→3 seq 3, fragment 1: 4 B of 4100 B, match 0x12"),
        (11, "RNDV 2:1→3 seq 4, 1 MiB, rdma 7/23, match 0x12"),
        (13, "PULL 1:3→1 rdma 7/23, 8 frames from 24, 32 KiB of 1 MiB, handle 0x00000023"),
        (16, "PULL_REPLY frame 8, 8 B at 32768, handle 0x00000023"),
        (18, "NOTIFY 1:3→1 seq 1, 1 MiB, rdma 7/23"),
        (19, "TRUC 1:3→1 ack 4, acknum 1"),
        (20, "NACK_LIB 1:3→1 seq 1: endpoint closed"),
        (21, "NACK_MCP bad RDMA window, handle 0x00000023"),
        (22, "TINY 2:1→3 seq 1:2, 0 B, match 0x0"),
    ];
    let mut frames: Vec<Vec<u8>> = lines.iter().map(|(number, _)| samples().swap_remove(number - 1).frame).collect();
    let mut bad = samples().swap_remove(6).frame;
    bad[21] = 33;
    frames.push(bad);
    let last = "TINY [too_long: 33 bytes, of which there are at most 32]";
    let expected = lines.iter().map(|(_, line)| *line).chain([last]);
    let rows = tshark.show(Dialect::Mx, &[], &frames, &["_ws.col.Info", "_ws.col.Protocol"]);
    for (row, expected) in rows.iter().zip(expected) {
        assert_eq!((row.get("_ws.col.Info"), row.get("_ws.col.Protocol")), (expected, "MXoE"));
    }
}

/// Boards that were built with another ethertype (here one for experiments) are shown when that is set.
#[test]
fn another_ethertype_can_be_set() {
    let Some(tshark) = Tshark::find() else { return };
    let mut frame = samples().swap_remove(6).frame;
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    let frames = [frame, samples().swap_remove(6).frame];
    let shown = |prefs: &[&str]| {
        let rows = tshark.show(Dialect::OPEN_MX, prefs, &frames, &["mxoe.type"]);
        rows.iter().map(|row| row.get("mxoe.type").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(shown(&[]), ["", "37"]);
    assert_eq!(shown(&["mxoe.ethertype:34997"]), ["37", "37"]);
}
