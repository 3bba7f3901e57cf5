//! Events for the clients of `monitor`. Each client has its own queue, so a client that does not read delays no thread.

use crate::schema::{Event, EventKind};
use offramp_offload::sync::lock;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Maximum number of events queued for a client; further events are lost for that client.
pub const QUEUE_EVENTS_MAX: usize = 1024;

/// Maximum time for which the daemon, before it ends, waits until the clients have received the last event.
const END_TIME_MAX: Duration = Duration::from_millis(200);
/// Time between two checks whether all clients have received the last event.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The clients that receive events.
#[derive(Debug, Default)]
pub struct Events(Mutex<Vec<Reader>>);

#[derive(Debug)]
struct Reader {
    queue: SyncSender<Event>,
    /// Number of events lost since the last event delivered to this reader.
    lost: u64,
}

impl Reader {
    /// Sends an event to the reader. Returns whether the reader is still connected.
    fn send(&mut self, event: &Event) -> bool {
        if self.lost > 0 {
            let lost = Event { event: EventKind::Lost { events: self.lost }, ..event.clone() };
            match self.queue.try_send(lost) {
                Ok(()) => self.lost = 0,
                Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Disconnected(_)) => return false,
            }
        }
        match self.queue.try_send(event.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.lost += 1;
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

impl Events {
    /// Subscribes to all events from now on.
    pub fn subscribe(&self) -> Receiver<Event> {
        let (queue, events) = sync_channel(QUEUE_EVENTS_MAX);
        lock(&self.0).push(Reader { queue, lost: 0 });
        events
    }

    /// Publishes an event with the current time.
    pub fn publish(&self, event: EventKind) {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let event = Event { unix_ms: since_epoch.as_millis() as u64, event };
        lock(&self.0).retain_mut(|reader| reader.send(&event));
    }

    /// Publishes the end of the daemon, and waits until every client that reads has received it. A client leaves after
    /// this event.
    pub fn end(&self) {
        let until = Instant::now() + END_TIME_MAX;
        loop {
            // Each client disconnects after the first of these events. Publishing the event again removes the
            // disconnected clients from the list.
            self.publish(EventKind::Ended {});
            if lock(&self.0).is_empty() || Instant::now() > until {
                return;
            }
            thread::sleep(END_CHECK_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(port: usize) -> EventKind {
        EventKind::PortAdded { port: port.to_string() }
    }

    #[test]
    fn one_that_does_not_read_loses_events_and_hears_how_many_and_others_lose_none() {
        let events = Events::default();
        let (slow, fast) = (events.subscribe(), events.subscribe());
        for port in 0..QUEUE_EVENTS_MAX + 5 {
            events.publish(added(port));
            assert_eq!(fast.recv().unwrap().event, added(port));
        }
        let heard: Vec<_> = slow.try_iter().collect();
        assert_eq!((heard.len(), &heard[QUEUE_EVENTS_MAX - 1].event), (QUEUE_EVENTS_MAX, &added(QUEUE_EVENTS_MAX - 1)));
        events.publish(added(7));
        let then: Vec<_> = slow.try_iter().map(|event| event.event).collect();
        assert_eq!(then, [EventKind::Lost { events: 5 }, added(7)]);
        drop(slow);
        events.publish(added(8));
        assert_eq!(lock(&events.0).len(), 1, "who has gone is forgotten");
    }
}
