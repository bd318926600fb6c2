//! The line in a time of its own.

use super::*;

const GIGABIT: u64 = 1_000_000_000;

/// Pushes `count` frames of 1514 bytes at time 0 and pops all of them, each when it is due.
fn run(line: &mut ImpairedLine<u32>, count: u32) -> Vec<(u64, u32)> {
    (0..count).for_each(|number| line.push(0, 1514, number));
    let mut out = Vec::new();
    while let Some(now) = line.next_due() {
        while let Some(frame) = line.pop(now) {
            out.push((now, frame));
        }
    }
    out
}

fn numbers(out: &[(u64, u32)]) -> Vec<u32> {
    out.iter().map(|(_, number)| *number).collect()
}

#[test]
fn perfect_line_delivers_all_frames_in_order_at_once() {
    let mut line = ImpairedLine::new(Impairments::default(), WireDirection::Forth);
    let out = run(&mut line, 1000);
    assert_eq!(numbers(&out), (0..1000).collect::<Vec<_>>());
    assert!(out.iter().all(|(at, _)| *at == 0));
    assert_eq!((line.counters().offered, line.counters().delivered, line.counters().longest_bytes), (1000, 1000, 1514));
    assert_eq!(line.counters().offered_bytes, 1_514_000);
}

#[test]
fn gigabit_line_takes_12304_ns_for_a_full_frame() {
    let mut shaper = Shaper::default();
    // 1514 + 24 = 1538 octets, which is what a standard frame takes on the line.
    assert_eq!(shaper.leave(0, 1514, GIGABIT), 12_304);
    assert_eq!(shaper.leave(0, 1514, GIGABIT), 24_608);
    assert_eq!(shaper.leave(1_000_000, 1514, GIGABIT), 1_012_304, "an idle line starts when the frame comes");
    assert_eq!(shaper.leave(1_000_000, 10, GIGABIT), 1_012_304 + 8 * 84, "short frames are padded");
}

#[test]
fn shaper_loses_no_fraction_of_a_nanosecond() {
    let rate = 7_777_777_777;
    let mut shaper = Shaper::default();
    let mut left = 0;
    for _ in 0..100_000 {
        left = shaper.leave(0, 1514, rate);
    }
    let exact = 100_000_u128 * 1538 * 8 * 1_000_000_000 / u128::from(rate);
    assert_eq!(u128::from(left), exact);
    assert_eq!(shaper.backlog_bytes(0, rate), 100_000 * 1538 - 1, "in whole bytes, rounded down");
}

#[test]
fn frames_leave_at_the_rate_and_arrive_after_the_delay() {
    let conditions = Impairments { rate_bits: Some(GIGABIT), delay_us: 500, ..Impairments::default() };
    let out = run(&mut ImpairedLine::new(conditions, WireDirection::Forth), 100);
    let expected = (1..=100).map(|number| number * 12_304 + 500_000).collect::<Vec<u64>>();
    assert_eq!(out.iter().map(|(at, _)| *at).collect::<Vec<_>>(), expected);
}

#[test]
fn queue_before_the_line_is_bounded_in_bytes() {
    let conditions = Impairments { rate_bits: Some(GIGABIT), queue_bytes: 10 * 1538, ..Impairments::default() };
    let mut line = ImpairedLine::new(conditions, WireDirection::Forth);
    let out = run(&mut line, 100);
    assert_eq!((line.counters().queue_full, line.counters().delivered), (90, 10));
    assert_eq!(numbers(&out), (0..10).collect::<Vec<_>>());
    line.push(10 * 12_304, 1514, 100);
    assert_eq!(line.counters().queue_full, 90, "there is room again once the line has carried them away");
}

#[test]
fn frames_under_way_are_bounded_whatever_the_delay() {
    let mut line =
        ImpairedLine::new(Impairments { delay_us: 1_000_000, ..Impairments::default() }, WireDirection::Forth);
    run(&mut line, FRAMES_MAX as u32 + 5);
    assert_eq!(line.counters().queue_full, 5);
}

#[test]
fn loss_follows_the_seed_and_still_occupies_the_line() {
    let conditions =
        Impairments { loss: 0.1, rate_bits: Some(GIGABIT), queue_bytes: u32::MAX, seed: 7, ..Impairments::default() };
    let mut line = ImpairedLine::new(conditions, WireDirection::Forth);
    let out = run(&mut line, 10_000);
    let kept =
        (0..10_000).filter(|number| !FrameFate::of(&conditions, WireDirection::Forth, u64::from(*number)).is_lost);
    assert_eq!(numbers(&out), kept.collect::<Vec<u32>>());
    assert_eq!(line.counters().lost + line.counters().delivered, 10_000);
    assert!((900..1100).contains(&line.counters().lost), "{}", line.counters().lost);
    assert!(out.iter().all(|(at, number)| *at == (u64::from(*number) + 1) * 12_304));
}

#[test]
fn chances_do_not_move_each_other_and_directions_differ() {
    let one = Impairments { loss: 0.1, seed: 3, ..Impairments::default() };
    let more = Impairments { duplicate: 0.5, reorder: 0.5, jitter_us: 9, ..one };
    let lost = |conditions: &Impairments, direction| {
        (0..2000).map(|number| FrameFate::of(conditions, direction, number).is_lost).collect::<Vec<_>>()
    };
    assert_eq!(lost(&one, WireDirection::Forth), lost(&more, WireDirection::Forth));
    assert_ne!(lost(&one, WireDirection::Forth), lost(&one, WireDirection::Back));
    assert_ne!(lost(&one, WireDirection::Forth), lost(&Impairments { seed: 4, ..one }, WireDirection::Forth));
    let always = Impairments { loss: 1.0, ..one };
    assert!((0..1000).all(|number| FrameFate::of(&always, WireDirection::Back, number).is_lost));
}

#[test]
fn duplicates_follow_their_frames() {
    let conditions = Impairments { duplicate: 0.25, ..Impairments::default() };
    let mut line = ImpairedLine::new(conditions, WireDirection::Back);
    let out = run(&mut line, 1000);
    let twice = |number: &u32| FrameFate::of(&conditions, WireDirection::Back, u64::from(*number)).is_doubled;
    let expected = (0..1000).flat_map(|number| vec![number; 1 + usize::from(twice(&number))]).collect::<Vec<u32>>();
    assert_eq!(numbers(&out), expected);
    assert_eq!(line.counters().duplicated as usize, out.len() - 1000);
    assert!((200..300).contains(&line.counters().duplicated));
}

#[test]
fn reordered_frames_are_overtaken_by_the_drawn_number() {
    let conditions = Impairments { reorder: 0.05, seed: 11, ..Impairments::default() };
    let mut line = ImpairedLine::new(conditions, WireDirection::Forth);
    let out = numbers(&run(&mut line, 10_000));
    let mut overtaken = 0;
    for (place, number) in out.iter().enumerate() {
        let fate = FrameFate::of(&conditions, WireDirection::Forth, u64::from(*number));
        let before = out[..place].iter().filter(|other| *other > number).count();
        // Frames that are held back at the same time may overtake one another too.
        assert!(before == 0 || fate.overtaken_by > 0 && before >= usize::from(fate.overtaken_by).min(1), "{number}");
        overtaken += u64::from(fate.overtaken_by > 0 && before > 0);
    }
    let mut sorted = out.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..10_000).collect::<Vec<_>>());
    assert_eq!(line.counters().reordered, overtaken);
    assert!((400..600).contains(&overtaken), "{overtaken}");
}

#[test]
fn single_reordered_frame_is_released_after_the_hold_time() {
    let conditions = Impairments { reorder: 1.0, ..Impairments::default() };
    let mut line = ImpairedLine::new(conditions, WireDirection::Forth);
    line.push(100, 60, 1);
    assert_eq!((line.pop(100), line.next_due()), (None, Some(100 + HOLD_NS)));
    assert_eq!((line.pop(99 + HOLD_NS), line.pop(100 + HOLD_NS)), (None, Some(1)));
    assert_eq!((line.counters().reordered, line.next_due()), (0, None));
}

#[test]
fn jitter_keeps_the_order_and_its_bounds() {
    let conditions = Impairments { delay_us: 100, jitter_us: 50, ..Impairments::default() };
    let mut line = ImpairedLine::new(conditions, WireDirection::Forth);
    let mut came = Vec::new();
    for number in 0..1000_u32 {
        let now = u64::from(number) * 1_000_000; // Far enough apart not to wait for one another.
        line.push(now, 1514, number);
        let due = line.next_due().expect("a frame is under way");
        came.push(due - now);
        assert_eq!(line.pop(due), Some(number));
    }
    assert!(came.iter().all(|delay| (100_000..150_000).contains(delay)));
    assert!(came.iter().any(|delay| *delay < 105_000) && came.iter().any(|delay| *delay > 145_000));
    let out = run(&mut ImpairedLine::new(conditions, WireDirection::Forth), 1000);
    assert_eq!(numbers(&out), (0..1000).collect::<Vec<_>>());
}

#[test]
fn conditions_change_under_way() {
    let slow = Impairments { delay_us: 1000, ..Impairments::default() };
    let mut line = ImpairedLine::new(slow, WireDirection::Forth);
    line.push(0, 60, 0);
    line.change(Impairments::default());
    line.push(1, 60, 1);
    assert_eq!((line.pop(999_999), line.pop(1_000_000), line.pop(1_000_000)), (None, Some(0), Some(1)), "in order");
    line.change(Impairments { loss: 1.0, ..line.conditions() });
    line.push(2_000_000, 60, 2);
    assert_eq!((line.pop(u64::MAX), line.counters().lost), (None, 1));
}

#[test]
fn new_seed_restarts_the_frame_count() {
    let conditions = |seed| Impairments { loss: 0.5, seed, ..Impairments::default() };
    let mut line = ImpairedLine::new(conditions(1), WireDirection::Forth);
    run(&mut line, 17);
    line.change(conditions(2));
    let out = run(&mut line, 500);
    let kept =
        (0..500_u32).filter(|number| !FrameFate::of(&conditions(2), WireDirection::Forth, u64::from(*number)).is_lost);
    assert_eq!(numbers(&out), kept.collect::<Vec<_>>());
}

#[test]
fn refused_frames_were_not_delivered() {
    let mut line = ImpairedLine::new(Impairments::default(), WireDirection::Forth);
    line.push(0, 60, 0);
    assert_eq!(line.pop(0), Some(0));
    line.refuse();
    assert_eq!((line.counters().delivered, line.counters().rejected), (0, 1));
}
