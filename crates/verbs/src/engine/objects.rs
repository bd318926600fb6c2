//! Protection domains, completion queues, shared receive queues and queue pairs: made and ended.

use super::{Engine, limits};
use crate::events::AsyncEvent;
use crate::queue_pair::{QpInit, QueuePair};
use crate::queues::{CompletionQueue, ReceiveQueue};
use crate::types::{Completion, Cq, Pd, QpNumber, QpType, Refused, Srq};
use alloc::boxed::Box;

impl Engine {
    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> Result<Pd, Refused> {
        match self.pds.len() < limits::OBJECTS_MAX {
            true => Ok(Pd(self.pds.insert(()))),
            false => Err(Refused::Full),
        }
    }

    /// Ends a protection domain. Refused while other objects use it.
    pub fn dealloc_pd(&mut self, pd: Pd) -> Result<(), Refused> {
        let in_use = self.regions.uses_pd(pd)
            || self.qps.iter().flatten().any(|qp| qp.init.pd == pd)
            || self.receive_queues.values().any(|queue| queue.pd == pd);
        if in_use {
            return Err(Refused::Busy);
        }
        self.pds.remove(pd.0).ok_or(Refused::Invalid)
    }

    /// Makes a completion queue with room for `capacity` completions.
    pub fn create_cq(&mut self, capacity: u32) -> Result<Cq, Refused> {
        if !(1..=limits::COMPLETIONS_MAX).contains(&capacity) {
            return Err(Refused::Invalid);
        }
        if self.cqs.len() >= limits::OBJECTS_MAX {
            return Err(Refused::Full);
        }
        Ok(Cq(self.cqs.insert(CompletionQueue::new(capacity as usize))))
    }

    /// Changes the room of a completion queue. Refused if the completions that wait need more. Those of datagrams under way count, too:
    /// nothing but our own transmission delays them.
    pub fn resize_cq(&mut self, cq: Cq, capacity: u32) -> Result<(), Refused> {
        if !(1..=limits::COMPLETIONS_MAX).contains(&capacity) {
            return Err(Refused::Invalid);
        }
        let datagrams = self.qps.iter().flatten().filter(|qp| qp.init.kind == QpType::Ud && qp.init.send_cq == cq);
        let due = datagrams.flat_map(|qp| qp.requester.entries()).filter(|entry| entry.signaled).count();
        self.cqs.get_mut(cq.0).ok_or(Refused::Invalid)?.resize(capacity as usize, due)
    }

    /// Ends a completion queue. Refused while queue pairs use it.
    pub fn destroy_cq(&mut self, cq: Cq) -> Result<(), Refused> {
        if self.cqs.get(cq.0).ok_or(Refused::Invalid)?.users > 0 {
            return Err(Refused::Busy);
        }
        self.cqs.remove(cq.0);
        self.completion_events.retain(|event| *event != cq);
        self.forget_events(|event| *event == AsyncEvent::CqError(cq));
        Ok(())
    }

    /// Takes the oldest completion of a queue.
    #[inline]
    pub fn poll(&mut self, cq: Cq) -> Option<Completion> {
        self.cqs.get_mut(cq.0)?.pop()
    }

    /// True if a completion queue has lost completions because it had no room.
    pub fn is_overrun(&self, cq: Cq) -> bool {
        self.cqs.get(cq.0).is_some_and(|cq| cq.overrun)
    }

    /// Makes a shared receive queue.
    pub fn create_srq(&mut self, pd: Pd, receives_max: u32, sges_max: u32) -> Result<Srq, Refused> {
        self.pds.get(pd.0).ok_or(Refused::Invalid)?;
        if !(1..=limits::REQUESTS_MAX).contains(&receives_max) || sges_max > limits::SGES_MAX {
            return Err(Refused::Invalid);
        }
        if self.receive_queues.len() >= limits::OBJECTS_MAX {
            return Err(Refused::Full);
        }
        let queue = ReceiveQueue::new(pd, receives_max as usize, sges_max as usize, true);
        Ok(Srq(self.receive_queues.insert(queue)))
    }

    /// Ends a shared receive queue. Refused while queue pairs use it.
    pub fn destroy_srq(&mut self, srq: Srq) -> Result<(), Refused> {
        match self.receive_queues.get(srq.0) {
            Some(queue) if !queue.shared => Err(Refused::Invalid),
            Some(queue) if queue.users > 0 => Err(Refused::Busy),
            Some(_) => {
                self.forget_events(|event| *event == AsyncEvent::SrqLimitReached(srq));
                self.receive_queues.remove(srq.0).map(|_| ()).ok_or(Refused::Invalid)
            }
            None => Err(Refused::Invalid),
        }
    }

    /// Makes a queue pair. [`Refused::NumbersMissing`] asks for [`Self::add_numbers`]. Returns the number and the capacities that it has.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<(QpNumber, QpInit), Refused> {
        let mut init = *init;
        self.pds.get(init.pd.0).ok_or(Refused::Invalid)?;
        let receives_max = if init.srq.is_some() { 0 } else { init.receives_max };
        let too_large = init.sends_max > limits::REQUESTS_MAX
            || receives_max > limits::REQUESTS_MAX
            || init.send_sges_max.max(init.receive_sges_max) > limits::SGES_MAX
            || init.inline_max > limits::INLINE_BYTES_MAX;
        if too_large || self.cqs.get(init.send_cq.0).is_none() || self.cqs.get(init.receive_cq.0).is_none() {
            return Err(Refused::Invalid);
        }
        if init.srq.is_some_and(|srq| !self.receive_queues.get(srq.0).is_some_and(|queue| queue.shared)) {
            return Err(Refused::Invalid);
        }
        let number = self.numbers.free.pop_front().ok_or(Refused::NumbersMissing)?;
        init.sends_max = init.sends_max.max(1).next_power_of_two();
        let receive_queue = match init.srq {
            Some(srq) => srq.0,
            None => {
                let (capacity, sges_max) = (receives_max as usize, init.receive_sges_max as usize);
                self.receive_queues.insert(ReceiveQueue::new(init.pd, capacity, sges_max, false))
            }
        };
        self.receive_queues.get_mut(receive_queue).into_iter().for_each(|queue| queue.users += 1);
        for cq in [init.send_cq, init.receive_cq] {
            self.cqs.get_mut(cq.0).into_iter().for_each(|cq| cq.users += 1);
        }
        let slot = self.numbers.slot(number).expect("the number comes from a block");
        let qp = QueuePair::new(number, init, receive_queue, self.positions[slot as usize]);
        self.qps[slot as usize] = Some(Box::new(qp));
        Ok((number, init))
    }

    /// Ends a queue pair, with its requests and their completions.
    pub fn destroy_qp(&mut self, number: QpNumber) -> Result<(), Refused> {
        let slot = self.slot(number).ok_or(Refused::Invalid)?;
        self.end_connection(slot);
        let qp = self.qps[slot as usize].take().ok_or(Refused::Invalid)?;
        self.positions[slot as usize] = qp.positions();
        self.owing.retain(|owing| *owing != slot);
        for cq in [qp.init.send_cq, qp.init.receive_cq] {
            self.cqs.get_mut(cq.0).into_iter().for_each(|cq| cq.users -= 1);
        }
        if let Some(queue) = self.receive_queues.get_mut(qp.receive_queue) {
            queue.users -= 1;
            if !queue.shared {
                self.receive_queues.remove(qp.receive_queue);
            }
        }
        self.numbers.free.push_back(number);
        self.forget_events(|event| {
            matches!(event, AsyncEvent::QpRequestError(of) | AsyncEvent::QpAccessError(of)
                | AsyncEvent::SendQueueDrained(of) | AsyncEvent::LastRequestReached(of) if *of == number)
        });
        Ok(())
    }
}
