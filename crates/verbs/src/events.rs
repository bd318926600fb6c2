//! Events of armed completion queues, and of objects that change their state.

use crate::engine::Engine;
use crate::types::{Completion, Cq, QpNumber, QpState, Refused, Srq, Status};

/// Which completions lead to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    /// The next one.
    Any,
    /// The next one that is solicited or has failed.
    Solicited,
}

impl Armed {
    fn includes(self, completion: &Completion) -> bool {
        self == Self::Any || completion.solicited || completion.status != Status::Success
    }
}

/// An event of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A completion found no room in its queue (`IBV_EVENT_CQ_ERR`).
    CqError(Cq),
    /// A request of the peer was invalid (`IBV_EVENT_QP_REQ_ERR`).
    QpRequestError(QpNumber),
    /// A request of the peer named memory that it may not access so (`IBV_EVENT_QP_ACCESS_ERR`).
    QpAccessError(QpNumber),
    /// All send requests that were posted before the change of state are over (`IBV_EVENT_SQ_DRAINED`).
    SendQueueDrained(QpNumber),
    /// The queue pair is in error, and takes nothing from its shared receive queue any more (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    LastRequestReached(QpNumber),
    /// A shared receive queue has fewer requests than its limit (`IBV_EVENT_SRQ_LIMIT_REACHED`).
    SrqLimitReached(Srq),
}

impl Engine {
    /// Asks for an event at the next completion of a queue, or at the next one that is solicited or has failed. A request for any
    /// completion includes an earlier one. A completion that came since the last event and still waits counts as the next one, as with
    /// adapters that compare the indices of the queue: programs such as UCX poll, then ask, and then sleep.
    pub fn request_notification(&mut self, cq: Cq, solicited_only: bool) -> Result<(), Refused> {
        let queue = self.cqs.get_mut(cq.0).ok_or(Refused::Invalid)?;
        let armed = match (queue.armed, solicited_only) {
            (Some(Armed::Any), _) | (_, false) => Armed::Any,
            (_, true) => Armed::Solicited,
        };
        queue.armed = Some(armed);
        if queue.unreported().any(|completion| armed.includes(completion)) {
            self.fire(cq);
        }
        Ok(())
    }

    /// True if the next completion of a queue may lead to an event.
    pub fn is_armed(&self, cq: Cq) -> bool {
        self.cqs.get(cq.0).is_some_and(|queue| queue.armed.is_some())
    }

    /// The next completion queue with an event. Each event disarms its queue.
    pub fn next_completion_event(&mut self) -> Option<Cq> {
        self.completion_events.pop_front()
    }

    /// The next event of an object.
    pub fn next_async_event(&mut self) -> Option<AsyncEvent> {
        self.async_events.pop_front()
    }

    /// True if there are events to take.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.completion_events.is_empty() || !self.async_events.is_empty()
    }

    /// A completion was added to a queue.
    #[inline]
    pub(crate) fn note_completion(&mut self, cq: Cq, completion: &Completion) {
        let Some(queue) = self.cqs.get_mut(cq.0) else { return };
        if queue.overrun && !core::mem::replace(&mut queue.overrun_reported, true) {
            self.async_events.push_back(AsyncEvent::CqError(cq));
        }
        if queue.armed.is_some_and(|armed| armed.includes(completion)) {
            self.fire(cq);
        }
    }

    fn fire(&mut self, cq: Cq) {
        if let Some(queue) = self.cqs.get_mut(cq.0) {
            (queue.armed, queue.unreported) = (None, 0);
            self.completion_events.push_back(cq);
        }
    }

    /// Sets the limit of a shared receive queue: an event follows when the queue has fewer requests.
    pub fn set_srq_limit(&mut self, srq: Srq, limit: u32) -> Result<(), Refused> {
        let queue = self.receive_queues.get_mut(srq.0).filter(|queue| queue.shared).ok_or(Refused::Invalid)?;
        if limit as usize > queue.capacity {
            return Err(Refused::Invalid);
        }
        queue.limit = limit as usize;
        self.note_taken(srq.0);
        Ok(())
    }

    /// The capacities and the limit of a shared receive queue: requests, ranges of a request, limit.
    pub fn query_srq(&self, srq: Srq) -> Option<(u32, u32, u32)> {
        let queue = self.receive_queues.get(srq.0).filter(|queue| queue.shared)?;
        Some((queue.capacity as u32, queue.sges_max as u32, queue.limit as u32))
    }

    /// A request was taken from a receive queue, or its limit has changed.
    #[inline]
    pub(crate) fn note_taken(&mut self, number: u32) {
        if let Some(queue) = self.receive_queues.get_mut(number)
            && queue.entries.len() < queue.limit
        {
            queue.limit = 0;
            self.async_events.push_back(AsyncEvent::SrqLimitReached(Srq(number)));
        }
    }

    /// Fewer requests of a send queue are under way. If none is, and the queue takes no further ones, an event follows that was asked for.
    pub(crate) fn note_drained(&mut self, slot: u32) {
        if let Some(qp) = self.qp_mut(slot)
            && qp.state == QpState::SendQueueDrained
            && qp.requester.is_drained()
            && core::mem::take(&mut qp.attributes.drained_event)
        {
            let event = AsyncEvent::SendQueueDrained(qp.number);
            self.async_events.push_back(event);
        }
    }

    /// The object of these events has ended: they are dropped.
    pub(crate) fn forget_events(&mut self, of: impl Fn(&AsyncEvent) -> bool) {
        self.async_events.retain(|event| !of(event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::CompletionKind;

    fn completion(solicited: bool, status: Status) -> Completion {
        Completion {
            wr_id: 0,
            status,
            kind: CompletionKind::Receive,
            len: 0,
            immediate: None,
            qp: QpNumber(256),
            source_qp: QpNumber(0),
            has_grh: false,
            service_level: 0,
            solicited,
        }
    }

    const PLAIN: (bool, Status) = (false, Status::Success);
    const SOLICITED: (bool, Status) = (true, Status::Success);
    const FAILED: (bool, Status) = (false, Status::Flushed);

    fn engine_with(completions: &[(bool, Status)]) -> (Engine, Cq) {
        let mut engine = Engine::new(1);
        let cq = engine.create_cq(8).expect("room");
        for (solicited, status) in completions {
            engine.report(cq, completion(*solicited, *status));
        }
        (engine, cq)
    }

    /// The number of events after a request for them.
    fn events(engine: &mut Engine, cq: Cq, solicited_only: bool) -> usize {
        engine.request_notification(cq, solicited_only).expect("a queue");
        core::iter::from_fn(|| engine.next_completion_event()).count()
    }

    #[test]
    fn request_after_the_completion_leads_to_an_event() {
        let (mut engine, cq) = engine_with(&[PLAIN]);
        assert_eq!((events(&mut engine, cq, false), engine.is_armed(cq)), (1, false));
    }

    #[test]
    fn completion_that_had_an_event_or_was_polled_leads_to_no_other() {
        let (mut engine, cq) = engine_with(&[]);
        assert_eq!(events(&mut engine, cq, false), 0);
        engine.report(cq, completion(false, Status::Success));
        assert_eq!(engine.next_completion_event(), Some(cq));
        assert_eq!((events(&mut engine, cq, false), engine.is_armed(cq)), (0, true), "it waits for the next one");
        let (mut engine, cq) = engine_with(&[PLAIN, PLAIN]);
        engine.poll(cq);
        engine.poll(cq);
        assert_eq!((events(&mut engine, cq, false), engine.is_armed(cq)), (0, true));
    }

    #[test]
    fn request_for_solicited_completions_passes_over_others() {
        for (completions, expected) in [(&[PLAIN][..], 0), (&[SOLICITED, PLAIN], 1), (&[PLAIN, FAILED], 1)] {
            let (mut engine, cq) = engine_with(completions);
            assert_eq!(events(&mut engine, cq, true), expected, "{completions:?}");
        }
        let (mut engine, cq) = engine_with(&[SOLICITED, PLAIN]);
        engine.poll(cq);
        assert_eq!(events(&mut engine, cq, true), 0, "the solicited one was polled");
        assert_eq!(events(&mut engine, cq, false), 1, "the other one waits still");
    }
}
