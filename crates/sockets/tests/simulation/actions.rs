//! Actions of the ends in random order.

use isthmus_sockets::Receive;

use crate::driver::Step;
use crate::kernel::{Received, Sent};
use crate::simulation::{Call, Simulation};

/// Lets an end do something, unless it is gone.
pub(crate) fn act(simulation: &mut Simulation, end: usize) {
    if simulation.ends[end].is_gone {
        return;
    }
    match simulation.random.below(1000) {
        0..340 => {
            let len = any_len(simulation);
            simulation.run(end, |simulation, end| simulation.write(end, len));
        }
        340..680 => {
            let len = any_len(simulation);
            simulation.run(end, |simulation, end| simulation.program_reads(end, len));
        }
        680..760 => {
            simulation.run(end, start_call);
        }
        760..900 => {
            let calls = simulation.ends[end].calls.len() as u64;
            let call = simulation.random.below(calls.max(1));
            advance(simulation, end, call as usize);
        }
        900..940 => {
            simulation.run(end, Simulation::attach);
        }
        940..960 => {
            let keep = simulation.random.chance(300_000) || simulation.kernel.has_hung_up(end);
            simulation.ends[end].sender.keep_on_tcp(keep);
        }
        960..980 => simulation.words[end].tcp_please = simulation.random.chance(300_000),
        980..990 if simulation.ends[1 - end].has_died && simulation.ends[end].is_attached => {
            simulation.run(end, Simulation::abandon);
        }
        990..1000 if simulation.random.chance(simulation.pauses.leave) => leave(simulation, end),
        _ => (),
    }
}

/// Ends something, often at once behind a write.
fn leave(simulation: &mut Simulation, end: usize) {
    if simulation.random.chance(500_000) {
        let len = any_len(simulation);
        simulation.run(end, |simulation, end| simulation.write(end, len));
        if simulation.ends[end].is_gone {
            return;
        }
    }
    match simulation.random.below(5) {
        0 | 1 => simulation.run(end, Simulation::shutdown),
        2 => simulation.run(end, |simulation, end| simulation.close(end, false)),
        3 => simulation.run(end, |simulation, end| simulation.close(end, true)),
        _ => {
            simulation.die(end);
            None
        }
    };
}

fn any_len(simulation: &mut Simulation) -> u64 {
    let most = simulation.random.choose(&[1, 30, 2000, 30_000, 100_000, 100_000, 400_000]);
    1 + simulation.random.below(most)
}

/// Starts a call of the kernel in another thread, if the next bytes go by TCP.
fn start_call(simulation: &mut Simulation, end: usize) -> Step<()> {
    let len = any_len(simulation);
    if simulation.random.chance(500_000) {
        if !simulation.ends[end].is_shut && !simulation.goes_by_ring(end)? {
            simulation.ends[end].sender.begin_tcp();
            simulation.ends[end].calls.push(Call::Send { len });
        }
    } else if let Receive::Tcp { limit: 1.. } = simulation.ends[end].receiver.next() {
        let Some(limit) = simulation.begin_tcp(end)? else { return Ok(()) };
        let blocks = !simulation.ends[end].is_attached;
        simulation.ends[end].calls.push(Call::Recv { len: len.min(limit), blocks });
    }
    Ok(())
}

/// Lets a call go one step further: in the kernel, or back to the program.
pub(crate) fn advance(simulation: &mut Simulation, end: usize, call: usize) {
    if call >= simulation.ends[end].calls.len() {
        return;
    }
    let next = match simulation.ends[end].calls[call] {
        Call::Send { len } => match simulation.send(end, len) {
            Sent::Bytes(bytes) => Call::Sent { bytes },
            _ => Call::Sent { bytes: 0 },
        },
        Call::Recv { blocks: true, .. } if simulation.kernel.peek(end) == Received::WouldBlock => return,
        Call::Recv { len, .. } => Call::Received { bytes: simulation.recv(end, len).0 },
        Call::Sent { bytes } => {
            simulation.ends[end].sender.end_tcp(bytes);
            simulation.ends[end].calls.remove(call);
            return;
        }
        Call::Received { bytes } => {
            simulation.end_tcp(end, bytes);
            simulation.ends[end].calls.remove(call);
            return;
        }
    };
    simulation.ends[end].calls[call] = next;
}
