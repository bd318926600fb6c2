//! Every order of short scripts.

use crate::random::Note;
use crate::simulation::{Pauses, Simulation};

/// The bytes of a write, and of the queues of the kernel's connection: a write by TCP is cut.
const WRITE: u64 = 150;
const QUEUE: u64 = 100;
/// The bytes of a read. It leaves some of a write.
const READ: u64 = 120;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Attach(usize),
    /// The end keeps its direction on TCP.
    Keep(usize),
    /// The end asks for TCP.
    Please(usize),
    Release(usize),
    Shutdown(usize),
    Close(usize),
    Abort(usize),
    Die(usize),
    Write(usize),
    Read(usize),
}

const TRANSFERS: [Action; 4] = [Action::Write(0), Action::Read(1), Action::Write(1), Action::Read(0)];

/// Runs all orders of `events`, with `transfers` reads and writes at all places between them. Returns the number of scripts.
pub(crate) fn run_all(simulation: &mut Simulation, events: &[Action], transfers: usize) -> u64 {
    let (mut count, mut script) = (0, Vec::new());
    interleave(&mut script, &mut events.to_vec(), transfers, &mut |script| {
        let _note = Note(script);
        // Positions of both directions wrap within some scripts.
        simulation.restart(count, QUEUE, [(1 << 32) - 200, 0], Pauses::default());
        script.iter().for_each(|action| run(simulation, *action));
        simulation.finish();
        count += 1;
    });
    count
}

fn interleave(script: &mut Vec<Action>, events: &mut Vec<Action>, transfers: usize, run: &mut impl FnMut(&[Action])) {
    if events.is_empty() && transfers == 0 {
        return run(script);
    }
    for at in 0..events.len() {
        script.push(events.remove(at));
        interleave(script, events, transfers, run);
        events.insert(at, script.remove(script.len() - 1));
    }
    if transfers > 0 {
        for transfer in TRANSFERS {
            script.push(transfer);
            interleave(script, events, transfers - 1, run);
            script.pop();
        }
    }
}

fn run(simulation: &mut Simulation, action: Action) {
    let (Action::Attach(end)
    | Action::Keep(end)
    | Action::Please(end)
    | Action::Release(end)
    | Action::Shutdown(end)
    | Action::Close(end)
    | Action::Abort(end)
    | Action::Die(end)
    | Action::Write(end)
    | Action::Read(end)) = action;
    if simulation.ends[end].is_gone {
        return;
    }
    simulation.run(end, |simulation, end| {
        match action {
            Action::Attach(_) => simulation.attach(end).map(drop)?,
            Action::Keep(_) => simulation.ends[end].sender.keep_on_tcp(true),
            Action::Please(_) => simulation.words[end].tcp_please = true,
            Action::Release(_) => simulation.release(end),
            Action::Shutdown(_) => simulation.shutdown(end)?,
            Action::Close(_) => simulation.close(end, false)?,
            Action::Abort(_) => simulation.close(end, true)?,
            Action::Die(_) => simulation.die(end),
            Action::Write(_) => simulation.write(end, WRITE).map(drop)?,
            Action::Read(_) => simulation.program_reads(end, READ).map(drop)?,
        }
        Ok(())
    });
}
