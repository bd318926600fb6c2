//! `isthmus why TARGET`: the path between two domains, why it is not a faster one, and what would change that. The folder of a capability
//! explains descriptors, and that of another one queue pairs.

mod target;

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use isthmus_client::Topic;
use isthmus_report::{ChannelRow, DirectionRow, DomainName, PathEnd, ReasonRow, Why};

use super::{ask, named, show};
use crate::capability::{why_descriptor, why_queue_pair};
use crate::output::{Outcome, Output, bytes, counted, duration};

pub(crate) use target::WhyTarget;

pub(crate) fn why(output: Output, socket: Option<PathBuf>, target: &WhyTarget) -> Result<Outcome> {
    match target {
        WhyTarget::Pair(from, to) => {
            show(output, "why", &ask(socket, Topic::Why, &[from.as_str(), to.as_str()])?, text)
        }
        WhyTarget::Descriptor { pid, fd } => why_descriptor(output, socket, *pid, *fd),
        WhyTarget::QueuePair(number) => why_queue_pair(output, socket, *number),
    }
}

pub(crate) fn text(why: &Why) -> String {
    let mut text = format!("{} and {}: {}\n", named(&why.a), named(&why.b), path(&why.path));
    if let Some(reason) = &why.reason {
        text += &explained("why not faster", reason);
    }
    if let Some(channel) = &why.channel {
        text += &channel_text(why, channel);
    }
    match &why.large {
        Some(reason) => text += &explained("large messages are copied twice", reason),
        None if why.path == "channel" => {
            text += "  large messages: copied once, straight out of the sender's pages, if its buffers allow it\n";
        }
        None => {}
    }
    text + &side_text(&why.a, &why.from_a) + &side_text(&why.b, &why.from_b)
}

fn path(name: &str) -> &str {
    match name {
        "channel" => "by a channel (direct path)",
        "daemon" => "through the daemon (daemon path)",
        "none" => "no path",
        "local" => "within one domain",
        other => other,
    }
}

pub(crate) fn explained(title: &str, reason: &ReasonRow) -> String {
    format!("  {title}: {} [{}]\n    remedy: {}\n", reason.summary, reason.reason, reason.remedy)
}

fn channel_text(why: &Why, channel: &ChannelRow) -> String {
    let memory = channel.memory_bytes.map_or_else(|| "unknown".to_owned(), bytes);
    let mut text = format!(
        "  channel {}: {}, {} old, slabs of {}, takes {memory}\n",
        channel.id,
        channel.state,
        duration(channel.age_s),
        bytes(u64::from(channel.slab_bytes))
    );
    let sender = |direction: &DirectionRow| if direction.from == why.a.id { named(&why.a) } else { named(&why.b) };
    for direction in channel.directions.iter().flatten() {
        let _: std::fmt::Result = writeln!(
            text,
            "    {} sent {}, {}, and woke the peer {}",
            sender(direction),
            counted(usize::try_from(direction.messages).unwrap_or(usize::MAX), "message"),
            bytes(direction.bytes),
            counted(usize::try_from(direction.wakeups).unwrap_or(usize::MAX), "time"),
        );
        if let Some(reason) = &direction.fragmented {
            text += &explained("its last long message was sent in fragments", reason);
        }
        if let Some(reason) = &direction.assisted {
            text += &explained("the peer's last remote access needed the owner's help", reason);
        }
    }
    text
}

fn side_text(domain: &DomainName, side: &PathEnd) -> String {
    let source = match side.rule {
        Some(rule) => format!("policy.rules[{rule}]"),
        None => "policy.talk and policy.channels".to_owned(),
    };
    let may = match (side.may_talk, side.may_channel) {
        (true, true) => "may talk, by a channel too",
        (true, false) => "may talk, but not by a channel",
        (false, _) => "may not talk",
    };
    let mut text = format!("from {}:\n  {may} ({source})\n", named(domain));
    let _: std::fmt::Result = writeln!(
        text,
        "  {} of {} channels, {} of {} ready maps, {} offered to the peer",
        side.channels,
        side.channels_max,
        side.ready_maps,
        side.ready_maps_max,
        counted(side.grants as usize, "region")
    );
    if side.backlog > 0 {
        text += &format!(
            "  {} unread; is the program calling the library?\n",
            counted(side.backlog as usize, "notification")
        );
    }
    if let Some(last) = &side.last {
        text += &explained("last channel request", last);
    }
    text
}
