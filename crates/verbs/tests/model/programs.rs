//! Programs of arbitrary calls on three nodes, against the model of their flows.

use crate::flows::{Flow, split, spoil};
use crate::network::Network;
use crate::setup::{self, Options, create, look, room};
use isthmus_verbs::{CompletionKind, QpState, QpType, ReceiveRequest, SendFlags, Sge, Status};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Bytes of each receive buffer.
const RECEIVE_BYTES: u32 = 640;

struct Simulation {
    network: Network,
    flows: Vec<Flow>,
    /// Receive requests of the shared queue.
    shared: BTreeMap<u64, Sge>,
    next_id: u64,
    faults: bool,
    rnr_forever: bool,
}

/// A step of a program or of the transport.
#[derive(Clone, Copy, Debug)]
struct Step {
    action: u8,
    choice: u16,
    detail: u16,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (any::<u8>(), any::<u16>(), any::<u16>());
    proptest::collection::vec(step.prop_map(|(action, choice, detail)| Step { action, choice, detail }), 0..300)
}

impl Simulation {
    fn new(options: &Options, faults: bool) -> Self {
        let mut network = Network::new(3, 99);
        let receiver = create(&mut network, 1, QpType::Rc, options, None);
        let srq = network.call(1, |engine, _| engine.create_srq(receiver.pd, 64, 8)).unwrap();
        let mut flows = Vec::new();
        let ends = [
            (QpType::Rc, 0, 1, None),
            (QpType::Uc, 0, 1, None),
            (QpType::Ud, 0, 1, None),
            (QpType::Rc, 0, 1, Some(srq)),
            (QpType::Rc, 2, 1, Some(srq)),
            (QpType::Rc, 2, 2, None),
            (QpType::Ud, 2, 0, None),
        ];
        for (kind, node, peer, shared) in ends {
            let one = create(&mut network, node, kind, options, None);
            let other = create(&mut network, peer, kind, options, shared);
            setup::connect(&mut network, one, other, options);
            flows.push(Flow::new(&mut network, one, other, shared));
            flows.push(Flow::new(&mut network, other, one, None));
        }
        let rnr_forever = options.rnr_retry == 7;
        Self { network, flows, shared: BTreeMap::new(), next_id: 1, faults, rnr_forever }
    }

    fn step(&mut self, Step { action, choice, detail }: Step) {
        let (flow, at) = (usize::from(choice) % self.flows.len(), usize::from(choice));
        match action {
            0..=69 => self.post(flow, choice / 16, detail),
            70..=109 => self.receive(flow, detail),
            110..=159 => drop((0..=detail % 4).all(|_| self.network.send(at % 3, choice.is_multiple_of(5)))),
            160..=204 => drop((0..=detail % 4).all(|_| self.network.deliver(at))),
            205..=219 => drop(self.network.copy(at)),
            220..=231 => drop(self.network.confirm(at)),
            232..=244 => self.poll(flow, usize::from(detail % 5)),
            245..=250 => self.network.tick(u64::from(detail) * 100_000),
            _ if !self.faults => self.network.tick(1),
            251..=252 => self.resume_sends(flow),
            253 => self.disturb(flow),
            _ => self.drain(flow),
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn post(&mut self, at: usize, choice: u16, detail: u16) {
        let wr_id = self.id();
        let faulty = self.faults && detail.is_multiple_of(61);
        let Simulation { network, flows, .. } = self;
        if network.is_gone(flows[at].from.node) {
            return;
        }
        let Some((post, sent, window)) = flows[at].request(network, wr_id, choice, detail, faulty) else { return };
        let qp = flows[at].from;
        if setup::post(network, qp, &post).is_err() {
            return;
        }
        if post.flags.contains(SendFlags::INLINE) {
            spoil(network, qp, &post.sges);
        }
        let flow = &mut flows[at];
        let state = setup::state(network, qp);
        if sent.status != Status::Success {
            flows[at ^ 1].disturbed = true;
        } else if matches!(state, QpState::ReadyToSend | QpState::SendQueueDrained) {
            flow.expected = window;
        }
        flows[at].reads |= sent.kind == CompletionKind::Read;
        flows[at].sent.push(sent);
    }

    fn receive(&mut self, at: usize, detail: u16) {
        let wr_id = self.id();
        let flow = &mut self.flows[at];
        let (network, qp) = (&mut self.network, flow.to);
        if network.is_gone(qp.node) {
            return;
        }
        let sge = room(network, qp, RECEIVE_BYTES);
        let sges = split(sge, usize::from(detail % 4) + 1);
        match flow.srq {
            Some(srq) => {
                let request = ReceiveRequest { wr_id, sges: &sges };
                if network.call(qp.node, |engine, _| engine.post_srq_receive(srq, &request)).is_ok() {
                    self.shared.insert(wr_id, sge);
                }
            }
            None => {
                if setup::receive_into(network, qp, wr_id, &sges).is_ok() {
                    self.flows[at].receives.push_back((wr_id, sge));
                }
            }
        }
    }

    /// Polls the completion queue of the queue pair that sends in this flow, and receives in the one of the other direction.
    fn poll(&mut self, at: usize, count: usize) {
        for _ in 0..count {
            let qp = self.flows[at].from;
            if self.network.is_gone(qp.node) {
                return;
            }
            let Some(completion) = self.network.call(qp.node, |engine, _| engine.poll(qp.cq)) else { return };
            assert_eq!(completion.qp, qp.number);
            let Self { network, flows, shared, rnr_forever, .. } = self;
            if completion.wr_id == 0 {
                panic!("a completion of no request: {completion:?}");
            }
            if flows[at].sent.iter().any(|sent| sent.wr_id == completion.wr_id) {
                flows[at].completed(network, &completion, *rnr_forever);
                if flows[at].failed && qp.kind == QpType::Rc {
                    flows[at ^ 1].disturbed = true;
                }
            } else {
                flows[at ^ 1].received(network, &completion, shared);
            }
        }
    }

    fn resume_sends(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        match setup::state(&self.network, flow.from) {
            QpState::SendQueueError => flow.recoveries.push(flow.sent.len()),
            QpState::SendQueueDrained => {}
            _ => return,
        }
        setup::change_state(&mut self.network, flow.from, QpState::ReadyToSend).unwrap();
    }

    fn drain(&mut self, at: usize) {
        if setup::state(&self.network, self.flows[at].from) == QpState::ReadyToSend {
            setup::change_state(&mut self.network, self.flows[at].from, QpState::SendQueueDrained).unwrap();
        }
    }

    fn disturb(&mut self, at: usize) {
        self.flows[at].disturbed = true;
        self.flows[at ^ 1].disturbed = true;
        setup::change_state(&mut self.network, self.flows[at].from, QpState::Error).unwrap();
    }

    /// Resets the reliable connections without waiting for what is under way, and uses them again.
    fn reconnect(&mut self, options: &Options) {
        let ends: Vec<_> = self.flows.iter().step_by(2).map(|flow| (flow.from, flow.to, flow.srq)).collect();
        for (one, other, srq) in ends {
            if one.kind != QpType::Rc || srq.is_some() {
                continue;
            }
            for qp in [one, other] {
                setup::change_state(&mut self.network, qp, QpState::Reset).unwrap();
            }
            let psns = (options.psns.0 ^ 0x10_0080, options.psns.1 ^ 0x20_0080);
            setup::connect(&mut self.network, one, other, &Options { psns, ..*options });
            for (from, to) in [(one, other), (other, one)] {
                let sges =
                    [setup::receive(&mut self.network, to, 1, 300), setup::receive(&mut self.network, to, 2, 300)];
                setup::send(&mut self.network, from, 3, &[0x55; 300]).unwrap();
                setup::send(&mut self.network, from, 4, &[0x66; 30]).unwrap();
                for _ in 0..8 {
                    self.network.settle();
                    self.network.tick(1 << 34);
                }
                let completions = setup::statuses(&mut self.network, to);
                assert_eq!(completions, [(1, Status::Success), (2, Status::Success)]);
                assert_eq!(look(&self.network, to, sges[0]), [0x55; 300]);
                assert_eq!(look(&self.network, to, sges[1])[..30], [0x66; 30]);
                let completions = setup::statuses(&mut self.network, from);
                assert_eq!(completions, [(3, Status::Success), (4, Status::Success)]);
            }
        }
    }

    /// Lets everything come to its end.
    fn finish(&mut self) {
        for round in 0..400_u16 {
            let mut any = false;
            for at in 0..self.flows.len() {
                self.resume_sends(at);
                let waits = self.flows[at].sent.len() > self.flows[at].next_message;
                if waits && self.flows[at].receives.len() < 8 {
                    self.receive(at, round);
                }
            }
            any |= self.network.settle();
            self.network.tick(1 << 34);
            any |= self.network.settle();
            for at in 0..self.flows.len() {
                self.poll(at, 1 << 20);
            }
            if !any && round > 80 {
                break;
            }
        }
        for flow in &self.flows {
            flow.check_end(&self.network);
        }
    }
}

fn cases() -> ProptestConfig {
    let cases = if std::env::var_os("ISTHMUS_TEST_LONG").is_some() { 100_000 } else { 1_500 };
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

fn options() -> impl Strategy<Value = Options> {
    (0..4_u32, 1..4_u8, 0..4_u32).prop_map(|(sends, reads_max, psn)| Options {
        signal_all: false,
        sends_max: 2 << sends,
        reads_max,
        timeout: 10,
        psns: (0xff_fffe_u32.wrapping_sub(psn), psn),
        ..Options::default()
    })
}

fn run(options: &Options, faults: bool, steps: &[Step]) {
    let mut simulation = Simulation::new(options, faults);
    steps.iter().for_each(|step| simulation.step(*step));
    simulation.finish();
    if !faults {
        for node in &simulation.network.nodes {
            assert_eq!(node.engine.violations(), 0, "an engine takes another one for an attacker");
        }
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn programs_without_faults_see_each_operation_once_in_order(options in options(), steps in steps()) {
        run(&options, false, &steps);
    }

    #[test]
    fn programs_with_faults_see_each_operation_once_or_an_error(options in options(), steps in steps()) {
        run(&options, true, &steps);
    }

    #[test]
    fn programs_with_few_retries_see_each_operation_once_or_an_error(
        options in options(),
        rnr_retry in 0..3_u8,
        steps in steps(),
    ) {
        run(&Options { rnr_retry, ..options }, true, &steps);
    }

    #[test]
    fn connections_made_again_are_new_whatever_is_under_way(options in options(), steps in steps()) {
        let mut simulation = Simulation::new(&options, false);
        steps.iter().for_each(|step| simulation.step(*step));
        simulation.reconnect(&options);
    }

    #[test]
    fn programs_survive_a_peer_that_goes(options in options(), steps in steps(), at in 0..300_usize, gone in 0..3_usize) {
        let mut simulation = Simulation::new(&options, false);
        let at = at.min(steps.len());
        steps[..at].iter().for_each(|step| simulation.step(*step));
        for flow in &mut simulation.flows {
            flow.disturbed |= flow.from.node == gone || flow.to.node == gone;
        }
        simulation.network.kill(gone);
        steps[at..].iter().for_each(|step| simulation.step(*step));
        simulation.finish();
    }
}
