//! Events of armed completion queues, and of objects that change their state.

use crate::engine::Engine;
use crate::types::{Completion, Cq, QpNumber, Refused, Srq, Status};

/// Which completions lead to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    /// The next one.
    Any,
    /// The next one that is solicited or has failed.
    Solicited,
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
    /// completion includes an earlier one.
    pub fn request_notification(&mut self, cq: Cq, solicited_only: bool) -> Result<(), Refused> {
        let queue = self.cqs.get_mut(cq.0).ok_or(Refused::Invalid)?;
        queue.armed = match (queue.armed, solicited_only) {
            (Some(Armed::Any), _) | (_, false) => Some(Armed::Any),
            (_, true) => Some(Armed::Solicited),
        };
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
        let fires = match queue.armed {
            None => false,
            Some(Armed::Any) => true,
            Some(Armed::Solicited) => completion.solicited || completion.status != Status::Success,
        };
        if fires {
            queue.armed = None;
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

    /// The object of these events has ended: they are dropped.
    pub(crate) fn forget_events(&mut self, of: impl Fn(&AsyncEvent) -> bool) {
        self.async_events.retain(|event| !of(event));
    }
}
