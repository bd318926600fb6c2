//! Compares the engine with a model of vectors: after every step of a program, a transport or peers, both agree.
#![allow(clippy::unwrap_used, reason = "tests")]

mod both;
mod model;

use both::EngineAndModel;
use isthmus_mx::{ContextIdBits, Filter, StatusCode};
use proptest::prelude::*;
use proptest::sample::Index;

/// One step.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Receives that differ in their room and their context only.
    Receive {
        filter: Filter,
        length: u32,
        times: u8,
    },
    /// Messages of one partner with different bytes. `whole`: complete on arrival.
    Arrive {
        from: u32,
        match_info: u64,
        length: u32,
        whole: bool,
        times: u8,
    },
    /// Sends. `over`: complete at once.
    Send {
        to: u32,
        match_info: u64,
        length: u32,
        over: bool,
        times: u8,
    },
    Connect {
        match_info: u64,
    },
    /// Ends a receive or send in progress.
    End {
        which: Index,
        code: StatusCode,
        missing: u32,
    },
    Connected {
        which: Index,
        outcome: Result<u32, StatusCode>,
    },
    /// The transport ends a request of any kind, which may be complete or gone.
    Stray {
        which: Index,
    },
    Cancel {
        which: Index,
    },
    Forget {
        which: Index,
    },
    Test {
        which: Index,
    },
    TestAny {
        filter: Filter,
    },
    SetBuffered {
        which: Index,
    },
    TakeMessage {
        which: Index,
    },
    SetContext {
        partner: u32,
        context: usize,
    },
    Fail {
        partner: u32,
        code: StatusCode,
    },
    Disconnect {
        partner: u32,
    },
    Drain,
}

fn match_info() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0..24_u64, 0..3_u64, 0..2_u64).prop_map(|(tag, context, top)| tag | context << 48 | top << 63),
        Just(0),
        any::<u64>()
    ]
}

/// Generates match infos that mostly occur once.
fn wide() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..2000_u64, 1 => match_info()]
}

fn filter() -> impl Strategy<Value = Filter> {
    let mask = prop_oneof![
        6 => Just(u64::MAX),
        1 => Just(u64::MAX << 8),
        1 => Just(u64::MAX >> 16),
        1 => Just(0xffff << 48 | 0x7),
        1 => Just(0xf),
        1 => Just(1 << 63),
        1 => Just(0),
        1 => any::<u64>(),
    ];
    (match_info(), mask).prop_map(|(match_info, mask)| Filter::new(match_info & mask, mask).unwrap())
}

fn code() -> impl Strategy<Value = StatusCode> {
    prop_oneof![3 => Just(StatusCode::Success), 1 => prop::sample::select(&StatusCode::ALL[2..])]
}

fn op() -> impl Strategy<Value = Op> {
    let times = || prop_oneof![8 => Just(1_u8), 1 => 2..12_u8];
    let (partner, which, length) = (|| 0..4_u32, any::<Index>, || 0..5_u32);
    prop_oneof![
        12 => (filter(), length(), times())
            .prop_map(|(filter, length, times)| Op::Receive { filter, length, times }),
        12 => (partner(), match_info(), length(), any::<bool>(), times())
            .prop_map(|(from, match_info, length, whole, times)| Op::Arrive { from, match_info, length, whole, times }),
        6 => (partner(), match_info(), length(), any::<bool>(), times())
            .prop_map(|(to, match_info, length, over, times)| Op::Send { to, match_info, length, over, times }),
        2 => match_info().prop_map(|match_info| Op::Connect { match_info }),
        8 => (which(), code(), 0..2_u32).prop_map(|(which, code, missing)| Op::End { which, code, missing }),
        2 => (which(), prop::result::maybe_ok(partner(), prop::sample::select(&StatusCode::ALL[2..])))
            .prop_map(|(which, outcome)| Op::Connected { which, outcome }),
        1 => which().prop_map(|which| Op::Stray { which }),
        4 => which().prop_map(|which| Op::Cancel { which }),
        2 => which().prop_map(|which| Op::Forget { which }),
        4 => which().prop_map(|which| Op::Test { which }),
        4 => filter().prop_map(|filter| Op::TestAny { filter }),
        1 => which().prop_map(|which| Op::SetBuffered { which }),
        2 => which().prop_map(|which| Op::TakeMessage { which }),
        1 => (partner(), any::<usize>()).prop_map(|(partner, context)| Op::SetContext { partner, context }),
        1 => (partner(), code()).prop_map(|(partner, code)| Op::Fail { partner, code }),
        1 => partner().prop_map(|partner| Op::Disconnect { partner }),
    ]
}

fn contexts() -> impl Strategy<Value = ContextIdBits> {
    let some = vec![(0, 0), (0, 0), (0, 64), (1, 63), (2, 48), (16, 48), (3, 0), (16, 0)];
    prop::sample::select(some).prop_map(|(bits, shift)| ContextIdBits::new(bits, shift).unwrap())
}

proptest! {
    #[test]
    fn engine_and_model_agree_after_every_step(
        contexts in contexts(),
        seed in any::<u64>(),
        steps in prop::collection::vec((op(), filter()), 1..200),
        drained in any::<bool>(),
    ) {
        let mut both = EngineAndModel::new(contexts, seed);
        for (op, look) in &steps {
            both.step(op);
            both.check_agreement(*look);
        }
        if drained {
            both.step(&Op::Drain);
            both.check_agreement(Filter::ANY);
        }
        both.empty();
    }

    /// Builds long queues of each kind, and applies steps to their middle, so that the indices are in use.
    #[test]
    fn engine_and_model_agree_when_queues_are_long(
        contexts in contexts(),
        long in prop::collection::vec((wide(), 0..4_u8), 50..300),
        steps in prop::collection::vec((op(), filter()), 1..100),
    ) {
        let mut both = EngineAndModel::new(contexts, 1);
        // The second round makes queues long again after they were short.
        for _ in 0..2 {
            for (match_info, what) in &long {
                both.step(&match what {
                    0 => Op::Receive { filter: Filter::exactly(*match_info), length: 3, times: 1 },
                    1 => Op::Receive { filter: Filter::new(match_info | 0xf, !0xf0).unwrap_or(Filter::ANY), length: 3, times: 1 },
                    2 => Op::Arrive { from: 1, match_info: *match_info, length: 3, whole: false, times: 1 },
                    _ => Op::Send { to: 2, match_info: *match_info, length: 3, over: true, times: 1 },
                });
            }
            for (op, look) in &steps {
                both.step(op);
                both.check_agreement(*look);
            }
            for ((match_info, _), (_, filter)) in long.iter().zip(&steps) {
                both.step(&Op::Arrive { from: 3, match_info: *match_info, length: 1, whole: true, times: 1 });
                both.step(&Op::TestAny { filter: Filter::exactly(*match_info) });
                both.step(&Op::TestAny { filter: *filter });
                both.check_agreement(Filter::exactly(*match_info));
            }
            both.shorten();
        }
        both.empty();
    }
}
