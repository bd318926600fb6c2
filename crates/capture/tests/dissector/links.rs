//! Which frame answers which.

use isthmus_mx::wire::{Dialect, Packet};

use crate::frame;
use crate::samples::{Sample, samples};
use crate::tshark::Tshark;

/// The packet of a sample, changed, in MX mode.
fn like(number: usize, change: impl Fn(&mut Packet<Vec<u8>>)) -> Vec<u8> {
    let Sample { header, mut packet, .. } = samples().swap_remove(number - 1);
    change(&mut packet);
    frame(Dialect::Mx, &header, &packet)
}

fn same(number: usize) -> Vec<u8> {
    like(number, |_| {})
}

/// A PULL for eight frames of V11's message.
fn pull(frame_index: u32) -> Vec<u8> {
    like(12, |packet| {
        let Packet::Pull(body) = packet else { panic!("V12 is a PULL") };
        body.frame_index = frame_index;
    })
}

fn reply(frame: u32) -> Vec<u8> {
    like(17, |packet| {
        let Packet::PullReply(body) = packet else { panic!("V17 is a PULL_REPLY") };
        (body.frame_seqnum, body.msg_offset) = (frame as u8, frame * 4096);
    })
}

#[test]
fn requests_and_replies_refer_to_each_other() {
    let Some(tshark) = Tshark::find() else { return };
    let key = |number| {
        like(number, |packet| {
            if let Packet::ConnectRequest(body) = packet {
                body.connect_seqnum = 9;
            }
        })
    };
    let unsolicited = like(16, |packet| {
        let Packet::PullReply(body) = packet else { panic!("V16 is a PULL_REPLY") };
        body.puller.handle += 1;
    });
    // A frame; what it answers, what answers it, and the RNDV that it belongs to, each by number from 1.
    let story: Vec<(Vec<u8>, [&str; 3])> = vec![
        (same(2), ["", "2", ""]),     // 1: HOST_QUERY
        (same(3), ["1", "", ""]),     // 2: HOST_REPLY
        (same(4), ["", "", ""]),      // 3: CONNECT, lost
        (key(4), ["", "", ""]),       // 4: another CONNECT, never answered
        (same(4), ["", "6", ""]),     // 5: the first one again
        (same(5), ["5", "", ""]),     // 6: its reply
        (same(11), ["", "", ""]),     // 7: RNDV
        (pull(2), ["", "", "7"]),     // 8: a block with replies that are not in the capture
        (pull(240), ["", "14", "7"]), // 9: later ones; four are under way at most
        (pull(248), ["", "13", "7"]), // 10
        (pull(256), ["", "15", "7"]), // 11
        (pull(264), ["", "", "7"]),   // 12
        (reply(255), ["10", "", ""]), // 13
        (reply(240), ["9", "", ""]),  // 14
        (reply(263), ["11", "", ""]), // 15: frame 7 modulo 256, which block 2 would have had
        (reply(256), ["11", "", ""]), // 16
        (pull(264), ["", "18", "7"]), // 17: a block again
        (reply(271), ["17", "", ""]), // 18
        (reply(247), ["9", "", ""]),  // 19
        (same(18), ["", "", "7"]),    // 20: NOTIFY
        (same(21), ["17", "", ""]),   // 21: NACK_MCP, for the last PULL of the handle
        (unsolicited, ["", "", ""]),  // 22: without a request
    ];
    let frames: Vec<Vec<u8>> = story.iter().map(|(frame, _)| frame.clone()).collect();
    let columns = ["mxoe.request_in", "mxoe.response_in", "mxoe.rndv_in", "mxoe.response_time"];
    let rows = tshark.show(Dialect::Mx, &[], &frames, &columns);
    for (number, ((_, expected), row)) in (1..).zip(story.iter().zip(&rows)) {
        assert_eq!(&[row.get(columns[0]), row.get(columns[1]), row.get(columns[2])], expected, "frame {number}");
        assert_eq!(row.get("mxoe.response_time").is_empty(), expected[0].is_empty(), "frame {number}");
    }
    // Frames are a microsecond apart.
    assert_eq!(rows[14].get("mxoe.response_time"), "0.000004000");
}
